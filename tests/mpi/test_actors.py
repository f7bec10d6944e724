"""Actors that crash, leave, hang or are stopped: told, replaced while the run goes on, or the run ends as it should."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from accel.launch.outcome import EXIT_STOPPED
from accel.supervision.supervised import FIRST_RESTARTS
from tests.environments.troubled import DIARY, order_failure
from tests.mpi.training_runs import ENDLESS, TrainingRun

TROUBLED = "tests.environments.troubled:"
AFTER_S = 100.0  # From the end of training to the end of its last process, on a busy machine.


def restarts(job: TrainingRun) -> int:
    return int(job.records()[-1]["actor_restarts"])


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("local", marks=pytest.mark.long)])
def test_an_actor_that_fails_in_any_way_is_replaced_while_the_run_goes_on(launcher: str, tmp_path: Path) -> None:
    told = {
        "exit": "actor 1 failed: its process left through exit(7)",
        "leave": "actor 1 failed: its process left through exit(0)",
        "segfault": "actor 1 failed: its process was ended by SIGSEGV",
        "hang": "actor 1 failed: its environments hang: a step took longer than 8 s (--actor-timeout-s)",
    }
    words = ("--actors", "2", *ENDLESS, "--wrapper", f"{TROUBLED}Obedient", "--actor-timeout-s", "8")
    words = (*words, "--batch-unrolls", "1", "--log-interval-s", "0.1", "--max-actor-restarts", "50")
    with TrainingRun(tmp_path, *words, launcher=launcher, environment={DIARY: str(tmp_path)}) as job:
        ranks = job.wait_for_records(2)
        for number, (how, text) in enumerate(told.items()):
            before = job.children()[2]
            order_failure(tmp_path, 2, how)
            job.wait_for(lambda text=text: text in job.output, f"telling of {how}")  # type: ignore[misc]
            steps = job.records()[-1]["env_steps"]
            job.wait_for(lambda n=number: restarts(job) == n + 1, f"replacing after {how}")  # type: ignore[misc]
            job.wait_for(lambda: job.records()[-1]["actors_alive"] == 2, "both acting")
            assert job.records()[-1]["env_steps"] > steps, "the learner waited"
            assert job.children()[2] != before
        os.kill(job.children()[1], signal.SIGKILL)
        job.wait_for(lambda: restarts(job) == len(told) + 1, "replacing the killed one")
        order_failure(tmp_path, 1, "raise")
        job.wait_for(lambda: job.records()[-1]["environment_restarts"] == 1, "making one environment anew")
        told_of = ("the simulator broke; it is made anew", "troubled.py")  # by the actor, whose words may come later
        job.wait_for(lambda: all(words in job.output for words in told_of), "telling of it")
        assert restarts(job) == len(told) + 1
        assert job.ranks() == ranks
        job.stop()
        summary = job.summary()
        assert summary.actor_restarts == len(told) + 1 and summary.environment_restarts == 1
        assert summary.dead_actors == 0 and {record["actors_alive"] for record in job.records()} >= {1, 2}
        steps = [(record["env_steps"], record["elapsed_s"]) for record in job.records()]
        assert steps == sorted(steps)
        assert job.leaves_no_rank([*ranks.values(), *job.known])


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["mpirun", "local"])
def test_an_actor_that_keeps_failing_is_given_up_and_the_run_ends_with_a_checkpoint(
    launcher: str, tmp_path: Path
) -> None:
    words = ("--actors", "1", *ENDLESS, "--wrapper", f"{TROUBLED}Leaves", "--max-actor-restarts", "2")
    words = (*words, "--envs-per-actor", "1", "--unroll-length", "128")  # Each of them fails in its second unroll.
    with TrainingRun(tmp_path, *words, "--batch-unrolls", "1", launcher=launcher) as job:
        job.wait_for(job.children, "starting the actor")
        assert job.finish() != 0
        assert "that is 3 failures in a row, and it is not replaced again (--max-actor-restarts)" in job.output
        assert "all 1 actors are gone" in job.output and "--resume" in job.output
        assert job.checkpoints() and not (job.path / "summary.json").exists()
        assert job.leaves_no_rank(list(job.known))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wrapper", "words", "failures", "told"),
    [
        ("RaisesAlways", (), FIRST_RESTARTS + 1, "ValueError: no step was ever made"),
        ("ExitsInReset", (), FIRST_RESTARTS, r"left through exit\(3\), 4 times in a row"),
        ("BareAlways", ("--algorithm", "ppo", "--env-workers", "2"), 1, "BareError: no step was ever made"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_environments_that_always_fail_end_the_run_soon(
    wrapper: str, words: tuple[str, ...], failures: int, told: str, tmp_path: Path
) -> None:
    """With one error, which has the last reason and what to do, and few tracebacks."""
    job = TrainingRun(
        tmp_path, "--actors", "2", *ENDLESS, *words, "--wrapper", f"{TROUBLED}{wrapper}", launcher="local"
    )
    with job:
        assert job.finish() not in (0, EXIT_STOPPED), job.output
        (error,) = [line for line in job.output.splitlines() if line.startswith("accel: ")]
        assert re.search(f"{told}.*[Mm]end", error), error
        assert max(job.output.count(f"actor {number} failed") for number in (0, 1)) == failures, job.output
        assert job.output.count("Traceback") <= 2, job.output


@pytest.mark.long
def test_the_time_limit_is_kept_whatever_the_environments_do(tmp_path: Path) -> None:
    """It counts from the start of training on; a learner starts then, and an actor that hangs is not waited for."""
    words = ("--actors", "1", *ENDLESS, "--wrapper", f"{TROUBLED}Hangs", "--actor-timeout-s", "600")
    with TrainingRun(tmp_path, *words, "--batch-unrolls", "1", "--max-seconds", "2") as job:
        job.wait_for(job.records, "a record")
        began = time.monotonic()
        assert job.finish() == 0, job.output
        assert time.monotonic() < began + 2.0 + AFTER_S
        assert job.summary().reason == "max_seconds = 2 reached" and job.summary().training_s < 2.0 + AFTER_S
        assert job.leaves_no_rank(list(job.known))


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["mpirun", "local"])
def test_environments_that_are_never_made_end_the_job(launcher: str, tmp_path: Path) -> None:
    words = ("--actors", "1", *ENDLESS, "--wrapper", f"{TROUBLED}HangsInTheMaking", "--peer-timeout-s", "15")
    with TrainingRun(tmp_path, *words, launcher=launcher) as job:
        job.wait_for(job.children, "starting the actor")
        assert job.finish() != 0
        assert (
            "actors 0 did not answer within 15 s" in job.output or "construction or a reset took longer" in job.output
        )
        assert job.leaves_no_rank(list(job.known))


def test_a_stopped_process_is_replaced_a_silent_rank_killed_and_one_that_does_not_stop_keeps_nobody(
    tmp_path: Path,
) -> None:
    words = ("--actors", "3", *ENDLESS, "--batch-unrolls", "1", "--peer-timeout-s", "15")
    with TrainingRun(tmp_path, *words) as job:
        ranks, children = job.wait_for_records(2), job.children()
        os.kill(children[2], signal.SIGSTOP)
        os.kill(ranks[3], signal.SIGSTOP)
        job.wait_for(lambda: "actor 1 failed: its process was stopped for 10 s" in job.output, "telling of the process")
        job.wait_for(lambda: "actor 2 gives no sign of life; " in job.output, "telling of the rank")
        assert job.leaves_no_rank([children[2], ranks[3], children[3]])
        job.wait_for(lambda: restarts(job) == 1 and job.records()[-1]["actors_alive"] == 2, "replacing the process")
        os.kill(ranks[1], signal.SIGSTOP)
        job.stop()
        assert job.summary().dead_actors == 1 and job.summary().reason == "stopped on request"
        assert "1 actors died" in job.output and "actors [0] did not stop within 15 s" in job.output
        assert job.leaves_no_rank(list(ranks.values()))


@pytest.mark.long
def test_rounds_wait_neither_for_an_actor_that_is_being_replaced_nor_for_one_that_hangs(tmp_path: Path) -> None:
    """Neither ever sends an unroll; they are given up and replaced after minutes only."""
    words = ("--algorithm", "dppo", "--actors", "3", "--total-env-steps", "8000", "--max-actor-restarts", "50")
    few = ("--unroll-length", "256", "--passes", "1", "--minibatches", "1", "--compressor", "fp32")
    with TrainingRun(
        tmp_path, *words, *few, "--wrapper", f"{TROUBLED}TroubleForTwo", "--actor-timeout-s", "600"
    ) as job:
        assert job.finish() == 0, job.output
        assert "actor 2: a step or reset takes far longer" in job.output and "actor 2 failed" not in job.output
