"""Slurm on the two nodes of ``scripts/two_nodes``: the batch script that starts ranks over ssh runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.ranks import ROOT, need_mpirun
from tests.mpi.test_slurm import ENDLESS, NEEDS_SLURM, NODE, SCRIPTS, Submitted
from tests.mpi.training_runs import checkpoints_of
from tests.mpi.two_nodes import SCRIPT, Nodes, NoNodesError

pytestmark = NEEDS_SLURM


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """With Slurm: node a is the partition gpu, node b the partition cpu."""
    need_mpirun()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    slurm, directory = str(tmp_path / "slurm"), str(tmp_path / "nodes")
    try:
        made = Nodes(tmp_path / "nodes")
    except NoNodesError as reason:
        pytest.skip(str(reason))
    try:
        started = subprocess.run([NODE, "up", slurm, directory], capture_output=True, text=True, timeout=60)
        if started.returncode != 0:
            pytest.skip(f"Slurm's daemons do not start here: {started.stderr.strip().splitlines()[-1:]}")
        monkeypatch.setenv("SLURM_CONF", started.stdout.strip())
        yield made
        subprocess.run([NODE, "down", slurm, directory], capture_output=True, timeout=60)
    finally:
        made.down()


def test_a_cancelled_job_over_two_nodes_keeps_its_work(nodes: Nodes, tmp_path: Path) -> None:
    """A learner on the first, two actors on the other; mpirun kills them half a second after Slurm's signal, which is
    enough on a machine that is not overloaded."""
    learner, actors = ("--partition=gpu", "--cpus-per-task=2"), ("--partition=cpu", "--nodes=1", "--ntasks-per-node=2")
    words = (*learner, ":", *actors, str(SCRIPTS / "mpirun.sbatch"), *ENDLESS)
    more = "--log-interval-s 0.2 --checkpoint-interval-s 1000 --envs-per-actor 2 --unroll-length 64".split()
    prefix = (SCRIPT, "run", str(nodes.directory), "a")
    with Submitted(tmp_path / "job", *words, *more, prefix=prefix) as job:
        job.train()
        job.wait_for(lambda: job.records()[-1]["updates"] > 0, "an update")
        assert len(nodes.processes("b", "accel.launch.actor")) >= 2 and not nodes.processes("a", "accel.launch.actor")
        job.cancel()
        job.wait_for(job.is_over, "the end")
        assert nodes.is_quiet("a") and nodes.is_quiet("b")
        assert checkpoints_of(job.run)[-1] >= job.records()[-1]["env_steps"] > 0, job.log
