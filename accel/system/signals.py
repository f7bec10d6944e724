"""Turns stop signals into a reason that the learner's loop polls; actors ignore them and follow the learner."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

FORWARDED = signal.SIGUSR1  # What ``accel.launch.mpirun`` passes on for the user's own signal.
STOPPED = "stopped"
"""How the reasons begin that signals give."""
_PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, FORWARDED)


class Interrupted(BaseException):
    """Raised in somebody else's code that nobody waits for any longer, whose ``except Exception`` is not for this."""


DELIBERATE_S = 1.0


class SecondInterrupt:
    """Tells a second, deliberate Ctrl-C from signals that repeat a request.

    A batch system, systemd and launchers send the same signal to every process, then again from parent to child, and
    may send it once more when the time is up: what they mean by an order to die is SIGKILL. SIGINT that comes
    ``DELIBERATE_S`` after the first request is a person's.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None

    def __call__(self, number: int) -> bool:
        """Whether this signal, which has just come, means: at once."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        return number == signal.SIGINT and now_s - self._first_s >= DELIBERATE_S


class StopRequest:
    """Set by a signal; a deliberate second Ctrl-C ends the process at once, see ``SecondInterrupt``."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._is_second_interrupt = SecondInterrupt()

    def installed(self) -> AbstractContextManager[None]:
        """Handle the stop signals meanwhile; see ``handling``."""
        return handling(STOP_SIGNALS, self._note)

    def __call__(self) -> str | None:
        """Why the run should stop, or None."""
        return self._reason

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._is_second_interrupt(number):
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._reason = f"{STOPPED} on request" if number == FORWARDED else f"{STOPPED} by {signal.Signals(number).name}"


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals meanwhile, in the main thread, which gets them; what the caller of this process ignores (nohup)
    stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    heard = [number for number in numbers if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def interruptible(progress: Callable[[], object]) -> Iterator[Callable[[BaseException, object], None]]:
    """Meanwhile other threads can raise an exception in the main thread, where that runs Python code.

    They say which ``progress`` they saw: nothing is raised in a main thread that has gone on since.
    In a thread other than the main one, which cannot be interrupted, what is yielded does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda error, seen: None
        return
    main, asked = threading.get_ident(), list[tuple[BaseException, object]]()

    def raise_newest(_number: int, _frame: FrameType | None) -> None:
        if asked:
            error, seen = asked.pop()
            if progress() == seen:
                raise error

    def interrupt(error: BaseException, seen: object) -> None:
        asked.append((error, seen))
        signal.pthread_kill(main, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, raise_newest)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGUSR2, before)


def parent_death(number: int) -> Callable[[], object] | None:
    """A function that has ``number`` sent to the process which calls it when its parent dies, however that happens.

    It may come once for each thread of the parent. Fit to be called between fork and exec. None where there is no such
    thing: elsewhere than on Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(number))


def end_with_parent(number: int) -> None:
    """``parent_death`` for this process, for as long as it lives."""
    tie = parent_death(number)
    if tie is not None:
        tie()


def ignore_stop_signals() -> None:
    """For actors: they end when the learner says so, or is gone."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def terminations_interrupt() -> AbstractContextManager[None]:
    """Meanwhile SIGTERM and SIGHUP raise KeyboardInterrupt, so that unfinished work is undone; in the main thread."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return handling((signal.SIGTERM, signal.SIGHUP), interrupt)
