"""Environments that hang where no other process watches them: runs of one process, and evaluation beside training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

import accel
from accel.config import TrainConfig
from accel.envs.factory import make_vector_env
from accel.errors import ConfigError, EnvError
from accel.launch.outcome import EXIT_STOPPED
from accel.runs.directory import RunDirectory
from accel.runs.live_evaluation import TIMEOUT_S
from accel.supervision.activity import PREPARING, STEPPING, WAITING, Activity, Seen, Watchdog
from accel.supervision.processes import descendants, is_running
from accel.system.signals import interruptible
from tests.waiting import until

ROOT = Path(__file__).parents[3]
TROUBLED = "tests.environments.troubled:"
LIMIT_S = 300.0


def configure(path: Path, wrapper: str, **options: object) -> TrainConfig:
    small: dict[str, object] = {
        "actors": 0, "algorithm": "impala", "envs_per_actor": 2, "unroll_length": 16, "network": "mlp:16x1",
        "learner_threads": 1, "calibration_size": 64, "batch_unrolls": 1, "actor_timeout_s": 1.0, "peer_timeout_s": 2.0,
        "wrapper": (f"{TROUBLED}{wrapper}",), "total_env_steps": 10**9,
    }  # fmt: skip
    return TrainConfig.create(**(small | {"results_dir": path, "name": "run"} | options))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wrapper", "told"),
    [
        ("Hangs", "a step took longer than 1 s (--actor-timeout-s)"),
        ("HangsInReset", "construction or a reset took longer than 2 s (--peer-timeout-s)"),
    ],
    ids=["step", "reset"],
)
def test_a_hang_costs_its_environment_and_the_time_limit_is_kept(
    wrapper: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = accel.train(configure(tmp_path, wrapper, max_seconds=4.0))
    assert summary.reason == "max_seconds = 4 reached" and summary.training_s < 20.0
    assert summary.environment_restarts >= 1
    assert f"raised EnvError: its environments hang: {told}" in capsys.readouterr().out


def test_environments_that_hang_in_one_step_are_interrupted_one_after_another() -> None:
    """Not once for all of them, after which the second would count as code that cannot be interrupted."""
    environment, times = make_vector_env("CartPole-v1", 3, wrappers=[f"{TROUBLED}HangsAtOnce"]), list[int]()
    with interruptible(environment.activity.now) as interrupt:

        def hung(why: str, count: int, seen: Seen) -> None:
            times.append(count)
            interrupt(EnvError(why), seen)

        with Watchdog(environment.activity, 1.0, 1.0, hung):
            environment.reset(seed=0)
            environment.step(np.zeros(3, np.int64))
    assert times == [1, 1, 1] and [failure.environment for failure in environment.failures] == [0, 1, 2]


@pytest.mark.parametrize("wrapper", ["Hangs", "HangsInReset", "HangsAtTheEnd"])
def test_the_end_of_a_run_waits_for_no_hang(wrapper: str, tmp_path: Path) -> None:
    """Four environments hang, each for much longer than the run may take."""
    limits: dict[str, object] = {"actor_timeout_s": 30.0, "peer_timeout_s": 60.0, "envs_per_actor": 4}
    is_stopped = wrapper == "HangsAtTheEnd"
    summary = accel.train(configure(tmp_path, wrapper, max_seconds=100.0 if is_stopped else 1.0, **limits))
    assert summary.reason == ("stopped by SIGTERM" if is_stopped else "max_seconds = 1 reached")
    assert summary.training_s < 20.0 and summary.environment_restarts == 0
    assert summary.learner_s["wait"] > summary.learner_s["record"], "the time of the hang is the learner's wait"
    kept = summary.updates and RunDirectory.open(tmp_path / "run", read_only=True).load_checkpoint().env_steps
    assert kept == (summary.env_steps if summary.updates else 0)


def test_an_unroll_that_takes_long_is_not_waited_for(tmp_path: Path) -> None:
    """Twenty seconds; a run that is asked to stop ends in the same way."""
    summary = accel.train(configure(tmp_path, "Laborious", max_seconds=1.0, unroll_length=1000))
    assert (summary.reason, summary.updates) == ("max_seconds = 1 reached", 0) and summary.training_s < 15.0


def test_a_hang_that_cannot_be_interrupted_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process is its caller's, and is not ended."""
    assert accel.train(configure(tmp_path, "UninterruptibleForAWhile", total_env_steps=300, envs_per_actor=1)).finished
    told = capsys.readouterr().out
    assert told.count("a step took longer than 1 s (--actor-timeout-s), and cannot be interrupted") == 1, told


