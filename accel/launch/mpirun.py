"""Starts mpirun for a user who did not, watches the ranks' signs of life, and ends what would never end.

No wait is without a limit: for ranks that never come, a learner that falls silent, a job that does not end after its
learner has, or after it was asked to.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from accel.display.text import show
from accel.supervision.clock import ListeningClock
from accel.supervision.heartbeat import DIRECTORY, HeartbeatFiles, HeartbeatReader, RankStatus
from accel.supervision.processes import is_running
from accel.system.signals import FORWARDED, Insistence, handle, parent_death, restore
from accel.transport.launcher import mpirun_command

SAVE_S = 30.0
_LEAVE_S = 10.0
_KILL_S = 5.0
_POLL_S = 0.5
_SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"
USER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, FORWARDED)


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        status: mpirun's exit status; says nothing about the run.
        stopped: whether this process was asked to stop.
        learner: the learner's last sign; None when it never came.
        trouble: why this process ended the job; empty when it did not.
    """

    status: int
    stopped: bool
    learner: RankStatus | None
    trouble: str

    @property
    def learner_ended(self) -> bool:
        """Whether the learner ended by itself, well or not."""
        return self.learner is not None and self.learner.phase == "ended"


def run(arguments: Sequence[str], *, ranks: int, can_stop: Callable[[], bool], patience_s: float) -> Ended:
    """Run mpirun in a session of its own; the first stop signal becomes a request; a deliberate second Ctrl-C, or time,
    ends it.

    However this process ends, mpirun is told (on Linux).

    Args:
        arguments: the command.
        ranks: how many processes it starts.
        can_stop: whether the learner is ready for a request, asked once MPI has started. Before that there is nothing
            to save: mpirun is ended at once.
        patience_s: how long ranks may wait for each other at start and stop, and the learner may be silent.
    """
    is_main = threading.current_thread() is threading.main_thread()
    with tempfile.TemporaryDirectory(prefix="accel-signs-", ignore_cleanup_errors=True) as signs:
        job = _Job(ranks, can_stop, patience_s, Path(signs))
        before = handle(USER_SIGNALS, job.on_signal) if is_main else {}
        try:
            with session_directory() as environment:
                return job.watch(job.start(arguments, environment | {DIRECTORY: signs}))
        finally:
            restore(before)


@contextmanager
def session_directory() -> Iterator[dict[str, str]]:
    """This process's environment, in which Open MPI keeps its session files in a directory that is removed here.

    It names them after mpirun's process, and does not start where one that was killed left a directory of that name;
    process numbers come again. A user's ``prte_local_tmpdir_base`` gets that directory, ``prte_tmpdir_base`` is kept.
    """
    environment = dict(os.environ)
    if "PRTE_MCA_prte_tmpdir_base" in environment:  # which Open MPI does not take beside the other
        yield environment
        return
    place = environment.get(_SESSIONS)
    try:
        directory = tempfile.TemporaryDirectory(prefix="accel-mpirun-", dir=place, ignore_cleanup_errors=True)
    except OSError:  # Open MPI has its own ways to find or make a place, and its own words where it cannot.
        yield environment
        return
    with directory as path:
        yield environment | {_SESSIONS: path}


