"""Simulated actors and a simulated learner for the tuner: rates, mismatch and episodes with known truth and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.tuner.criteria import TunerOptions
from monitor.tuner.measurements import LevelMeasurement, Measurements
from monitor.tuner.returns import ReturnLedger
from monitor.tuner.stages import Tuner, TunerDecision


@dataclass(frozen=True)
class Level:
    """The truth about a level: microseconds a policy call at time t, quality of its data, its mean return."""

    policy_us: Callable[[float], float]
    quality: Callable[[float], float] = lambda _: 1.0
    mean_return: Callable[[float], float] = lambda _: 100.0


def level(policy_us: float, quality: float = 1.0, mean_return: float = 100.0) -> Level:
    """A level that does not change."""
    return Level(lambda _: policy_us, lambda _: quality, lambda _: mean_return)


@dataclass
class Simulation:
    """Steps a tuner through simulated time.

    Attributes:
        env_us: per vector step; own work included. learner_us: per environment step.
        alone: one actor, which takes turns with the learner.
        noise: relative standard deviation of every rate and quality that the tuner is told.
        episode_steps: vector steps of an episode; return_deviation: of its return.
    """

    levels: Mapping[str, Level]
    actors: int = 4
    envs: int = 8
    env_us: float = 50.0
    learner_us: float = 1.0
    alone: bool = False
    noise: float = 0.0
    episode_steps: float = 2000.0
    return_deviation: float = 20.0
    tick_s: float = 0.25
    seed: int = 0
    options: TunerOptions | None = None
    decisions: list[tuple[float, TunerDecision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = list(self.levels)
        self.tuner = Tuner(self.names, self.envs, self.options)
        self.random = np.random.default_rng(self.seed)
        self.ledger = ReturnLedger()
        self.time_s = 0.0
        self.alive = list(range(self.actors))
        self.time_on = dict.fromkeys(self.names, 0.0)
        self.layouts: list[object] = []
        self._window = -1
        self._surveyed: set[str] = set()
        self._left = self.random.uniform(0.0, self.episode_steps, (self.actors, self.envs))

    def run(self, duration_s: float) -> Simulation:
        """Go on for so long."""
        end_s = self.time_s + duration_s
        while self.time_s < end_s:
            self.time_s += self.tick_s
            self._play()
            before = self.tuner.stage
            decision = self.tuner.observe(self._measure())
            if before == "survey":
                self._surveyed = set(self.names)
            if decision is not None:
                self.decisions.append((self.time_s, decision))
            if self.tuner.window != self._window:
                self._window = self.tuner.window
                compared = self.tuner.compared
                if compared:
                    self.ledger.begin(*(self.names.index(name) for name in compared))
        return self

    def kill(self, actor: int) -> None:
        """One actor dies, in the middle of its episodes."""
        self.alive.remove(actor)
        self.ledger.forget(actor)

    def kinds(self) -> list[str]:
        """The kinds of the decisions so far."""
        return [decision.kind for _, decision in self.decisions]

    def changes(self) -> list[tuple[str, str]]:
        """Every change of incumbent."""
        return [(v.before, v.after) for _, v in self.decisions if v.before != v.after and v.kind != "trial"]

    def share_on(self, name: str) -> float:
        """Share of all actor time that a level acted."""
        return self.time_on[name] / sum(self.time_on.values())

    def rate(self, name: str) -> float:
        """True unblocked rate of all living actors on a level."""
        step_us = self.env_us + self.levels[name].policy_us(self.time_s)
        return len(self.alive) * self.envs / step_us * 1e6

    def _noisy(self, value: float) -> float:
        return value * max(1.0 + self.noise * float(self.random.standard_normal()), 0.05)

    def _play(self) -> None:
        """One tick of all actors: episodes go on and end at each level's own speed."""
        for actor, split in self.tuner.assignments(self.alive).items():
            columns = [name for name, count in split for _ in range(count)]
            assert len(columns) == self.envs
            numbers = np.array([self.names.index(name) for name in columns])
            call_us = max(self.levels[name].policy_us(self.time_s) for name in columns)
            steps = self.tick_s / ((self.env_us + call_us) * 1e-6)
            for name in columns:
                self.time_on[name] += self.tick_s / self.envs
            left = self._left[actor]
            left -= steps
            envs: list[int] = []
            while (over := np.flatnonzero(left <= 0.0)).size:
                envs.extend(over.tolist())
                left[over] += self.random.exponential(self.episode_steps, over.size) + 1.0
            means = np.array([self.levels[columns[env]].mean_return(self.time_s) for env in envs])
            returns = means + self.return_deviation * self.random.standard_normal(len(envs))
            self.ledger.observe(actor, self.time_s, numbers, np.array(envs, np.int64), returns)

    def _measure(self) -> Measurements:
        acting = {name for split in self.tuner.assignments(self.alive).values() for name, count in split if count}
        known = acting | self._surveyed | (set(self.names) if self.tuner.stage == "survey" else set())
        returns = self.ledger.compare() if self.tuner.compared else None
        learner_rate = self._noisy(1e6 / self.learner_us)
        step_us = self.env_us + self.levels[self.tuner.incumbent].policy_us(self.time_s)
        return Measurements(
            time_s=self.time_s,
            env_steps=int(self.time_s * 1000),
            actors=tuple(self.alive),
            levels={name: self._level(name, name in known, name in acting) for name in self.names},
            learner_rate=learner_rate,
            alone=self.alone,
            env_share=self.env_us / step_us,
            surveyed=self.tuner.stage == "survey",
            returns=returns,
        )

    def _level(self, name: str, timed: bool, acting: bool) -> LevelMeasurement:
        truth = self.levels[name]
        quality = min(self._noisy(truth.quality(self.time_s)), 1.0)
        alarms = ("ess is too small",) if truth.quality(self.time_s) < 0.3 else ()
        return LevelMeasurement(
            rate=self._noisy(self.rate(name)) if timed else None,
            ess=quality * 0.9 if acting else None,
            retention=0.95 if acting else None,
            compression_quality=quality if acting else None,
            alarms=alarms if acting else (),
            samples=8 if acting else 0,
        )


def ladder(names: Sequence[str], *truths: Level) -> dict[str, Level]:
    """Names with their truths, finest first."""
    return dict(zip(names, truths, strict=True))
