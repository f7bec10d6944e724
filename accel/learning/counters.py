"""The learner's counters: policy lag, actors' rates, unrolls and episodes; and the interval of records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.algorithms.state_tree import Tree
from accel.experience.unroll import Unroll

FIRST_INTERVAL_S, INTERVAL_GROWTH = 0.05, 0.1
COUNTED = (
    "env_steps",
    "unrolls",
    "dropped_unrolls",
    "dropped_env_steps",
    "faulty_environments",
    "actor_restarts",
    "environment_restarts",
    "episodes",
)
"""Counters of a learner that are added up over all of them; episodes come last."""


@dataclass
class LagStatistics:
    """Policy lag in versions over some unrolls."""

    unrolls: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, lag: int) -> None:
        """Count one unroll."""
        self.least = lag if self.unrolls == 0 else min(self.least, lag)
        self.most = lag if self.unrolls == 0 else max(self.most, lag)
        self.total += lag
        self.unrolls += 1

    def as_json(self) -> dict[str, float | int | None]:
        """``lag_min``, ``lag_mean`` and ``lag_max``; None without an unroll."""
        if self.unrolls == 0:
            return {"lag_min": None, "lag_mean": None, "lag_max": None}
        return {"lag_min": self.least, "lag_mean": self.total / self.unrolls, "lag_max": self.most}


class ActorRates:
    """Environment steps per second of each actor, over windows of ``WINDOW_S``; shows who lags behind."""

    WINDOW_S = 5.0
    SHOWN = 32
    """Rates of so many actors, the slowest, are in records; others are within the least and the greatest."""

    def __init__(self, actors: int, now_s: float) -> None:
        self._steps = np.zeros(actors, np.int64)
        self._since_s = now_s
        self._found: dict[str, float | int] = {}

    def add(self, actor: int, steps: int) -> None:
        """Count an unroll's valid steps."""
        self._steps[actor] += steps

    def read(self, now_s: float) -> Mapping[str, float | int]:
        """The newest whole window: least, median and greatest rate, the slowest actor, and rates by actor, it first.

        Empty for a single actor.
        """
        elapsed_s = now_s - self._since_s
        if len(self._steps) > 1 and elapsed_s >= self.WINDOW_S:
            rates = self._steps / elapsed_s
            self._found = {
                "actor_steps_per_s_min": float(rates.min()),
                "actor_steps_per_s_median": float(np.median(rates)),
                "actor_steps_per_s_max": float(rates.max()),
                "slowest_actor": int(rates.argmin()),
            }
            slowest = np.argsort(rates, kind="stable")[: self.SHOWN]
            self._found |= {f"actor_steps_per_s/{actor}": round(float(rates[actor]), 1) for actor in slowest.tolist()}
            self._steps[:] = 0
            self._since_s = now_s
        return self._found


class TaskReturns:
    """Mean returns of the last ``window`` episodes of each of several environments that one policy learns, which actors
    take in turn; shows nothing where there is one."""

    def __init__(self, tasks: Sequence[str], window: int) -> None:
        self._returns = {task: deque[float](maxlen=window) for task in tasks}
        self._of_actor = list(self._returns.values())

    def add(self, actor: int, unroll: Unroll) -> None:
        """Count the episodes that ended in an actor's unroll."""
        if len(self._of_actor) > 1:
            ended = unroll["episode_return"][np.nonzero(unroll["episode_length"])]
            self._of_actor[actor % len(self._of_actor)].extend(ended[np.isfinite(ended)].tolist())

    def read(self) -> dict[str, float | None]:
        """``return_mean/TASK``, None before a task's first episode has ended."""
        if len(self._returns) == 1:
            return {}
        return {
            f"return_mean/{task}": float(np.mean(found)) if found else None for task, found in self._returns.items()
        }


class Counters:
    """Counters of a whole run, across resumes.

    Attributes:
        env_steps: valid steps inserted into the store. updates: made; the policy's version.
        unrolls: taken from actors. dropped_unrolls, dropped_env_steps: of them, older than max_policy_lag.
        faulty_environments: parts of unrolls left out because a number in them was not finite.
        actor_restarts, environment_restarts: actors' processes, and environments in them, that were replaced.
        episodes: finished training episodes seen.
        returns, lengths: undiscounted raw returns and lengths of the last ``window`` episodes, oldest first.
    """

    def __init__(self, window: int) -> None:
        self.env_steps = self.updates = 0
        self.unrolls = self.dropped_unrolls = self.dropped_env_steps = self.faulty_environments = self.episodes = 0
        self.actor_restarts = self.environment_restarts = 0
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last window of episodes; None until it is full."""
        return float(np.mean(self.returns)) if len(self.returns) == self.returns.maxlen else None

    def add_episodes(self, unroll: Unroll) -> None:
        """Count the episodes that ended in an unroll."""
        lengths = unroll["episode_length"]
        ended = np.nonzero(lengths)
        if len(ended[0]):
            self.returns.extend(value for value in unroll["episode_return"][ended].tolist() if math.isfinite(value))
            self.lengths.extend(lengths[ended].tolist())
            self.episodes += len(ended[0])

    def counted(self) -> list[int]:
        """The numbers of ``COUNTED``."""
        return [getattr(self, name) for name in COUNTED]

    def take(self, added: Sequence[int], before: Sequence[int] | None = None) -> None:
        """Count what was added to the numbers of ``COUNTED`` since they were as ``before``; None: as they are."""
        for name, start, number in zip(COUNTED, before or self.counted(), added, strict=True):
            setattr(self, name, start + number)

    def newest(self, episodes: int) -> tuple[list[float], list[int]]:
        """Returns and lengths of so many episodes that ended last, of those that are kept."""
        returns, lengths = list(self.returns), list(self.lengths)
        return returns[max(len(returns) - episodes, 0) :], lengths[max(len(lengths) - episodes, 0) :]

    def to_json(self) -> dict[str, Tree]:
        """Plain values; ``restore`` takes them back."""
        return {name: list(value) if isinstance(value, deque) else value for name, value in vars(self).items()}

    def restore(self, values: Mapping[str, Tree]) -> None:
        """Inverse of ``to_json``; raises KeyError or TypeError on anything else."""
        for name, value in vars(self).items():
            if isinstance(value, deque):
                value.clear()
                value.extend(values[name])  # type: ignore[arg-type]
            else:
                setattr(self, name, int(values[name]))  # type: ignore[arg-type]


def record_interval_s(elapsed_s: float, log_interval_s: float) -> float:
    """Seconds between records: a tenth of the time since the start, at least 0.05 and at most ``log_interval_s``.

    So a run of a second has a curve too, and a long one some 40 records more than without.
    """
    return min(log_interval_s, max(FIRST_INTERVAL_S, INTERVAL_GROWTH * elapsed_s))