def test_a_first_reset_that_hangs_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"a reset took longer than 2 s \(--peer-timeout-s\)"):
        accel.train(configure(tmp_path, "HangsInTheFirstReset"))


@pytest.mark.long
def test_environments_that_cannot_be_closed_cost_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert accel.train(configure(tmp_path, "HangsWhenClosed", total_env_steps=500)).finished
    assert "could not be closed: closing the environments took longer than 5 s" in caplog.text


@pytest.mark.parametrize(
    ("wrapper", "told"), [("Exits", r"left through exit\(0\)"), ("Bare", "raised BareError: the simulator broke")]
)
def test_an_environment_that_exits_is_an_error_with_a_checkpoint(wrapper: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=f"an environment {told}, and ended the run: mend it") as error:
        accel.train(configure(tmp_path, wrapper))
    assert error.value.exit_code != 0 and not (tmp_path / "run" / "summary.json").exists()
    assert RunDirectory.open(tmp_path / "run", read_only=True).load_checkpoint().env_steps > 0
    assert error.value.__notes__[0].endswith(f"accel train --resume {tmp_path}/run")


def test_a_run_that_never_began_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    run = tmp_path / "run"
    accel.train(configure(tmp_path, "Paced", total_env_steps=100))
    with pytest.raises(ConfigError, match="nothing left to do") as error:
        accel.train(configure(tmp_path, "Paced", total_env_steps=100), resume=run)
    assert not hasattr(error.value, "__notes__")


@contextmanager
def start(
    path: Path, wrapper: str, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command, with environments of the same kind; a test that fails does not wait for it."""
    words = ["--algorithm", "impala", "--actors", "0", "--envs-per-actor", "2", "--unroll-length", "16"]
    words += ["--wrapper", f"{TROUBLED}{wrapper}", "--actor-timeout-s", "1", "--checkpoint-interval-s", "0.01"]
    words += ["--results-dir", str(path), "--name", "run", "--batch-unrolls", "1", "--network", "mlp:16x1", *more]
    with subprocess.Popen(
        [sys.executable, "-m", "accel", "train", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as command:  # fmt: skip
        try:
            yield command
        finally:
            command.kill()


LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux, where a child of the command trains"
)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("wrapper", "status", "told"),
    [
        ("Uninterruptible", 3, "a step took longer than 1 s (--actor-timeout-s), and cannot be interrupted"),
        pytest.param("HoldsTheLock", 3, "and nothing in their process can run", marks=[LINUX, pytest.mark.long]),
        pytest.param("LeavesWell", 3, "the process that trains left with status 0, without a message", marks=LINUX),
        pytest.param(
            "Interrupts", 130, "stopped before the run could end in good order", marks=[LINUX, pytest.mark.long]
        ),
        pytest.param("Crashes", 139, "the process that trains was ended by SIGSEGV, without a message", marks=LINUX),
    ],
)
def test_a_command_tells_how_its_environments_end_it(wrapper: str, status: int, told: str, tmp_path: Path) -> None:
    with start(tmp_path, wrapper) as command:
        output, _ = command.communicate(timeout=300)
    assert command.returncode == status, output
    assert told in output and f"accel train --resume {tmp_path}/run" in output, output


@pytest.mark.long
@LINUX
def test_a_command_leaves_the_signals_of_its_process_as_they_were(tmp_path: Path) -> None:
    words = ["train", "--env", "CartPole-v1", "--actors", "0", "--network", "mlp:16x1", "--total-env-steps", "200"]
    words += ["--results-dir", str(tmp_path), "--name", "run"]
    program = f"""
import os, signal
from accel.cli import main
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
before, command = [signal.getsignal(number) for number in numbers], os.getpid()
assert main({words}) == 0
if os.getpid() == command:
    assert [signal.getsignal(number) for number in numbers] == before
    print("as they were")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "as they were" in done.stdout, done.stderr


@LINUX
@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--total-env-steps", "500"), 0, "the run is complete; then its process was still running 10 s later"),
        (("--wrapper", f"{TROUBLED}Exits"), EnvError.exit_code, "left through exit(0)"),
    ],
    ids=["complete", "failed"],
)
def test_a_command_ends_though_a_thread_of_its_environments_does_not(
    words: tuple[str, ...], status: int, told: str, tmp_path: Path
) -> None:
    with start(tmp_path, "NeverEnds", *words) as command:
        output, _ = command.communicate(timeout=300)
    assert command.returncode == status and told in output, output
    assert (tmp_path / "run" / "summary.json").exists() if status == 0 else output.count("accel:") == 1, output


