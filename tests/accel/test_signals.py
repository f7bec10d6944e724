"""Stop signals become a reason to stop, once; actors ignore them; how mpirun is started, asked and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from accel.cli import mpirun
from accel.system.signals import FORWARDED, STOP_SIGNALS, StopRequest, ignore_stop_signals
from tests.mpi.training_runs import is_running

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).touch()
print("up", flush=True)
time.sleep(1000)
"""


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def is_waiting(thread: int) -> bool:
    """Whether a thread is waiting for a process to end."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not subprocess.Popen.wait.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_a_reason_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop.installed():
        assert stop() is None
        signal.raise_signal(number)
        assert stop() == ("stopped on request" if number == FORWARDED else f"stopped by {number.name}")
    assert signal.getsignal(number) is before


def test_a_launchers_sigterm_after_the_terminals_sigint_is_no_second_request() -> None:
    stop = StopRequest()
    with stop.installed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(FORWARDED)
        signal.raise_signal(FORWARDED)
        assert stop() is not None


def test_the_same_signal_twice_ends_the_process() -> None:
    program = (
        "import signal; from accel.system.signals import StopRequest\n"
        "with StopRequest().installed():\n signal.raise_signal(15); print('once', flush=True); signal.raise_signal(15)"
    )
    done = subprocess.run(python(program), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGTERM, "once")


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.installed():
            signal.raise_signal(signal.SIGHUP)
            assert stop() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_needs_no_handlers() -> None:
    reasons: list[str | None] = []

    def work() -> None:
        stop = StopRequest()
        with stop.installed():
            reasons.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reasons == [None]


def test_actors_ignore_what_stops_the_learner() -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        ignore_stop_signals()
        for number in STOP_SIGNALS:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "times", "ready", "status"),
    [(signal.SIGINT, 1, True, 7), (signal.SIGINT, 1, False, -signal.SIGTERM), (FORWARDED, 2, True, 7)],
)
def test_a_stop_signal_asks_ranks_that_are_ready_and_ends_others(
    number: signal.Signals, times: int, ready: bool, status: int, tmp_path: Path
) -> None:
    up, mine = tmp_path / "up", threading.get_ident()

    def press() -> None:
        while not (up.exists() and is_waiting(mine)):
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=press)
    thread.start()
    ended = mpirun.run(python(CHILD, str(up)), can_stop=lambda: ready)
    thread.join()
    assert ended == mpirun.Ended(status, True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_ends_by_itself_was_not_stopped() -> None:
    assert mpirun.run(python("raise SystemExit(5)"), can_stop=lambda: True) == mpirun.Ended(5, False)
    results: list[mpirun.Ended] = []
    thread = threading.Thread(target=lambda: results.append(mpirun.run(python(""), can_stop=lambda: True)))
    thread.start()
    thread.join()
    assert results == [mpirun.Ended(0, False)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux, which tells a child of its parent's end")
def test_a_killed_starter_takes_its_command_with_it(tmp_path: Path) -> None:
    program = f"from accel import mpirun\nmpirun.run({python(CHILD, str(tmp_path / 'up'))!r}, can_stop=lambda: True)"
    starter = subprocess.Popen(python(program), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None and starter.stdout.readline().strip() == "up"
    starter.kill()
    starter.wait()
    # The pipe's other end is the command's: it ends with it.
    watcher = threading.Thread(target=starter.stdout.read, daemon=True)
    watcher.start()
    watcher.join(100)
    assert not watcher.is_alive()
    starter.stdout.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's prctl")
def test_a_tied_process_ends_with_its_parent() -> None:
    child = (
        "import signal, time\n"
        "from accel.system.signals import end_with_parent, ignore_stop_signals; ignore_stop_signals();"
        "end_with_parent(signal.SIGKILL); print('tied', flush=True); time.sleep(1000)"
    )
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    while is_running(pid):
        time.sleep(0.01)
