"""``accel train`` on one machine, on Linux: what trains is a child of the command, which outlives it.

With ``--actors 0`` learner and environments share one process, and environments are other people's code: they crash,
leave, hang, and start processes. The command reports an end that the child could not report, is never done with status
0 without a summary, ends a child that hangs where nothing in its process can run, and ends whatever the child has
started. The child is a fork: it has the terminal, for a debugger too, and costs no second start.
"""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import signal
import sys
import time
from contextlib import AbstractContextManager
from types import FrameType
from typing import NoReturn

from accel.display.errors import report_errors
from accel.display.text import show
from accel.errors import EXIT_ABORTED, JobError
from accel.launch.outcome import (
    EXIT_INTERRUPTED,
    WRITER_S,
    how_it_ended,
    how_to_continue,
    status_of,
    summary_of,
)
from accel.launch.train import start
from accel.runs.directory import wait_for_writer
from accel.runs.job import Job
from accel.supervision.activity import PREPARING, WORDS, Activity, Seen, Watchdog
from accel.supervision.clock import AwakeClock
from accel.supervision.process_tree import MARK, TreeKiller, new_mark
from accel.system.signals import FORWARDED, STOP_SIGNALS, SecondInterrupt, end_with_parent, handling

_POLL_S = 0.02
_AWAKE_S = 1.0  # Where the command itself slept for longer, with Ctrl-Z, its child was not silent meanwhile.
_LEAVE_S = 10.0
_KILLER_S = 5.0
_HUNG_TIMES = 3  # The child itself interrupts its environments the first time, and leaves the second.

logger = logging.getLogger("accel")


def train_in_child(job: Job) -> int:
    """Train in a child; returns the exit status, that of its summary where this job has written one.

    In the child this raises SystemExit.

    Raises:
        JobError: the child ended without a word.
    """
    memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
    activity, mark, command = Activity(memory[:WORDS]), new_mark(), os.getpid()
    activity.enter(PREPARING)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with handling((signal.SIGINT, FORWARDED), _interrupt):  # Until both have handlers of their own.
        child = os.fork()
        if child == 0:
            end_with_parent(signal.SIGKILL)
            if os.getppid() != command:
                os._exit(EXIT_ABORTED)
            faulthandler.enable()
            os.environ[MARK] = mark
            status = _train(job, activity, memory[WORDS:])
            # What is forwarded from now on comes too late, and the defaults that return would end this by it.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, FORWARDED))
            sys.exit(status)
        return _Command(job, child, TreeKiller(mark), activity, memory[WORDS:]).wait()


def _train(job: Job, activity: Activity, said: memoryview) -> int:
    """The child's part; its messages are all out when it says so: one more than its exit status."""
    status = EXIT_ABORTED

    def leave(status: int) -> NoReturn:
        said[0] = 1 + status
        os._exit(status)

    def work() -> int:
        summary = start(job, leave=leave, activity=activity)
        show(f"{summary.text()}\n")
        return status_of(summary)

    try:
        status = report_errors(work, "accel train")
        return status
    finally:
        said[0] = 1 + status


class _Command:
    """The command's part: it waits for the child, forwards stop signals, and ends what does not end."""

    def __init__(self, job: Job, child: int, killer: TreeKiller, activity: Activity, said: memoryview) -> None:
        self._job, self._child, self._killer, self._activity, self._said = job, child, killer, activity, said
        self._requests: list[int] = []
        self._trouble = ""

    def wait(self) -> int:
        """The exit status. Raises JobError."""
        options = self._job.config
        limits_s = options.acting.actor_timeout_s, options.run.peer_timeout_s
        try:
            with self._forwarding(), Watchdog(self._activity, *limits_s, self._on_hang):
                status = self._wait()
        finally:
            self._killer.end(_KILLER_S)
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"
        if (summary := summary_of(self._job)) is not None:
            if status != status_of(summary):
                logger.warning("%s; then %s", how_it_ended(summary), self._trouble or f"its process {how}")
            return status_of(summary)
        said = (status if status > 0 else self._said[0] - 1) if self._said[0] else 0
        if said not in (0, EXIT_INTERRUPTED):
            return int(said)
        wait_for_writer(self._job.path, WRITER_S)
        kept = f". {how_to_continue(self._job)}" if self._job.path.exists() else ""
        if self._requests or said == EXIT_INTERRUPTED:  # By its user, or an environment that takes signals itself.
            raise JobError(f"stopped before the run could end in good order{kept}", EXIT_INTERRUPTED)
        if self._trouble:
            raise JobError(f"{self._trouble}{kept}", EXIT_ABORTED)
        why = f"the process that trains {how}, without a message"
        if options.acting.actors == 0:
            why += "; an environment may have ended it"
        raise JobError(f"{why}{kept}", (128 - status if status < 0 else status) or EXIT_ABORTED)

    def _wait(self) -> int:
        """Until the child has ended; its status, or minus the signal that ended it."""
        said_at_s: float | None = None
        stopped_at_s: float | None = None
        clock, most_s = AwakeClock(_AWAKE_S), self._job.config.run.peer_timeout_s
        while True:
            # Orphans come to the command, which lets them go.
            found, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            now_s = clock.look()
            if found == self._child:
                if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                    self._child = 0
                    return os.waitstatus_to_exitcode(status)
                stopped_at_s = now_s if os.WIFSTOPPED(status) else None
            if stopped_at_s is not None and now_s > stopped_at_s + most_s:
                self._end(f"the process that trains was stopped, by SIGSTOP say, for {most_s:g} s")
            if self._said[0]:
                said_at_s = said_at_s or time.monotonic()
                if time.monotonic() > said_at_s + _LEAVE_S:  # Threads of an environment that never end, say.
                    self._end(f"its process was still running {_LEAVE_S:g} s later")
            time.sleep(_POLL_S)

    def _on_hang(self, why: str, times: int, _seen: Seen) -> None:
        if times >= _HUNG_TIMES and not self._said[0]:
            self._end(f"{why}, and nothing in their process can run")

    def _end(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._child:
            os.kill(self._child, number)

    def _forwarding(self) -> AbstractContextManager[None]:
        """The first stop signal asks the child to stop, which may have it from the terminal too; a deliberate second
        Ctrl-C ends it."""
        is_second_interrupt = SecondInterrupt()

        def forward(number: int, _frame: FrameType | None) -> None:
            if is_second_interrupt(number):
                self._send(signal.SIGKILL)
            self._requests.append(number)
            self._send(FORWARDED)

        return handling(STOP_SIGNALS, forward)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, FORWARDED):  # A terminal's signal comes to the child twice.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
