"""Slurm's own daemons, on one node: what is cancelled, out of time or started again keeps its work.

See ``scripts/slurm_node``, which installs and starts them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from accel.runs.summary import Summary
from tests.contracts.ranks import ROOT
from tests.mpi.test_ports import listening, open_to_others
from tests.mpi.training_runs import checkpoints_of, records_of

NODE = str(ROOT / "scripts" / "slurm_node")
SCRIPTS = ROOT / "scripts" / "slurm"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
LIMIT_S = 240.0
NEEDS_SLURM = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in PROGRAMS),
        reason="needs root and Debian's Slurm: scripts/slurm_node install",
    ),
]
pytestmark = NEEDS_SLURM
ENDLESS = ("--env", "CartPole-v1", "--network", "mlp:32x2", "--compressor", "int8", "--total-env-steps", "1000000000")
FEW = ("--partition=here", "--cpus-per-task=2", "--mem-per-cpu=0")
# Two actors and a learner as tasks of a step, in a job of three tasks.
STEP = (
    "export PMIX_MCA_psec=native; srun --mpi=pmix --ntasks=3 --mem=0 accel train --log-interval-s 0.2 "
    f"--checkpoint-interval-s 1000 {' '.join(ENDLESS)} --name accel-$SLURM_JOB_ID"
)


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The daemons; what this module submits finds this Python's accel."""
    directory = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([NODE, "up", str(directory)], capture_output=True, text=True, timeout=60)
    if started.returncode != 0:
        pytest.skip(f"Slurm's daemons do not start here: {started.stderr.strip().splitlines()[-1:]}")
    before = dict(os.environ)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.update(SLURM_CONF=started.stdout.strip(), PATH=path, PYTHONPATH=str(ROOT))
    yield
    subprocess.run([NODE, "down", str(directory)], capture_output=True, timeout=60)
    os.environ.clear()
    os.environ.update(before)


class Submitted:
    """A job in a directory that has an environment for the batch scripts. ``prefix``: of each of Slurm's commands."""

    def __init__(self, directory: Path, *words: str, prefix: Sequence[str] = ()) -> None:
        (directory / ".venv" / "bin").mkdir(parents=True)
        (directory / ".venv" / "bin" / "activate").write_text("")
        self.directory, self._prefix = directory, prefix
        done = subprocess.run(
            [*prefix, "sbatch", "--parsable", "--output=job.log", *words],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        )
        self.number = done.stdout.strip()
        self.run = directory / "results" / f"accel-{self.number}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self.wait_for(self.is_over, "the end")

    def cancel(self) -> None:
        subprocess.run([*self._prefix, "scancel", self.number], check=True)

    @property
    def log(self) -> str:
        file = self.directory / "job.log"
        return file.read_text() if file.exists() else ""

    def records(self) -> list[dict[str, Any]]:
        return records_of(self.run)

    def is_over(self) -> bool:
        return not _said([*self._prefix, "squeue", "--noheader", "--jobs", self.number])

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            is_over = time.monotonic() > deadline or self.is_over()
            assert condition() or not is_over, f"{what} did not happen; it printed\n{self.log}"
            time.sleep(0.1)

    def train(self) -> int:
        """Wait until it learns; environment steps of the last record then."""
        self.wait_for(lambda: any(record["env_steps"] > 0 for record in self.records()), "training")
        return int(self.records()[-1]["env_steps"])

    def keeps(self, env_steps: int) -> None:
        """Check that it ended in good order and has a checkpoint with at least so many steps."""
        self.wait_for(self.is_over, "the end")
        summary = Summary.read(self.run)
        assert summary.reason.startswith("stopped") and summary.env_steps >= env_steps, self.log
        assert checkpoints_of(self.run)[-1] == summary.env_steps


def _said(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sbatch")))
def test_a_script_submits_as_it_stands(script: str, tmp_path: Path) -> None:
    with Submitted(tmp_path, str(SCRIPTS / script), "--env", "CartPole-v1") as job:
        assert "PENDING" in _said(["squeue", "--noheader", "--format=%T", "--jobs", job.number])


def test_a_cancelled_job_keeps_its_work(tmp_path: Path) -> None:
    more = ("--log-interval-s", "0.2", "--checkpoint-interval-s", "1000")
    with Submitted(tmp_path, *FEW, str(SCRIPTS / "cpu.sbatch"), *ENDLESS, *more) as job:
        seen = job.train()
        job.cancel()
        job.keeps(seen)


def test_ranks_that_srun_starts_keep_their_work_and_listen_to_nobody(tmp_path: Path) -> None:
    words = ("--partition=here", "--ntasks=3", "--mem-per-cpu=0", "--job-name=accel", f"--wrap={STEP}")
    with Submitted(tmp_path, *words) as job:
        seen = job.train()
        assert not open_to_others(pid for pid in listening() if _is_rank_of(pid, job.number))
        job.cancel()
        job.keeps(seen)


def test_a_job_out_of_time_keeps_its_work(tmp_path: Path) -> None:
    """Slurm looks at times every half minute; the script's signal comes 50 s before the minute is over."""
    more = ("--time=1", "--signal=B:TERM@50", str(SCRIPTS / "cpu.sbatch"), *ENDLESS, "--checkpoint-interval-s", "1000")
    with Submitted(tmp_path, *FEW, *more) as job:
        job.keeps(job.train())


def test_a_job_that_is_requeued_goes_on_by_itself(tmp_path: Path) -> None:
    with Submitted(tmp_path, *FEW, str(SCRIPTS / "cpu.sbatch"), *ENDLESS, "--log-interval-s", "0.2") as job:
        seen = job.train()
        subprocess.run(["scontrol", "requeue", job.number], check=True)
        job.wait_for(lambda: f"going on with results/{job.run.name}" in job.log, "the second start")
        job.wait_for(lambda: job.records()[-1]["env_steps"] > seen + 1000, "training on")
        job.cancel()
        job.keeps(seen + 1000)
        assert [path.name for path in job.run.parent.iterdir()] == [job.run.name]


def _is_rank_of(pid: int, job: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"SLURM_JOB_ID={job}".encode() in environment and any(word.startswith(b"PMIX_RANK=") for word in environment)
