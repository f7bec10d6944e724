"""Starts mpirun for a user who did not, and passes stop signals on so that the learner ends in good order."""

from __future__ import annotations

import math
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from accel.system.signals import FORWARDED, handle, parent_death

SAVE_S = 30
USER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, FORWARDED)


@dataclass(frozen=True)
class Ended:
    """How mpirun ended: its exit status, and whether this process was asked to stop."""

    status: int
    stopped: bool


def run(arguments: Sequence[str], *, can_stop: Callable[[], bool], patience_s: float = 0.0) -> Ended:
    """Run mpirun in a session of its own; the first stop signal becomes a request, a second one, or time, ends it.

    However this process ends, mpirun is told (on Linux).

    Args:
        arguments: the command.
        can_stop: whether every rank is ready for a request. Before that, ranks that it kills would leave others waiting
            for them, and there is nothing to save: mpirun is ended at once.
        patience_s: how long ranks may wait for each other once they are asked to stop; then there is time to save.
    """
    started: list[subprocess.Popen[bytes]] = []
    requests = 0

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal requests
        if number == FORWARDED and requests:
            return  # a parent's death is told once for each of its threads
        requests += 1
        if requests == 1:
            signal.alarm(SAVE_S + math.ceil(patience_s))
        for process in started:
            process.send_signal(FORWARDED if requests == 1 and can_stop() else signal.SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    before = handle(USER_SIGNALS, forward) if is_main else {}
    try:
        tie = parent_death(signal.SIGTERM)
        process = subprocess.Popen(arguments, start_new_session=True, stdin=subprocess.DEVNULL, preexec_fn=tie)
        started.append(process)
        if requests:
            process.terminate()
        return Ended(process.wait(), requests > 0)
    finally:
        if is_main:
            signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
