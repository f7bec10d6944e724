"""Whatever dies, no process of a job is left after ten seconds: no rank, no actor, nothing that environments started.

What happens on other nodes is in ``test_two_nodes.py``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from accel.runs.directory import RunDirectory
from accel.supervision.processes import descendants, is_running
from tests.mpi.training_runs import ENDLESS, TrainingRun

WORDS = (*ENDLESS, "--batch-unrolls", "1", "--checkpoint-interval-s", "0.2")
SIMULATOR = ("--wrapper", "tests.environments.troubled:Simulator", "--envs-per-actor", "1")
# Ends when it is killed, and with it a terminal in which the rest of its arguments run.
TERMINAL = (sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])")


def command_of(pid: int) -> str:
    """A process's command line; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def simulators(pid: int) -> list[int]:
    """Processes that environments below a process have started."""
    return [found for found in descendants(pid) if command_of(found).startswith("sleep 86400")]


def launcher(job: TrainingRun) -> int:
    """The pid of mpirun."""
    (found,) = (
        pid
        for pid in descendants(job.process.pid)
        if "-m accel.launch.rank" in command_of(pid) and "prterun" in command_of(pid)
    )
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("launcher_name", "victim"),
    [
        *(("mpirun", victim) for victim in ("command", "mpirun")),
        *(pytest.param("mpirun", victim, marks=pytest.mark.long) for victim in ("learner", "terminal")),
        ("local", "learner"),
        *(pytest.param("local", victim, marks=pytest.mark.long) for victim in ("command", "terminal")),
    ],
)
def test_whatever_dies_nothing_is_left(launcher_name: str, victim: str, tmp_path: Path) -> None:
    prefix = TERMINAL if victim == "terminal" else ()
    words = ("--actors", "2", *WORDS, *SIMULATOR)
    with TrainingRun(tmp_path, *words, prefix=prefix, launcher=launcher_name) as job:
        ranks = job.wait_for_records(1)
        job.wait_for(job.checkpoints, "a checkpoint")
        assert (
            len(ranks) == (3 if launcher_name == "mpirun" else 1)
            and len(job.children()) == 2
            and len(simulators(job.process.pid)) == 4
        )
        everything = job.processes()
        pid = launcher(job) if victim == "mpirun" else ranks[0] if victim == "learner" else job.process.pid
        os.kill(pid, signal.SIGKILL)
        assert job.leaves_no_rank(everything)
        assert job.finish() != 0
        with RunDirectory.open(job.path, read_only=True) as run:
            assert run.load_checkpoint().env_steps > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["command", "mpirun"])
def test_hundreds_of_ranks(victim: str, tmp_path: Path) -> None:
    """Far more than there are cores: they are killed while most of them are starting.

    The command is no orphan: its user waits for it, and it may still be telling how the job ended.
    """
    words = ("--actors", "199", "--envs-per-actor", "1", "--peer-timeout-s", "1200")
    with TrainingRun(tmp_path, *WORDS, *words) as job:
        job.wait_for_ranks(200)
        everything = [pid for pid in job.processes() if pid != job.process.pid or victim == "command"]
        os.kill(launcher(job) if victim == "mpirun" else job.process.pid, signal.SIGKILL)
        assert job.leaves_no_rank(everything), [command_of(p) for p in everything if is_running(p)]
        assert job.finish() != 0
