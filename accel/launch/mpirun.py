"""Starts mpirun for a user who did not, watches the ranks' heartbeats, and ends what would never end.

No wait is without a limit: for ranks that never come, a learner that falls silent, a job that does not end after its
learner has, or after it was asked to.
"""

from __future__ import annotations

import codecs
import logging
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from accel.display.text import show
from accel.supervision.clock import AwakeClock
from accel.supervision.heartbeat import DIRECTORY, HeartbeatReader, RankStatus, read_statuses
from accel.supervision.process_tree import ProcessTree
from accel.supervision.processes import is_running
from accel.system.request import REQUEST
from accel.system.signals import FORWARDED, STOP_SIGNALS, SecondInterrupt, handling
from accel.transport.launcher import mpirun_command

SAVE_S = 30.0
_LEAVE_S = 10.0
_KILL_S = 5.0
_POLL_S = 0.5
_ANSWER = ("sleep", "1")  # At times Open MPI 5 never hears that a remote process ended which ended at once.
_SESSIONS = "PRTE_MCA_prte_local_tmpdir_base"

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        status: mpirun's exit status; says nothing about the run.
        stopped: whether this process was asked to stop.
        learner: what the learner said last; None when it never came.
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


def run(
    arguments: Sequence[str],
    *,
    ranks: int,
    can_stop: Callable[[], bool],
    patience_s: float,
    request: str = "",
    settle: Callable[[], object] = lambda: None,
) -> Ended:
    """Run mpirun; the first stop signal becomes a request; a deliberate second Ctrl-C, or time, ends it.

    However mpirun or this process ends, what it has started here ends too: mpirun ends its ranks when it can, but not
    always its connections to other nodes.

    Args:
        arguments: the command.
        ranks: how many processes it starts.
        can_stop: whether the learner is ready for a request, asked once MPI has started. Before that there is nothing
            to save: mpirun is ended at once.
        patience_s: how long ranks may wait for each other at start and stop, and the learner may be silent.
        request: what its ranks are asked (``accel.system.request``).
        settle: called when mpirun has ended, before what is left of it is.
    """
    temporary = tempfile.TemporaryDirectory(prefix="accel-heartbeats-", ignore_cleanup_errors=True)
    with temporary as heartbeats, session_directory() as environment:
        asked = environment | {DIRECTORY: heartbeats, REQUEST: request}
        tree = ProcessTree(arguments, asked, stdout=subprocess.PIPE, session=True)
        job = _Job(tree.process, ranks, can_stop, patience_s, Path(heartbeats))
        with tree.process:
            try:
                with handling(STOP_SIGNALS, job.on_signal):
                    ended = job.watch()
                settle()  # which Ctrl-C ends
                return ended
            finally:
                tree.end(_KILL_S)


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
    """Of hosts (``name`` or ``name:slots``), those on which mpirun starts a process within ``timeout_s``, in order; all
    where there are none: mpirun says what is wrong with them."""
    until_s, quiet = time.monotonic() + timeout_s, subprocess.DEVNULL
    with session_directory() as environment:
        tries = [
            ProcessTree([*mpirun_command(1, hosts=(host,)), *_ANSWER], environment, stdout=quiet, stderr=quiet)
            for host in hosts
        ]
        for tree in tries:
            with suppress(subprocess.TimeoutExpired):
                tree.process.wait(max(until_s - time.monotonic(), 0.0))
            tree.end(_KILL_S)
    found = tuple(host for host, tree in zip(hosts, tries, strict=True) if tree.process.poll() == 0)
    for host in hosts if found else ():
        if host not in found:
            logger.warning("%s does not answer; its ranks start on the other hosts", host)
    return found or tuple(hosts)


