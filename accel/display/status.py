"""Progress of training and of playing, and its text in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from accel.display.text import count, duration, format_return, lag_number

_RATE, _SHARE = "actor_steps_per_s/", "_share"
_SHOWN_PHASES, _SHOWN_ACTORS = 4, 8


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
    """Progress of training: a metrics record of the trainer, and what a run's options say about it.

    Attributes:
        record: by name; without ``return_mean`` no episode has finished. Shares are named ``learner_PHASE_share``.
        total_env_steps: how many valid steps the learner consumes at most.
        return_target: the mean return at which the run stops, if it does.
        actors: how many it has.
        evaluated: the newest result of greedy episodes beside training before the record.
    Raises:
        KeyError: a record without ``elapsed_s``, ``env_steps``, ``env_steps_per_s``, ``episodes``, ``updates``,
            ``scheme`` or ``actors_alive``. TypeError, OverflowError: a metric that is no number, or too great a one.
    """

    record: Mapping[str, object]
    total_env_steps: int
    return_target: float | None
    actors: int
    evaluated: EvaluationStatus | None = None

    def __post_init__(self) -> None:
        self.number("updates")
        status_line("", self)  # a record that cannot be shown is refused

    @property
    def evaluation(self) -> EvaluationStatus | None:
        """The newest result of greedy episodes beside training, None before the first."""
        return EvaluationStatus.from_record(self.record) or self.evaluated

    @property
    def scheme(self) -> str:
        """Compression scheme of the actors' policy."""
        return str(self.record["scheme"])

    @property
    def remaining_s(self) -> float | None:
        """Seconds until ``total_env_steps`` at the present rate; None while nothing moves."""
        left, rate = max(self.total_env_steps - self.number("env_steps"), 0), self.number("env_steps_per_s")
        return left / rate if rate > 0 else None

    @property
    def share_done(self) -> float:
        """Of ``total_env_steps``."""
        return self.number("env_steps") / max(self.total_env_steps, 1)

    def number(self, name: str) -> float:
        """A metric of the record. Raises KeyError, TypeError."""
        value = self.record[name]
        if not isinstance(value, int | float):
            raise TypeError(f"{name} = {value!r} is no number")
        return value

    def parts(self) -> dict[str, str]:
        """What a display shows, by label, in order."""
        done, rate = count(self.number("env_steps")), count(self.number("env_steps_per_s"))
        shown, episodes = "no episode finished yet", self.number("episodes")
        if (mean := self._find("return_mean")) is not None:
            target = "" if self.return_target is None else f" of {format_return(self.return_target)}"
            shown = f"{format_return(mean)}{target} ({episodes:,} episodes)"
        found = {"steps": f"{done}/{count(self.total_env_steps)} at {rate}/s", "return": shown}
        if (played := self.evaluation) is not None:
            found["greedy"] = (
                f"{format_return(played.mean)} at {count(played.env_steps)} steps, best {format_return(played.best)}"
            )
        lags = [self._find(name) for name in ("lag_min", "lag_mean", "lag_max")]
        found["lag"] = "-" if lags[1] is None else "/".join(map(lag_number, lags))
        found["learner"], found["actors"] = self._largest("learner_"), self._largest("actor_")
        rates = {name.removeprefix(_RATE): self.number(name) for name in self.record if name.startswith(_RATE)}
        if rates:
            slowest = list(rates.items())[:_SHOWN_ACTORS]
            found["slowest"] = "  ".join(f"{actor}: {count(rate)}/s" for actor, rate in slowest)
        return found

    def warnings(self) -> list[str]:
        """Of actors that are gone, an actor with less than half of the median's steps, unrolls that are too old."""
        found, alive = list[str](), self.number("actors_alive")
        if alive < self.actors:
            found.append(f"{alive} of {self.actors} actors alive")
        slowest, median = self._find("slowest_actor"), self._find("actor_steps_per_s_median")
        if slowest is not None and median and (share := self.number("actor_steps_per_s_min") / median) < 0.5:
            found.append(f"actor {slowest} makes {share:.0%} of the median actor's steps")
        if dropped := self._find("dropped_unrolls"):
            found.append(f"{dropped:,} unrolls dropped")
        return found

    def _find(self, name: str) -> float | None:
        return None if self.record.get(name) is None else self.number(name)

    def _largest(self, prefix: str) -> str:
        """The phases of one side that took most of its time."""
        names = [name for name in self.record if name.startswith(prefix) and name.endswith(_SHARE)]
        shares = {name.removeprefix(prefix).removesuffix(_SHARE): self.number(name) for name in names}
        most = sorted((name for name in shares if shares[name] >= 0.005), key=lambda name: -shares[name])
        return " ".join(f"{name} {shares[name]:.0%}" for name in most[:_SHOWN_PHASES])


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


def status_line(stage: str, status: Status, elapsed_s: float = 0.0) -> str:
    """One plain line with everything.

    Args:
        stage: what is going on.
        status: how far it is.
        elapsed_s: seconds since the stage began; training counts its own.
    """
    if isinstance(status, PlayingStatus):
        return " | ".join([stage, duration(elapsed_s), *status.counts()])
    parts = [f"{label} {text}" for label, text in status.parts().items()]
    elapsed = duration(status.number("elapsed_s"))
    return " | ".join([stage, elapsed, *parts, status.scheme, *status.warnings()])
