"""`accel.train` as a function, and what starts the processes of a run: from any thread, never on the wrong rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from accel.errors import AccelError, JobError, LaunchError
from accel.runs.summary import Summary
from accel.system.machine import read_machine
from accel.transport.pinning import all_cores
from tests.contracts.ranks import ROOT, need_mpirun

SMALL: dict[str, object] = {
    "algorithm": "impala", "envs_per_actor": 8, "unroll_length": 16, "network": "mlp:16x1", "calibration_size": 256,
    "name": "run",
}  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_training_from_a_thread_returns_the_summary_and_finds_modules_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpirun()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def wrapped(env):\n    return env\n")
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')\n")
    found: list[Summary] = []
    options = SMALL | {"results_dir": tmp_path, "wrapper": ("mine:wrapped",)}
    config = TrainConfig.create(actors=1, total_env_steps=3000, **options)
    thread = threading.Thread(target=lambda: found.append(accel.train(config)))
    thread.start()
    thread.join(500)
    (summary,) = found
    assert summary == Summary.read(tmp_path / "run")
    assert summary.env_steps >= 3000 and summary.actors == 1


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Leaves this process, and the ranks that it starts, two cores of however many there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux, where a process can be pinned")
@pytest.mark.skipif(len(all_cores()) < 2, reason="needs two cores, or no rank is pinned")
@pytest.mark.usefixtures("two_cores")
def test_a_machine_is_the_same_whatever_its_ranks_are_pinned_to(tmp_path: Path) -> None:
    need_mpirun()
    found = {}
    for actors in (1, 2):  # A core for each rank, and more ranks than cores, which are not pinned.
        options = SMALL | {"results_dir": tmp_path, "name": f"a{actors}", "batch_unrolls": 1}
        accel.train(TrainConfig.create(actors=actors, total_env_steps=500, **options))
        machine = json.loads((tmp_path / f"a{actors}" / "machine.json").read_text())
        found[actors] = machine["usable_cores"]
    assert set(found.values()) == {read_machine().usable_cores}


def test_a_machine_without_mpi_trains_with_actors(tmp_path: Path) -> None:
    words = ["train", "--actors", "2", "--total-env-steps", "2000", "--results-dir", str(tmp_path), "--name", "run"]
    program = f"""
import sys
sys.modules["mpi4py"] = sys.modules["accel.launch.mpirun"] = None
from accel.cli import main
sys.exit(main({words}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 actor(s)" in done.stdout and (tmp_path / "run" / "summary.json").exists()


def test_a_failed_job_is_an_error_with_its_status(tmp_path: Path) -> None:
    """Also where an earlier part of the run left a summary: it says nothing about this one."""
    need_mpirun()
    config = TrainConfig.create(actors=0, total_env_steps=1500, results_dir=tmp_path, **SMALL)
    accel.train(config)
    with pytest.raises(JobError, match=r"the learner ended with an error, .*its message is above$") as caught:
        accel.train(config.replace(actors=1, launcher="mpirun", env="Acrobot-v1"), resume=tmp_path / "run")
    assert caught.value.exit_code != 0 and isinstance(caught.value, AccelError)


def test_an_actors_rank_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(LaunchError, match="first rank only"):
        accel.train(TrainConfig())
