"""Stop signals become a reason to stop, once; actors ignore them; how mpirun is started, asked and ended."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.launch import mpirun
from accel.supervision.heartbeat import HeartbeatReader, RankStatus, encode
from accel.supervision.processes import descendants, is_running
from accel.system.signals import FORWARDED, STOP_SIGNALS, StopRequest
from accel.transport.launcher import mpirun_command
from tests.contracts.ranks import need_mpirun
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
# Takes the place of mpirun and of its only rank.
CHILD = """
import signal, sys, time
from accel.supervision.heartbeat import Heartbeat
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
heartbeat = Heartbeat(0)
heartbeat.say("joined")
print("up", flush=True)
time.sleep(1000)
"""


def python(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


def run(program: str, *, ready: bool = True, patience_s: float = 100.0) -> mpirun.Ended:
    """What the starting command does with a launcher of one rank."""
    return mpirun.run(python(program), ranks=1, can_stop=lambda: ready, patience_s=patience_s)


def pressing(monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
    """Send a signal to this process once its command has said that it is up."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)

    def press() -> None:
        until(lambda: "up\n" in shown.getvalue(), 300.0)
        for _ in range(times):
            os.kill(os.getpid(), number)

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_a_reason_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop.installed():
        assert stop() is None
        signal.raise_signal(number)
        assert stop() == ("stopped on request" if number == FORWARDED else f"stopped by {number.name}")
    assert signal.getsignal(number) is before


def test_only_a_deliberate_second_ctrl_c_ends_the_process() -> None:
    program = (
        "import signal, time; from accel.system.signals import DELIBERATE_S, StopRequest\n"
        "with StopRequest().installed():\n"
        " for number in (2, 2, 15, 15, 1, 1): signal.raise_signal(number)\n"
        " time.sleep(DELIBERATE_S)\n"
        " for number in (15, 1, 10): signal.raise_signal(number)\n"
        " print('here', flush=True); signal.raise_signal(2); print('never')"
    )
    done = subprocess.run(python(program), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGINT, "here")


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.installed():
            signal.raise_signal(signal.SIGHUP)
            assert stop() is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "times", "ready", "status"),
    [(signal.SIGINT, 1, True, 7), (signal.SIGINT, 1, False, 128 + signal.SIGTERM), (FORWARDED, 2, True, 7)],
)
def test_a_stop_signal_asks_ranks_that_are_ready_and_ends_others(
    number: signal.Signals, times: int, ready: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressing(monkeypatch, number, times)
    ended = run(CHILD, ready=ready)
    assert (ended.status, ended.stopped, ended.trouble) == (status, True, "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_that_ends_by_itself_was_not_stopped() -> None:
    """Also where it is started in another thread than the main one, which gets no signals."""
    assert run("raise SystemExit(5)") == mpirun.Ended(5, False, None, "")
    with ThreadPoolExecutor(1) as other:
        assert other.submit(run, "").result() == mpirun.Ended(0, False, None, "")


def test_a_rank_that_never_comes_ends_the_job() -> None:
    ended = run("import time; time.sleep(1000)", patience_s=1.0)
    assert ended.status == 128 + signal.SIGTERM and "rank 0 never started" in ended.trouble


@pytest.mark.slow
def test_a_learner_that_falls_silent_ends_the_job_even_if_the_launcher_refuses() -> None:
    silent = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + CHILD.replace(
        "sleep", "sleep;heartbeat.stop();time.sleep"
    )
    ended = run(silent, patience_s=5.0)
    assert ended.status == 128 + signal.SIGKILL and "gave no sign of life for 5 s" in ended.trouble
    assert ended.learner is not None and not ended.learner_ended


def test_the_learners_last_word_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "from accel.supervision.heartbeat import Heartbeat\n"
        "heartbeat = Heartbeat(0)\nprint('é', flush=True)\nheartbeat.say('ended', 2)"
    )
    ended = run(program)
    assert ended.learner is not None and ended.learner_ended and ended.learner.status == 2
    assert capsys.readouterr().out == "é\n"


@given(st.lists(st.one_of(st.binary(), st.integers(0, 9)), max_size=8), st.integers(1, 50))
def test_statuses_are_separated_from_the_output_wherever_it_is_cut(parts: list[bytes | int], size: int) -> None:
    """Integers stand for statuses; random bytes hold no whole one."""
    statuses = [RankStatus(part, "host", 1, "joined") for part in parts if isinstance(part, int)]
    stream = b"".join(
        part if isinstance(part, bytes) else encode(RankStatus(part, "host", 1, "joined")) for part in parts
    )
    reader, text, found = HeartbeatReader(), b"", list[RankStatus]()
    for start in range(0, len(stream), size):
        piece, new = reader.feed(stream[start : start + size])
        text, found = text + piece, found + new
    assert text + reader.rest() == b"".join(part for part in parts if isinstance(part, bytes))
    assert found == statuses


def test_half_a_status_holds_nothing_back() -> None:
    """An environment prints one: what follows it is shown at once, and the learner's own is seen."""
    reader, status = HeartbeatReader(), RankStatus(0, "host", 1, "joined")
    assert reader.feed(b"\x1b]accel;never ended\n") == (b"\x1b]accel;never ended\n", [])
    text, found = reader.feed(b"\x1b]accel;" + encode(status))
    assert found == [status] and text == b"\x1b]accel;"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux, which tells a child of its parent's end")
def test_a_killed_starter_takes_its_command_with_it() -> None:
    start = f"mpirun.run({python(CHILD)!r}, ranks=1, can_stop=lambda: True, patience_s=100.0)"
    program = f"from accel.launch import mpirun\n{start}"
    starter = subprocess.Popen(python(program), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None and starter.stdout.readline().strip() == "up"
    started = descendants(starter.pid)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert until(lambda: not any(map(is_running, started)))


@pytest.mark.mpi
def test_the_files_of_a_killed_mpirun_do_not_matter_to_a_later_one_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpirun()
    for name in [name for name in os.environ if name.startswith("PRTE_MCA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    left = f'mkdir "{tmp_path}/ompi.$$" && touch "{tmp_path}/ompi.$$/pmix.{socket.gethostname().split(".")[0]}.tool"'
    command = ["sh", "-c", f'{left} && exec "$@"', "sh", *mpirun_command(1), "true"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0  # So Open MPI does by itself.
    assert mpirun.run(command, ranks=1, can_stop=lambda: True, patience_s=100.0).status == 0
    killed = ["sh", "-c", 'touch "$PRTE_MCA_prte_local_tmpdir_base/ompi.$$"; kill -9 $$']
    assert mpirun.run(killed, ranks=1, can_stop=lambda: True, patience_s=100.0).status == 128 + signal.SIGKILL
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"ompi"}


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="needs Intel MPI's launcher on the PATH (impi_rt)")
def test_intels_launcher_passes_a_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pressing(monkeypatch, signal.SIGINT)
    launcher = Path(str(shutil.which("mpiexec.hydra"))).with_name("mpirun")
    ended = mpirun.run(
        [*mpirun_command(1, mpirun=launcher), *python(CHILD)], ranks=1, can_stop=lambda: True, patience_s=100.0
    )
    assert (ended.status, ended.stopped, ended.trouble) == (7, True, "")
