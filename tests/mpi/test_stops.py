"""Whoever stops a job, and however: what was learned is kept.

Each signal comes in the middle of an update that would never end, of the default algorithm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from accel.errors import RunDirectoryError
from accel.launch.outcome import EXIT_STOPPED
from accel.runs.directory import RunDirectory
from tests.environments.long_updates import ENDLESS_UPDATE, UPDATING
from tests.mpi.training_runs import ENDLESS, LIMIT_S, TrainingRun
from tests.waiting import until

SMALL, LARGE = (("--network", f"tests.environments.long_updates:{size}") for size in ("small", "large"))


def in_an_update(results_dir: Path, *words: str, ranks: int | None = None, launcher: str = "mpirun") -> TrainingRun:
    """A run of two actors whose learner is in its only update; no checkpoint has been written."""
    seen = results_dir / "updating"
    own = (*ENDLESS_UPDATE, "--checkpoint-interval-s", "100000", *words)
    job = TrainingRun(results_dir, *own, ranks=ranks, launcher=launcher, environment={UPDATING: str(seen)})
    job.wait_for(seen.exists, "beginning an update")
    assert not job.checkpoints()
    return job


def kept_env_steps(path: Path) -> int:
    """Environment steps of the newest checkpoint, once no process writes to the run any longer."""

    def found() -> int:
        with suppress(RunDirectoryError), RunDirectory.open(path) as run:
            return run.load_checkpoint().env_steps
        return 0

    return until(found, LIMIT_S)


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", ["mpirun", "local"])
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_to_the_command_ends_an_update(number: signal.Signals, launcher: str, tmp_path: Path) -> None:
    with in_an_update(tmp_path, *SMALL, "--actors", "2", launcher=launcher) as job:
        everything = job.processes()
        job.stop(number)
        assert kept_env_steps(job.path) == job.summary().env_steps > 0, job.output
        assert job.leaves_no_rank(everything)


def _to_all(job: TrainingRun) -> None:
    for pid in job.processes():
        os.kill(pid, signal.SIGTERM)


def _to_launcher(number: signal.Signals) -> Callable[[TrainingRun], None]:
    return lambda job: os.killpg(job.process.pid, number)


@pytest.mark.parametrize("network", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["16x1", "2048x3"])
@pytest.mark.parametrize(
    ("ranks", "stop"),
    [
        (None, _to_all),
        pytest.param(0, _to_all, marks=pytest.mark.long),
        pytest.param(3, _to_all, marks=pytest.mark.long),
        (3, _to_launcher(signal.SIGINT)),
        pytest.param(3, _to_launcher(signal.SIGTERM), marks=pytest.mark.long),
    ],
    ids=["all processes", "without mpirun", "mpirun's too", "SIGINT to mpirun", "SIGTERM to mpirun"],
)
def test_a_launcher_that_kills_soon_leaves_a_checkpoint(
    ranks: int | None, stop: Callable[[TrainingRun], None], network: tuple[str, str], tmp_path: Path
) -> None:
    """As scancel, systemd and a terminal stop a job. At 2048×3 a minibatch must end within half a second: on an idle
    machine."""
    words = network if ranks else (*network, "--actors", "2")
    with in_an_update(tmp_path, *words, ranks=ranks or None, launcher="local" if ranks == 0 else "mpirun") as job:
        everything = job.processes()
        stop(job)
        job.finish()  # with 0 where the learner was faster than whoever kills it
        assert kept_env_steps(job.path) > 0, job.output
        assert job.leaves_no_rank(everything)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["mpirun", "local"])
def test_a_learner_that_stays_stopped_ends_its_job_as_a_failure(launcher: str, tmp_path: Path) -> None:
    words = (*ENDLESS, "--actors", "2", "--checkpoint-interval-s", "0.2", "--peer-timeout-s", "25")
    with TrainingRun(tmp_path, *words, launcher=launcher) as job:
        ranks = job.wait_for_records(2)
        job.wait_for(job.checkpoints, "a checkpoint")
        os.kill(ranks[0], signal.SIGSTOP)
        assert job.finish() not in (0, EXIT_STOPPED), job.output
        assert "complete" not in job.output and f"accel train --resume {job.path}" in job.output, job.output
        assert not (job.path / "summary.json").exists()
        assert job.leaves_no_rank(list(ranks.values()))
