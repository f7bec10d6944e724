"""Progress of training and of playing, and its text in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from accel.display.text import count, duration, format_return, lag_number

_RATE = "actor_steps_per_s/"


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
        scheme: compression scheme of the actors' policy. policy_version: the newest.
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
    policy_version: int
    actors_alive: int
    actors: int
    dropped_unrolls: int = 0
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
        least, median = (record.get(f"actor_steps_per_s_{name}") for name in ("min", "median"))
        slowest = record.get("slowest_actor")
        return cls(
            elapsed_s=_number(record["elapsed_s"]),
            env_steps=int(_number(record["env_steps"])),
            total_env_steps=total_env_steps,
            env_steps_per_s=_number(record["env_steps_per_s"]),
            episodes=int(_number(record["episodes"])),
            return_mean=_optional(record.get("return_mean")),
            return_target=return_target,
            lag_min=_optional(record.get("lag_min")),
            lag_mean=_optional(record.get("lag_mean")),
            lag_max=_optional(record.get("lag_max")),
            learner_shares=_shares(record, "learner_"),
            actor_shares=_shares(record, "actor_"),
            scheme=str(record["scheme"]),
            policy_version=int(_number(record["updates"])),
            actors_alive=int(_number(record["actors_alive"])),
            actors=actors,
            dropped_unrolls=int(_number(record.get("dropped_unrolls", 0))),
            evaluation=EvaluationStatus.from_record(record) or evaluation,
            slowest_actor=None if slowest is None else int(_number(slowest)),
            slowest_share=1.0 if not median else _number(least) / _number(median),
            actor_rates={
                int(name.removeprefix(_RATE)): _number(rate) for name, rate in record.items() if name.startswith(_RATE)
            },
        )

    @property
    def straggler(self) -> str | None:
        """The actor that makes less than half of the median actor's steps, in words; None where none does."""
        if self.slowest_actor is None or self.slowest_share >= 0.5:
            return None
        return f"actor {self.slowest_actor} makes {self.slowest_share:.0%} of the median actor's steps"

    @property
    def remaining_s(self) -> float | None:
        """Seconds until ``total_env_steps`` at the present rate; None while nothing moves."""
        left = max(self.total_env_steps - self.env_steps, 0)
        return left / self.env_steps_per_s if self.env_steps_per_s > 0 else None


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


Status = TrainingStatus | PlayingStatus


def status_line(stage: str, status: Status, elapsed_s: float) -> str:
    """One plain line with everything.

    Args:
        stage: what is going on.
        status: how far it is.
        elapsed_s: seconds since the stage began; training counts its own.
    """
    if isinstance(status, PlayingStatus):
        return " | ".join([stage, duration(elapsed_s), *playing_counts(status)])
    mean = "no episode finished yet"
    if status.return_mean is not None:
        mean = f"return {format_return(status.return_mean)} ({status.episodes:,} episodes)"
    lags = (status.lag_min, status.lag_mean, status.lag_max)
    parts = [
        stage,
        duration(status.elapsed_s),
        f"{count(status.env_steps)}/{count(status.total_env_steps)} steps",
        f"{count(status.env_steps_per_s)} steps/s",
        mean,
        f"lag {'-' if status.lag_mean is None else '/'.join(map(lag_number, lags))}",
        f"learner {' '.join(_largest(status.learner_shares, 4))}",
        f"actors {' '.join(_largest(status.actor_shares, 4))}",
        status.scheme,
    ]
    if status.evaluation is not None:
        parts.insert(5, evaluation_text(status.evaluation))
    if status.actors_alive < status.actors:
        parts.append(f"{status.actors_alive} of {status.actors} actors alive")
    if status.straggler is not None:
        parts.append(status.straggler)
    if status.dropped_unrolls:
        parts.append(f"{status.dropped_unrolls:,} unrolls dropped")
    return " | ".join(parts)


def evaluation_text(evaluation: EvaluationStatus) -> str:
    """``greedy 487.2 at 40k steps, best 500.0``."""
    return (
        f"greedy {format_return(evaluation.mean)} at {count(evaluation.env_steps)} steps, "
        f"best {format_return(evaluation.best)}"
    )


def playing_counts(status: PlayingStatus) -> list[str]:
    """Episodes, where there are several, and steps."""
    steps = f"{status.steps:,} steps"
    many = status.total_episodes > 1
    return [f"{status.episodes} of {status.total_episodes} episodes", steps] if many else [steps]


def _largest(shares: Mapping[str, float], number: int) -> list[str]:
    names = sorted((name for name in shares if shares[name] >= 0.005), key=lambda name: -shares[name])
    return [f"{name} {shares[name]:.0%}" for name in names[:number]]


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _optional(value: object) -> float | None:
    return None if value is None else _number(value)


def _shares(record: Mapping[str, object], prefix: str) -> dict[str, float]:
    suffix = "_share"
    return {
        name.removeprefix(prefix).removesuffix(suffix): _number(value)
        for name, value in record.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
