"""Mismatch alarms of a run: when they begin and end. Each is logged once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from accel.monitor.mismatch import KL_ALARM, STALENESS_KL_ALARM, Mismatch

CALM_RECORDS = 5

logger = logging.getLogger("accel")


class MismatchAlarms:
    """One for each factor, quantity and scheme, at the levels of ``accel.monitor.mismatch``.

    An alarm is logged when it first begins, and is active until ``CALM_RECORDS`` consecutive records with samples were
    without it, also for a scheme that no longer acts.
    """

    def __init__(self) -> None:
        self._holding: dict[str, str] = {}
        self._calm: dict[str, int] = {}
        self._told: set[str] = set()

    def __str__(self) -> str:
        """The sentences of active alarms, separated by "; "."""
        return "; ".join(self._holding.values())

    def look(self, found: Mapping[str, Mapping[str, Mismatch]]) -> None:
        """Begin and end alarms from one record's means, by scheme, then by factor."""
        begun: list[str] = []
        for scheme, factors in found.items():
            for factor, mean in factors.items():
                begun += self._look_at(scheme, factor, mean)
        self._calm_others(found)
        if begun:
            logger.warning("mismatch alarm: %s (reported once; metrics have the rest)", "; ".join(begun))

    def _look_at(self, scheme: str, factor: str, mean: Mismatch) -> list[str]:
        begun: list[str] = []
        level = KL_ALARM if factor == "compression" else STALENESS_KL_ALARM
        alarms = {alarm.quantity: alarm for alarm in mean.alarms(level)}
        for quantity in ("ess", "kl", "mean_weight"):
            key = f"{factor}_{quantity}/{scheme}"
            if quantity in alarms:
                sentence = f"{factor} of {scheme}: {alarms[quantity]}"
                if key not in self._told:
                    self._told.add(key)
                    begun.append(sentence)
                self._holding[key], self._calm[key] = sentence, 0
            elif key in self._holding:
                self._calm_down(key)
        return begun

    def _calm_others(self, measured: Collection[str]) -> None:
        """Other schemes were measured, so the scheme of this alarm no longer acts."""
        for key in [key for key in self._holding if key.partition("/")[2] not in measured]:
            self._calm_down(key)

    def _calm_down(self, key: str) -> None:
        """Count a record without this alarm; the alarm ends after ``CALM_RECORDS`` consecutive ones."""
        self._calm[key] += 1
        if self._calm[key] == CALM_RECORDS:
            del self._holding[key]
