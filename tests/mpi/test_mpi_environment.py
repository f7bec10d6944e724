"""An environment that is an MPI program has ranks of its own, which end with it, however its job ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.mpi.training_runs import ORPHAN_S, TrainingRun
from tests.waiting import until

pytestmark = pytest.mark.long

WORDS = (
    "--env", "scripts.examples.mpi_environment:HeatedRod-v0", "--actors", "1", "--envs-per-actor", "1",
    "--unroll-length", "8", "--compressor", "fp32",
)  # fmt: skip
GIVE_WAY = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def ranks_of_environments() -> list[int]:
    """Processes that run the example as a program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[1].endswith(b"mpi_environment.py"):
            found.append(int(path.parent.name))
    return found


def all_end() -> bool:
    """Whether none of them is left in time."""
    return until(lambda: not ranks_of_environments(), ORPHAN_S)


def test_an_environment_with_ranks_of_its_own_is_trained_on(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *WORDS, "--total-env-steps", "64", environment=GIVE_WAY) as job:
        assert job.finish() == 0, job.output
        assert job.summary().env_steps >= 64
        assert all_end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_ranks_end_with_the_job(number: signal.Signals, tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *WORDS, "--total-env-steps", "1000000000", environment=GIVE_WAY) as job:
        job.wait_for_records(1)
        assert len(ranks_of_environments()) == 2
        job.process.send_signal(number)
        job.finish()
        assert all_end()
