"""Which compression level each actor gets while training runs: fixed, annealed, or tuned."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from accel.experience.unroll import Unroll
from accel.json_object import Json
from accel.monitor.annealing import AnnealingSchedule
from accel.monitor.decisions import DecisionLog
from accel.monitor.timers import PhaseTimes
from accel.publishing.publisher import Publisher

Metrics = dict[str, float | int | str | None]

logger = logging.getLogger("accel")


class Steering(Protocol):
    """Observes the run and decides what is published to whom."""

    def admit(self, actor: int, unroll: Unroll) -> None:
        """Take in an unroll, in its actor's order, before it is learned from or dropped."""
        ...

    def hear(self, actor: int, message: Json) -> bool:
        """Take in an actor's report; False if it is not for the steering."""
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

    def hear(self, actor: int, message: Json) -> bool:
        """False: no report is for it."""
        return False

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


class AnnealedSteering(FixedSteering):
    """Every actor gets the schedule's level for the environment steps learned from so far.

    Args:
        schedule: the levels, all of which the publisher knows.
        publisher: compresses.
        log: gets every change.
        env_steps: learned from so far in a resumed run, whose first level is not a change.
    Raises:
        ConfigError: a level does not suit the network.
    """

    def __init__(self, schedule: AnnealingSchedule, publisher: Publisher, log: DecisionLog, env_steps: int = 0) -> None:
        self._schedule = schedule
        self._publisher = publisher
        self._log = log
        self.level = schedule.level_at(env_steps)
        # Bound before training begins, so that a scheme that does not suit the network fails at once.
        publisher.set_levels(schedule.levels)
        publisher.set_levels([self.level])

    def due(self) -> bool:
        """Always true, as ``step`` costs one comparison."""
        return True

    def step(self, env_steps: int, learner_times: PhaseTimes) -> None:
        """Change the level when the schedule does."""
        level = self._schedule.level_at(env_steps)
        if level == self.level:
            return
        began = self._schedule.began_at(env_steps)
        self._log.write(env_steps, None, "anneal", self.level, level, f"the schedule has {level} from step {began} on")
        logger.info("actors change from %s to %s, as scheduled from step %d on", self.level, level, began)
        self.level = level
        self._publisher.set_levels([level])

    def policies(self, payloads: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The payloads, unchanged: there is one level, and actors without an assignment get the first."""
        return payloads

    def metrics(self) -> Metrics:
        """The level in use."""
        return {"level": self.level}
