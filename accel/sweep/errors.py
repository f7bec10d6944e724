"""What can go wrong with a sweep as a whole; invalid options are ``ConfigError``."""

from __future__ import annotations

from accel.errors import AccelError


class SweepError(AccelError):
    """A study cannot be opened or shared, every trial failed, or no trial meets the constraints."""
