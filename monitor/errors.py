"""Named errors of the monitor: each message says what was wrong and what to do."""

from __future__ import annotations


class MonitorError(Exception):
    """Base of every error that this package raises."""


class StatisticsError(MonitorError, ValueError):
    """A sample is too small, not finite or of the wrong shape for the statistic that was asked for."""


class RecorderError(MonitorError):
    """A metrics file cannot be written or is not a metrics file."""


class MismatchError(MonitorError, ValueError):
    """An argument of a mismatch measurement has the wrong shape, kind or range."""