def answering(hosts: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Of hosts (``name`` or ``name:slots``), those on which mpirun starts a process within ``timeout_s``, in order."""
    quiet = subprocess.DEVNULL
    until_s = time.monotonic() + timeout_s
    with session_directory() as environment:
        tries = [
            subprocess.Popen(
                [*mpirun_command(1, hosts=(host,)), "true"],
                env=environment,
                start_new_session=True,
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
            )
            for host in hosts
        ]
        for process in tries:
            try:
                process.wait(max(until_s - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _end_session(process.pid, patience_s=0.0)
    return tuple(host for host, process in zip(hosts, tries, strict=True) if process.returncode == 0)


class _Job:
    """One mpirun, from start to end."""

    def __init__(self, ranks: int, can_stop: Callable[[], bool], patience_s: float, signs: Path) -> None:
        self._ranks = ranks
        self._can_stop = can_stop
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._reader, self._files = HeartbeatReader(), HeartbeatFiles(signs)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._signs: dict[int, RankStatus] = {}
        self._heard_s: dict[int, float] = {}
        self._clock = ListeningClock(4 * _POLL_S)
        self._requests = 0
        self._insists = Insistence()
        self._limit_s = patience_s
        self._trouble = ""
        self._ending_since_s: float | None = None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The user's signal: a request to the learner, or an end."""
        insists = self._insists(number)
        if self._requests and not insists:
            return
        self._requests += 1
        if self._process is None:
            return
        if self._requests == 1 and self._joined and self._can_stop():
            self._limit_s = self._clock.s + SAVE_S + self._patience_s
            self._request()
        else:
            self._end()

    def _request(self) -> None:
        """Ask the learner to stop: at once where it is here, else by way of mpirun."""
        learner = self._signs.get(0)
        if learner is not None and learner.host == socket.gethostname():
            with suppress(OSError):
                os.kill(learner.pid, FORWARDED)
                return
        if self._process is not None:
            self._process.send_signal(FORWARDED)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start mpirun."""
        process = self._process = subprocess.Popen(
            arguments,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=parent_death(signal.SIGTERM),
        )
        if self._requests:
            self._end()
        return process

    def watch(self, process: subprocess.Popen[bytes]) -> Ended:
        """Pass the output on until mpirun has ended."""
        while self._pass_on(process):
            self._clock.look()
            self._note(self._files.read())
            self._check()
        show(self._decoder.decode(self._reader.rest(), final=True))
        return Ended(_wait(process), self._requests > 0, self._signs.get(0), self._trouble)

    def _pass_on(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait a moment for output; whether there may be more. Processes that outlive mpirun may hold it open."""
        output = process.stdout
        is_over = process.poll() is not None
        if output is None:
            return not is_over
        while select.select([output], [], [], 0.0 if is_over else _POLL_S)[0]:
            chunk = os.read(output.fileno(), 1 << 16)
            self._take(chunk)
            if not chunk or not is_over:
                return chunk != b""
        return not is_over

    @property
    def _joined(self) -> bool:
        """Whether MPI has started on every rank."""
        return any(sign.phase in ("joined", "ended") for sign in self._signs.values())

    def _take(self, chunk: bytes) -> None:
        text, signs = self._reader.feed(chunk)
        self._note(signs)
        show(self._decoder.decode(text))

    def _note(self, signs: Sequence[RankStatus]) -> None:
        for sign in signs:
            known = self._signs.get(sign.rank)
            if known is None or known.phase != "ended":  # What mpirun forwards may come late.
                self._signs[sign.rank], self._heard_s[sign.rank] = sign, self._clock.s

    def _check(self) -> None:
        """Ends the job when something is late."""
        learner = self._signs.get(0)
        if self._ending_since_s is not None:
            if self._clock.s > self._ending_since_s + _KILL_S and self._process is not None:
                self._process.kill()
        elif failed := [sign for sign in self._signs.values() if sign.phase == "failed"]:
            self._end(f"{failed[0].where} could not start; its message is above")
        elif not self._joined:
            if self._clock.s > self._limit_s:
                self._end(self._absent())
        elif learner is not None and learner.phase == "ended":
            if self._clock.s > self._heard_s[0] + _LEAVE_S:
                self._end(f"mpirun was still running {_LEAVE_S:g} s after the learner had ended")
        elif self._requests and self._clock.s > self._limit_s:
            self._end(f"it did not stop within {SAVE_S + self._patience_s:g} s")
        elif self._clock.s > self._heard_s.get(0, 0.0) + self._patience_s:
            where = "the learner (rank 0)" if learner is None else f"the learner, {learner.where},"
            self._end(f"{where} gave no sign of life for {self._patience_s:g} s")

    def _absent(self) -> str:
        """Which ranks the others wait for."""
        never = [str(rank) for rank in range(self._ranks) if rank not in self._signs]
        recent_s = self._clock.s - self._patience_s / 2.0
        silent = [sign.where for rank, sign in self._signs.items() if self._heard_s[rank] < recent_s or _is_gone(sign)]
        problems = [f"rank {', '.join(never)} never started"] if never else []
        problems += [f"{where} fell silent" for where in silent]
        what = "; ".join(problems) or "no rank is missing, but MPI does not start"
        return (
            f"MPI did not start within {self._patience_s:g} s: {what}. See the messages above, or raise "
            "--peer-timeout-s where nodes start slowly"
        )

    def _end(self, trouble: str = "") -> None:
        self._trouble = self._trouble or trouble
        if self._process is None:
            return
        if self._ending_since_s is None:
            self._ending_since_s = self._clock.s
        self._process.terminate()


def _is_gone(sign: RankStatus) -> bool:
    """Whether a rank on this machine has ended, as far as the system tells."""
    return sign.host == socket.gethostname() and not is_running(sign.pid)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """mpirun's status; its output may have ended before it did."""
    try:
        status = process.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if process.stdout is not None:
        process.stdout.close()
    _end_session(process.pid)
    return status if status >= 0 else 128 - status


def _end_session(leader: int, patience_s: float = _KILL_S) -> None:
    """End what mpirun left behind: it ends its ranks when it can, but not always its connections to other nodes.

    What keeps an actor's processes (``accel.acting.supervisor``) ends them first, and then itself.
    """
    until_s = time.monotonic() + patience_s
    while (left := _in_session(leader)) and time.monotonic() < until_s:
        time.sleep(_POLL_S / 10.0)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _in_session(leader: int) -> list[int]:
    """Processes of a session that run."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            if os.getsid(pid) == leader and is_running(pid):
                found.append(pid)
    return found