class _Job:
    """One mpirun, from start to end; see ``run``."""

    def __init__(
        self, process: subprocess.Popen[bytes], ranks: int, can_stop: Callable[[], bool], patience_s: float, files: Path
    ) -> None:
        self._process, self._ranks, self._can_stop, self._patience_s = process, ranks, can_stop, patience_s
        self._reader, self._heartbeats = HeartbeatReader(), files
        self._output = process.stdout
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._known: dict[int, RankStatus] = {}
        self._heard_s: dict[int, float] = {}
        self._clock = AwakeClock(4 * _POLL_S)
        self._requests = 0
        self._is_second_interrupt = SecondInterrupt()
        self._limit_s = patience_s
        self._trouble = ""
        self._ending_since_s: float | None = None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The user's signal: a request to the learner, or an end."""
        is_second = self._is_second_interrupt(number)
        if self._requests and not is_second:
            return
        self._requests += 1
        if self._requests == 1 and self._joined and self._can_stop():
            self._limit_s = self._clock.s + SAVE_S + self._patience_s
            self._request()
        else:
            self._end()

    def _request(self) -> None:
        """Ask the learner to stop: at once where it is here, else by way of mpirun."""
        learner = self._known.get(0)
        if learner is not None and learner.host == socket.gethostname():
            with suppress(OSError):
                os.kill(learner.pid, FORWARDED)
                return
        self._process.send_signal(FORWARDED)

    def watch(self) -> Ended:
        """Pass the output on until mpirun has ended."""
        while (status := self._process.poll()) is None:
            self._pass_on(_POLL_S)
            self._clock.look()
            self._note(read_statuses(self._heartbeats))
            self._check()
        while self._pass_on(0.0):
            pass
        self._note(read_statuses(self._heartbeats))
        show(self._decoder.decode(self._reader.rest(), final=True))
        return Ended(status if status >= 0 else 128 - status, self._requests > 0, self._known.get(0), self._trouble)

    def _pass_on(self, timeout_s: float) -> bool:
        """Wait so long for output; whether there was some. Processes that outlive mpirun may hold it open."""
        if self._output is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            return False
        if not select.select([self._output], [], [], timeout_s)[0]:
            return False
        if not (chunk := os.read(self._output.fileno(), 1 << 16)):
            self._output = None
        text, statuses = self._reader.feed(chunk)
        self._note(statuses)
        show(self._decoder.decode(text))
        return chunk != b""

    @property
    def _joined(self) -> bool:
        """Whether MPI has started on every rank."""
        return any(status.phase in ("joined", "ended") for status in self._known.values())

    def _note(self, statuses: Sequence[RankStatus]) -> None:
        for status in statuses:
            known = self._known.get(status.rank)
            if known is None or known.beat < status.beat:
                self._known[status.rank], self._heard_s[status.rank] = status, self._clock.s

    def _check(self) -> None:
        """End the job when something is late."""
        learner, now_s = self._known.get(0), self._clock.s
        if self._ending_since_s is not None:
            if now_s > self._ending_since_s + _KILL_S:
                self._process.kill()
        elif failed := [status for status in self._known.values() if status.phase == "failed"]:
            self._end(f"{failed[0].where} could not start; its message is above")
        elif not self._joined:
            if now_s > self._limit_s:
                self._end(self._absent())
        elif learner is not None and learner.phase == "ended":
            if now_s > self._heard_s[0] + _LEAVE_S:
                self._end(f"mpirun was still running {_LEAVE_S:g} s after the learner had ended")
        elif self._requests and now_s > self._limit_s:
            self._end(f"it did not stop within {SAVE_S + self._patience_s:g} s")
        elif now_s > self._heard_s.get(0, 0.0) + self._patience_s:
            where = "the learner (rank 0)" if learner is None else f"the learner, {learner.where},"
            self._end(f"{where} gave no sign of life for {self._patience_s:g} s")

    def _absent(self) -> str:
        """Which ranks the others wait for."""
        never = [str(rank) for rank in range(self._ranks) if rank not in self._known]
        recent_s = self._clock.s - self._patience_s / 2.0
        here = socket.gethostname()
        silent = [
            status.where
            for rank, status in self._known.items()
            if self._heard_s[rank] < recent_s or (status.host == here and not is_running(status.pid))
        ]
        problems = [f"rank {', '.join(never)} never started"] if never else []
        problems += [f"{where} fell silent" for where in silent]
        what = "; ".join(problems) or "no rank is missing, but MPI does not start"
        return (
            f"MPI did not start within {self._patience_s:g} s: {what}. See the messages above, or raise "
            "--peer-timeout-s where nodes start slowly"
        )

    def _end(self, trouble: str = "") -> None:
        self._trouble = self._trouble or trouble
        if self._ending_since_s is None:
            self._ending_since_s = self._clock.s
        self._process.terminate()
