"""What bounds a configuration's speed: the learner, the actors' policy, the environment, or neither side alone.

From the seconds that both sides spent, medians over seeds of

    w_a  share of their time in which actors waited, for a free buffer or a policy
    w_l  share of its time in which the learner waited for unrolls
    e    the environment's share of the time in which actors did not wait

    w_a − w_l ≥ 0.1                  learner: actors stand idle for it
    w_l − w_a ≥ 0.1 and e ≥ 0.5      environment: no scheme makes it faster
    w_l − w_a ≥ 0.1 and e < 0.5      policy: inference and what belongs to it, where compression and runtimes pay
    otherwise                        balanced: both sides are about equally busy

A tenth is what waits differ by between seeds on a machine that does something else as well. With ``actors = 0`` both
take turns in one thread, so that the actor waits while the learner works: w_a = 1 − w_l.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from monitor.report.runs import Group, Run

BoundBy = Literal["learner", "policy", "environment", "balanced"]
WAIT_GAP = 0.1
ENVIRONMENT_SHARE = 0.5


@dataclass(frozen=True)
class Shares:
    """Where one run's time went, shares in [0, 1].

    Attributes:
        actor_wait: of the actors' time. learner_wait: of the learner's.
        environment, policy: of the time in which actors did not wait.
    """

    actor_wait: float
    learner_wait: float
    environment: float
    policy: float


@dataclass(frozen=True)
class Bound:
    """What bounds a configuration, and the medians over its seeds that say so."""

    by: BoundBy
    shares: Shares


def shares_of(actor_s: Mapping[str, float], learner_s: Mapping[str, float], *, turns: bool = False) -> Shares | None:
    """Shares of one run.

    Args:
        actor_s, learner_s: seconds by phase, ``wait`` and, of the actors, ``env`` and ``policy`` among them.
        turns: whether both took turns in one thread.
    Returns:
        None where either side's time is unknown.
    """
    actors, learner = sum(actor_s.values()), sum(learner_s.values())
    busy = actors - actor_s.get("wait", 0.0)
    if not (actors > 0 and learner > 0 and busy > 0):
        return None
    learner_wait = learner_s.get("wait", 0.0) / learner
    actor_wait = 1 - learner_wait if turns else actor_s.get("wait", 0.0) / actors
    return Shares(actor_wait, learner_wait, actor_s.get("env", 0.0) / busy, actor_s.get("policy", 0.0) / busy)


def bound_by(shares: Shares) -> BoundBy:
    """The rule of this module's docstring."""
    gap = shares.actor_wait - shares.learner_wait
    if abs(gap) < WAIT_GAP:
        return "balanced"
    if gap > 0:
        return "learner"
    return "environment" if shares.environment >= ENVIRONMENT_SHARE else "policy"


def bound_of(group: Group) -> Bound | None:
    """What bounds a configuration; None where no run's times are known."""
    known = [shares for run in group.runs if (shares := _shares(run)) is not None]
    if not known:
        return None
    names = ("actor_wait", "learner_wait", "environment", "policy")
    typical = Shares(*(median(getattr(shares, name) for shares in known) for name in names))
    return Bound(bound_by(typical), typical)


def environment_us(runs: Sequence[Run]) -> float:
    """Microseconds that an environment step took, median over runs; NaN where it is unknown."""
    known = [us for run in runs if math.isfinite(us := run.environment_us_per_step)]
    return median(known) if known else math.nan


def _shares(run: Run) -> Shares | None:
    turns = run.config.get("actors") == 0
    return shares_of(run.seconds_by_phase("actor"), run.seconds_by_phase("learner"), turns=turns)
