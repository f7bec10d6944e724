"""Which compression level actors get while training runs: fixed, or tuned (``autotune.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from accel.experience.unroll import Unroll
from accel.monitor.timers import PhaseTimes

Metrics = dict[str, float | int | str | None]


class Steering(Protocol):
    """Observes the run and decides what is published to whom."""

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Take in an unroll, in its actor's order, before it is learned from or dropped."""
        ...

    def lose(self, actor: int) -> None:
        """An actor died."""
        ...

    def due(self) -> bool:
        """Whether ``step`` is due; called after every update, so it must be cheap."""
        ...

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """Look at the run and decide.

        Args:
            env_steps: learned from so far.
            learner_times: totals by phase; all but ``wait`` counts as work.
        """
        ...

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """What to publish, from the payloads of the levels in use (at least one); assigns it to actors."""
        ...

    def metrics(self) -> Metrics:
        """Numbers for the metrics record."""
        ...


class FixedSteering:
    """The identity: every actor gets the only level."""

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Ignored."""

    def lose(self, actor: int) -> None:
        """Nothing changes."""

    def due(self) -> bool:
        """Never."""
        return False

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """Nothing to decide."""

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The payloads, unchanged."""
        return payloads

    def metrics(self) -> Metrics:
        """None."""
        return {}
