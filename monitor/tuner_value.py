"""What a level is worth: effective experience, and which part of the pipeline limits it.

    effective(level) = min(actors' unblocked rate on the level, learner's rate) × quality(level)
                       1 / (1 / actors' rate + 1 / learner's rate) × quality(level)   where they take turns
    quality          = ESS × retention of π_θ against the level's μ, where measured at the same time; else of π_v
                       against μ, the level's own part, as measured last, or 1 before that

Staleness is common to levels that act at the same time, so either quality ranks them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from monitor.decisions import Figure
from monitor.tuner_measurements import Measurements

Bottleneck = Literal["learner", "environment", "policy"]


def delivered_rate(m: Measurements, level: str) -> float | None:
    """Valid steps per second that would reach the learner's updates with every actor on a level; None if unknown."""
    rate = m.levels[level].rate if level in m.levels else None
    if rate is None or m.learner_rate is None:
        return rate
    if m.alone:
        return rate * m.learner_rate / (rate + m.learner_rate)
    return min(rate, m.learner_rate)


def effective(m: Measurements, level: str, quality: float) -> float | None:
    """Effective environment steps per second, or None while the level's rate is unknown."""
    rate = delivered_rate(m, level)
    return None if rate is None else rate * quality


def concurrent_qualities(m: Measurements, levels: Iterable[str], own: Mapping[str, float]) -> dict[str, float]:
    """Qualities on one scale: the product of both factors when all are measured, otherwise the levels' own parts.

    Args:
        own: ESS × retention of compression alone, as last measured; 1 where absent.
    """
    chosen = tuple(levels)
    totals = {level: m.levels[level].quality for level in chosen if level in m.levels}
    measured = {level: quality for level, quality in totals.items() if quality is not None}
    if len(measured) == len(chosen):
        return measured
    return {level: own.get(level, 1.0) for level in chosen}


def bottleneck(m: Measurements, level: str, busy_env_share: float) -> Bottleneck:
    """What limits the run with every actor on ``level``: faster actors help only when it is the policy, or, where the
    learner is alone with the actor, a little."""
    rate = m.levels[level].rate if level in m.levels else None
    if rate is not None and m.learner_rate is not None and rate >= m.learner_rate:
        return "learner"
    return "environment" if m.env_share >= busy_env_share else "policy"


def explain(m: Measurements, level: str, busy_env_share: float) -> str:
    """The bottleneck in a clause with its figures."""
    limit = bottleneck(m, level, busy_env_share)
    rate = m.levels[level].rate if level in m.levels else None
    if limit == "learner" and rate is not None and m.learner_rate is not None:
        if m.alone:
            share = rate / (rate + m.learner_rate)
            return f"the learner is the bottleneck: with {level} it takes {share:.0%} of the process's time"
        return (
            f"the learner is the bottleneck: on {level} the actors could send {rate:,.0f} steps/s "
            f"and it takes {m.learner_rate:,.0f}"
        )
    if limit == "environment":
        return f"the environment is the bottleneck: it takes {m.env_share:.0%} of the actors' time"
    return f"the policy takes much of the actors' time, the environment {m.env_share:.0%}"


def figures(m: Measurements, own: Mapping[str, float], incumbent: str, busy_env_share: float) -> dict[str, Figure]:
    """Every number a decision may rest on, by name."""
    result: dict[str, Figure] = {
        "bottleneck": bottleneck(m, incumbent, busy_env_share),
        "learner_rate": m.learner_rate,
        "learner_wait_share": m.learner_wait_share,
        "env_share": m.env_share,
    }
    for level, measured in m.levels.items():
        result[f"rate/{level}"] = measured.rate
        result[f"effective/{level}"] = effective(m, level, own.get(level, 1.0))
        if measured.ess is not None:
            result[f"ess/{level}"] = measured.ess
            result[f"retention/{level}"] = measured.retention
            result[f"compression_quality/{level}"] = measured.compression_quality
    if m.returns is not None:
        r = m.returns
        result |= {
            "return/candidate": None if math.isnan(r.candidate_mean) else r.candidate_mean,
            "return/reference": None if math.isnan(r.reference_mean) else r.reference_mean,
            "episodes/candidate": r.candidate_episodes,
            "episodes/reference": r.reference_episodes,
            "return_difference": r.difference,
            "return_drift": r.drift,
            "return_z": r.z,
            "return_effect": r.effect,
        }
    return result