@pytest.mark.slow
@pytest.mark.few(1)
@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_environments_have_started_ends_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    """Two simulators of each of two environments, one of them in a session of its own."""
    with start(tmp_path, "Simulator") as command:
        assert until(lambda: list(tmp_path.glob("run/checkpoints/step-*")), LIMIT_S)
        family = descendants(command.pid)
        assert sum(b"86400" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family) == 4
        command.send_signal(number)
        output, _ = command.communicate(timeout=300)
        assert until(lambda: not any(map(is_running, family)), LIMIT_S)
    assert command.returncode == (-signal.SIGKILL if number == signal.SIGKILL else EXIT_STOPPED), output
    assert (tmp_path / "run" / "summary.json").exists() == (number == signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.few(1)
@LINUX
@pytest.mark.parametrize("actors", [0, 1])
def test_daemons_of_environments_end_with_the_command(actors: int, tmp_path: Path) -> None:
    """Those that have left their session, and have no variable of it."""
    diary = tmp_path / "diary"
    words = ("--actors", str(actors), "--max-seconds", "0.1", "--launcher", "local")
    with start(tmp_path, "Daemon", *words, environment={"TROUBLED_DIARY": str(diary)}) as command:
        output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output
    daemons = [int(line) for line in diary.read_text().split()]
    assert daemons and not any(map(is_running, daemons))


@pytest.mark.slow
def test_an_evaluation_that_hangs_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits: dict[str, object] = {"peer_timeout_s": 60.0, "evaluate_every": 500}
    config = configure(tmp_path, "HangsInEvaluation", total_env_steps=1500, **limits)
    began = time.monotonic()
    assert accel.train(config).evaluation is None
    assert time.monotonic() < began + 0.5 * TIMEOUT_S
    assert "no more evaluations: its environments hang: a step took longer than 1 s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("phase", [STEPPING, PREPARING])
def test_an_activity_without_progress_is_told_until_it_goes_on(phase: int) -> None:
    activity, told = Activity(), list[tuple[str, int]]()
    activity.enter(phase)
    with Watchdog(activity, 0.5, 1.0, lambda why, times, _: told.append((why, times))):
        assert until(lambda: len(told) == 2, LIMIT_S)
        activity.words[0] += 1
        assert until(lambda: len(told) == 3, LIMIT_S)
        activity.enter(WAITING)
        time.sleep(0.6)
        count = len(told)
        time.sleep(1.2)
    assert [times for _, times in told[:3]] == [1, 2, 1] and len(told) == count
    assert all(("a step" if phase == STEPPING else "a reset") in why for why, _ in told)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_main_thread_that_has_gone_on_is_not_interrupted(goes_on: bool) -> None:
    activity = Activity()
    with interruptible(activity.now) as interrupt, nullcontext() if goes_on else pytest.raises(EnvError):
        seen = activity.now()
        activity.words[0] += goes_on
        timer = threading.Timer(0.1, interrupt, [EnvError("enough"), seen])
        timer.start()
        try:
            time.sleep(0.5)
        finally:
            timer.join()
