"""Metrics that a sweep can optimise or bound, with unit and direction, and constraints on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from accel.config import did_you_mean
from accel.errors import ConfigError

Values = Mapping[str, float]

REFERENCE = "fp32"
_CONSTRAINT = re.compile(rf"(\w+)([<>]=)([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(\*{REFERENCE})?")


@dataclass(frozen=True)
class Metric:
    """A measured value of every trial.

    Attributes:
        direction: which way is better. unit: for tables and axes, "" for none.
    """

    name: str
    direction: Literal["maximise", "minimise"]
    unit: str
    meaning: str

    @property
    def sign(self) -> float:
        """Factor that turns the metric into one to minimise."""
        return -1.0 if self.direction == "maximise" else 1.0

    @property
    def title(self) -> str:
        """Name with unit."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


_AFTER_TRAINING = (
    Metric("return", "maximise", "", "mean return of seeded episodes, greedy unless sampled"),
    Metric("latency", "minimise", "us", "median time of a policy call, measured in turns with fp32"),
    Metric("bytes", "minimise", "B", "size of the artifact"),
    Metric("kl", "minimise", "nats", "mean KL(fp32 || compressed) over real observations"),
    Metric("agreement", "maximise", "", "share of equal greedy actions; discrete actions only"),
)
_IN_TRAINING = (
    Metric("return", "maximise", "", "mean return of the last training episodes (stop_window)"),
    Metric("env_steps_per_s", "maximise", "1/s", "environment steps consumed by the learner per second of training"),
    Metric("training_s", "minimise", "s", "seconds of training until stop_at_return"),
    Metric("actor_s", "minimise", "s/M", "seconds that actors work, without waiting, per million environment steps"),
    Metric("bytes", "minimise", "B", "size of the final published policy"),
)
AFTER_TRAINING = {metric.name: metric for metric in _AFTER_TRAINING}
IN_TRAINING = {metric.name: metric for metric in _IN_TRAINING}


def choose_metrics(names: Sequence[str], known: Mapping[str, Metric]) -> tuple[Metric, ...]:
    """Objectives by name. Raises ConfigError: none, an unknown one, one twice."""
    if not names:
        raise ConfigError(f"a sweep needs at least one objective of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"objectives {', '.join(names)}: give each once")
    return tuple(_look_up(name, known, "objective") for name in names)


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric, absolute or as a multiple of fp32's.

    Attributes:
        text: as given, without spaces.
        at_least: whether the bound is a lower one, rather than an upper one.
        factor: the bound or, if ``relative``, the multiple of the reference.
    """

    text: str
    metric: str
    at_least: bool
    factor: float
    relative: bool

    def bound(self, references: Values) -> float:
        """The bound. f times a reference R means R + (f − 1)·|R|: 0.95 allows 5 % less of a negative return too."""
        if not self.relative:
            return self.factor
        reference = references[self.metric]
        return reference + (self.factor - 1.0) * abs(reference)

    def violation(self, value: float, references: Values) -> float:
        """By which share of the bound a value misses it; at most 0 where it is met."""
        bound = self.bound(references)
        missing = bound - value if self.at_least else value - bound
        return missing / max(abs(bound), 1e-12)


def parse_constraint(text: str, known: Mapping[str, Metric]) -> Constraint:
    """Read ``return>=0.95*fp32``, ``latency<=50`` and the like. Raises ConfigError that shows the form."""
    match = _CONSTRAINT.fullmatch("".join(text.split()))
    if match is None:
        raise ConfigError(
            f"constraint {text!r} is not of the form NAME>=NUMBER, NAME<=NUMBER or NAME>=NUMBER*{REFERENCE}, such as "
            f"return>=0.95*{REFERENCE}"
        )
    name, comparison, number, reference = match.groups()
    _look_up(name, known, "constraint on")
    return Constraint(match[0], name, comparison == ">=", float(number), reference is not None)


def _look_up(name: str, known: Mapping[str, Metric], what: str) -> Metric:
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return known[name]
