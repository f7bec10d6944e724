"""Which compression level actors get while training runs: fixed here, or tuned (``autotune.py``)."""

from __future__ import annotations

from accel.experience.unroll import Unroll
from accel.monitor.timers import Times

Metrics = dict[str, float | int | str | None]


class Steering:
    """Observes the run and decides at which level policies are published; this one knows only one."""

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Take in an unroll, in its actor's order, before it is learned from or dropped."""

    def lose(self, actor: int) -> None:
        """An actor died."""

    def due(self) -> bool:
        """Whether ``step`` is due; called after every update, so it must be cheap."""
        return False

    def step(self, env_steps: int, learner_times: Times) -> None:
        """Look at the run, of which so many steps are learned from, and decide; learner_times: totals."""

    def metrics(self) -> Metrics:
        """Numbers for the metrics record."""
        return {}
