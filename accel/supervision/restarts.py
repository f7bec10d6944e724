"""When a process that failed is started again: exponential back-off, which ten seconds of uptime reset."""

from __future__ import annotations

import signal
from collections.abc import Mapping

STEADY_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0


class Restarts:
    """Failures in a row of one process and its replacements.

    Attributes:
        failures: in a row.
    """

    def __init__(self) -> None:
        self.failures = 0

    def fail(self, most: int, is_steady: bool) -> float | None:
        """Count a failure.

        Args:
            most: failures in a row after which the process is started again.
            is_steady: whether it had worked for ``STEADY_S``, which ends the row.
        Returns:
            Seconds until it is started again; None: it is not.
        """
        self.failures = 1 if is_steady else self.failures + 1
        if self.failures > most:
            return None
        return min(_FIRST_PAUSE_S * 2.0 ** (self.failures - 1), _LONGEST_PAUSE_S)


def describe_end(status: int, last_words: Mapping[str, object]) -> str:
    """How a process ended.

    Args:
        status: as of ``subprocess.Popen.returncode``. last_words: its last message; ``error`` is what it raised.
    """
    if "error" in last_words:
        return f"it raised {last_words['error']}"
    if status >= 0:
        return f"its process left through exit({status})"
    try:
        return f"its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was ended by signal {-status}"
