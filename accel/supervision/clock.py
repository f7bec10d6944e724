"""A monotonic clock that excludes its own suspension, for measuring the silence of others."""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Seconds of this process while it runs.

    Time in which it was stopped or did other things, or the machine slept, is nobody's silence.

    Args:
        most_s: what passes between two looks at most; what is more is left out. monotonic: seconds of any beginning.
    Attributes:
        s: at the last look.
    """

    def __init__(self, most_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.s = 0.0
        self._most_s, self._monotonic, self._last_s = most_s, monotonic, monotonic()

    def look(self) -> float:
        """Now, since the start."""
        now_s = self._monotonic()
        self.s += min(now_s - self._last_s, self._most_s)
        self._last_s = now_s
        return self.s
