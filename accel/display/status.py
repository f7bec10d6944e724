"""Progress of training and of playing, and its text in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from accel.display.text import count, duration, format_return, lag_number

_RATE = "actor_steps_per_s/"
_SHOWN_PHASES, _SHOWN_ACTORS = 4, 8
_NEEDED = ("elapsed_s", "env_steps", "env_steps_per_s", "episodes", "updates", "actors_alive")
_OPTIONAL = ("return_mean", "lag_min", "lag_mean", "lag_max", "dropped_unrolls", "slowest_actor")


@dataclass(frozen=True)
class EvaluationStatus:
    """What greedy episodes beside training earned.

    Attributes:
        mean: mean return of the newest policy that was played. env_steps: behind it. best: the best mean so far.
    """

    mean: float
    env_steps: int
    best: float

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Self | None:
        """The result in a record; None where it has none."""
        names = ("evaluation_return", "evaluation_env_steps", "evaluation_best_return")
        numbers = [value for name in names if isinstance(value := record.get(name), int | float)]
        if len(numbers) < len(names) or not all(map(math.isfinite, numbers)):
            return None
        return cls(numbers[0], int(numbers[1]), numbers[2])


@dataclass(frozen=True)
class TrainingStatus:
    """Progress of training.

    Attributes:
        elapsed_s: seconds of training so far.
        env_steps: valid steps consumed by the learner. total_env_steps: how many it will be at most.
        env_steps_per_s: their rate since the last status.
        episodes: finished training episodes. return_mean: mean return of the last ones, None before the first.
        return_target: the mean return at which the run stops, if it does.
        lag_min, lag_mean, lag_max: policy lag in versions since the last status, None without an unroll.
        learner_shares: each phase's share of the learner's time since the last status, in [0, 1], in order.
        actor_shares: the same over all actors.
        scheme: compression scheme of the actors' policy. updates: the newest policy's version.
        slowest_actor: the one with the fewest steps per second. slowest_share: its rate by the median actor's.
        actor_rates: steps per second by actor, slowest first, where there are several.
        actors_alive: of ``actors``. dropped_unrolls: too old to learn from, so far.
        evaluation: the newest result of greedy episodes beside training, None before the first.
    """

    elapsed_s: float
    env_steps: int
    total_env_steps: int
    env_steps_per_s: float
    episodes: int
    return_mean: float | None
    return_target: float | None
    lag_min: float | None
    lag_mean: float | None
    lag_max: float | None
    learner_shares: Mapping[str, float]
    actor_shares: Mapping[str, float]
    scheme: str
    updates: int
    actors_alive: int
    actors: int
    dropped_unrolls: int | None = None
    evaluation: EvaluationStatus | None = None
    slowest_actor: int | None = None
    slowest_share: float = 1.0
    actor_rates: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def from_record(
        cls,
        record: Mapping[str, object],
        *,
        total_env_steps: int,
        return_target: float | None,
        actors: int,
        evaluation: EvaluationStatus | None = None,
    ) -> Self:
        """The status in a flat metrics record of the trainer; shares are named ``learner_PHASE_share``.

        ``evaluation`` is the newest one before the record; one of the record's own takes its place.

        Raises: KeyError for a record without ``elapsed_s``, ``env_steps``, ``env_steps_per_s``, ``episodes``,
        ``updates``, ``scheme`` or ``actors_alive``; TypeError for one that is no number.
        """
        needed = {name: _number(record[name]) for name in _NEEDED}
        optional = {name: None if record.get(name) is None else _number(record[name]) for name in _OPTIONAL}
        least, median = (record.get(f"actor_steps_per_s_{name}") for name in ("min", "median"))
        rates = {name.removeprefix(_RATE): _number(rate) for name, rate in record.items() if name.startswith(_RATE)}
        return cls(
            **needed,  # type: ignore[arg-type]
            **optional,  # type: ignore[arg-type]
            total_env_steps=total_env_steps,
            return_target=return_target,
            learner_shares=_shares(record, "learner_"),
            actor_shares=_shares(record, "actor_"),
            scheme=str(record["scheme"]),
            actors=actors,
            evaluation=EvaluationStatus.from_record(record) or evaluation,
            slowest_share=1.0 if not median else _number(least) / _number(median),
            actor_rates={int(actor): rate for actor, rate in rates.items()},
        )

    @property
    def remaining_s(self) -> float | None:
        """Seconds until ``total_env_steps`` at the present rate; None while nothing moves."""
        left = max(self.total_env_steps - self.env_steps, 0)
        return left / self.env_steps_per_s if self.env_steps_per_s > 0 else None

    @property
    def share_done(self) -> float:
        """Of ``total_env_steps``."""
        return self.env_steps / max(self.total_env_steps, 1)

    def parts(self) -> dict[str, str]:
        """What a display shows, by label, in order."""
        steps = f"{count(self.env_steps)}/{count(self.total_env_steps)} at {count(self.env_steps_per_s)}/s"
        mean = "no episode finished yet"
        if self.return_mean is not None:
            target = "" if self.return_target is None else f" of {format_return(self.return_target)}"
            mean = f"{format_return(self.return_mean)}{target} ({self.episodes:,} episodes)"
        found = {"steps": steps, "return": mean}
        if self.evaluation is not None:
            played = self.evaluation
            found["greedy"] = (
                f"{format_return(played.mean)} at {count(played.env_steps)} steps, best {format_return(played.best)}"
            )
        lags = (self.lag_min, self.lag_mean, self.lag_max)
        found["lag"] = "-" if self.lag_mean is None else "/".join(map(lag_number, lags))
        found["learner"], found["actors"] = _largest(self.learner_shares), _largest(self.actor_shares)
        if self.actor_rates:
            rates = list(self.actor_rates.items())[:_SHOWN_ACTORS]
            found["slowest"] = "  ".join(f"{actor}: {count(rate)}/s" for actor, rate in rates)
        return found

    def warnings(self) -> list[str]:
        """Of actors that are gone, an actor with less than half of the median's steps, unrolls that are too old."""
        found = []
        if self.actors_alive < self.actors:
            found.append(f"{self.actors_alive} of {self.actors} actors alive")
        if self.slowest_actor is not None and self.slowest_share < 0.5:
            found.append(f"actor {self.slowest_actor} makes {self.slowest_share:.0%} of the median actor's steps")
        if self.dropped_unrolls:
            found.append(f"{self.dropped_unrolls:,} unrolls dropped")
        return found


