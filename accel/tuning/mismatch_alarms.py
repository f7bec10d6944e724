"""Mismatch alarms of a run: when they begin and end. Each is logged once."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from accel.monitor.mismatch import KL_ALARM, STALENESS_KL_ALARM, Mismatch

CALM_RECORDS = 5

logger = logging.getLogger("accel")


class MismatchAlarms:
    """One for each factor, quantity and scheme, at the levels of ``accel.monitor.mismatch``.

    An alarm is logged when it first begins, and is active until ``CALM_RECORDS`` consecutive records with samples were
    without it, also for a scheme that no longer acts.
    """

    def __init__(self) -> None:
        self._active: dict[tuple[str, str, str], tuple[str, int]] = {}  # sentence, and records since without it
        self._told: set[tuple[str, str, str]] = set()

    def __str__(self) -> str:
        """The sentences of active alarms, separated by "; "."""
        return "; ".join(sentence for sentence, _ in self._active.values())

    def look(self, found: Mapping[str, Mapping[str, Mismatch]]) -> None:
        """Begin and end alarms from one record's means, by scheme, then by factor."""
        sentences = {
            (scheme, factor, quantity): f"{factor} of {scheme}: {clause}"
            for scheme, factors in found.items()
            for factor, mean in factors.items()
            for quantity, clause in mean.alarms(KL_ALARM if factor == "compression" else STALENESS_KL_ALARM).items()
        }
        for key, (sentence, calm) in [*self._active.items()]:
            self._active[key] = sentence, calm + 1
            if calm + 1 == CALM_RECORDS:
                del self._active[key]
        self._active |= {key: (sentence, 0) for key, sentence in sentences.items()}
        if begun := [sentence for key, sentence in sentences.items() if key not in self._told]:
            self._told |= sentences.keys()
            logger.warning("mismatch alarm: %s (reported once; metrics have the rest)", "; ".join(begun))
