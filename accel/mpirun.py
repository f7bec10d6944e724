"""Starts mpirun for a user who did not, and passes stop signals on so that the learner ends in good order."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence

STOP_SIGNAL = signal.SIGUSR1
KILL_AFTER_S = 30


def run(arguments: Sequence[str]) -> int:
    """Run mpirun in a session of its own; Ctrl-C and SIGTERM become one stop request, a second one kills.

    Returns:
        mpirun's exit status.
    """
    process = subprocess.Popen(arguments, start_new_session=True, stdin=subprocess.DEVNULL)
    requests = 0

    def forward(signum: int, _frame: object) -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            process.send_signal(STOP_SIGNAL)
            signal.alarm(KILL_AFTER_S)
        else:
            process.terminate()

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        return process.wait()
    finally:
        signal.alarm(0)
        for number, handler in previous.items():
            signal.signal(number, handler)