@dataclass(frozen=True)
class PlayingStatus:
    """Progress of playing.

    Attributes:
        episodes: finished ones, of ``total_episodes``; a total of 0 or 1 is not worth counting.
        steps: of all environments together.
    """

    episodes: int
    total_episodes: int
    steps: int

    @property
    def share_done(self) -> float | None:
        """Of the episodes; None where there are not several."""
        return self.episodes / self.total_episodes if self.total_episodes > 1 else None

    def counts(self) -> list[str]:
        """Episodes, where there are several, and steps."""
        episodes = [] if self.share_done is None else [f"{self.episodes} of {self.total_episodes} episodes"]
        return [*episodes, f"{self.steps:,} steps"]


Status = TrainingStatus | PlayingStatus


def status_line(stage: str, status: Status, elapsed_s: float) -> str:
    """One plain line with everything.

    Args:
        stage: what is going on.
        status: how far it is.
        elapsed_s: seconds since the stage began; training counts its own.
    """
    if isinstance(status, PlayingStatus):
        return " | ".join([stage, duration(elapsed_s), *status.counts()])
    parts = [f"{label} {text}" for label, text in status.parts().items()]
    return " | ".join([stage, duration(status.elapsed_s), *parts, status.scheme, *status.warnings()])


def _largest(shares: Mapping[str, float]) -> str:
    names = sorted((name for name in shares if shares[name] >= 0.005), key=lambda name: -shares[name])
    return " ".join(f"{name} {shares[name]:.0%}" for name in names[:_SHOWN_PHASES])


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _shares(record: Mapping[str, object], prefix: str) -> dict[str, float]:
    suffix = "_share"
    return {
        name.removeprefix(prefix).removesuffix(suffix): _number(value)
        for name, value in record.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
