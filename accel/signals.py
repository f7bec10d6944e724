"""Turns stop signals into a reason that the learner's loop polls; actors ignore them and follow the learner."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Set by a signal. The same one again (but SIGUSR1) ends the process at once; a launcher's SIGTERM after the
    terminal's SIGINT does not, so that a checkpoint under way is finished."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._seen: set[int] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the stop signals meanwhile; in a thread other than the main one, which gets no signals, nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __call__(self) -> str | None:
        """Why the run should stop, or None."""
        return self._reason

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number in self._seen and number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._seen.add(number)
        self._reason = f"stopped by {signal.Signals(number).name}"


def ignore_stop_signals() -> None:
    """For actors: they end when the learner says so, or is gone."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
