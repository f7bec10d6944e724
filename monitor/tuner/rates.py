"""Predicted rates of actors on levels with which they do not act, from measured times.

A vector step of an actor takes a time that does not depend on the level, and one that does:

    step_us(level) = outside_us + level_us(level)
    outside_us     = median over recent unrolls of (environment + overhead + send) / T
    level_us       = median over recent unrolls on that level of (policy + load) / T, where it acts now; otherwise
                     quick_us(level) + residual_us
    quick_us       = the actor's own quick measurement: policy_us + load_us × (share of unrolls with a new policy) / T
    residual_us    = level_us − quick_us where both were measured last: sampling, copies, cold caches
    rate(level)    = Σ over living actors of (valid steps of a vector step) / step_us(level)

Waiting for the learner is excluded, so these are unblocked rates. Medians are used because an actor that shares its
core is occasionally suspended for milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

RECENT_UNROLLS = 64
SETTLED_UNROLLS = 4


@dataclass
class _Actor:
    """Measurements of one actor; times in microseconds per vector step."""

    outside_us: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_UNROLLS))
    env_us: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_UNROLLS))
    level_us: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_UNROLLS))
    loads: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_UNROLLS))
    level: str | None = None
    unrolls_on_level: int = 0
    quick: dict[str, tuple[float, float]] = field(default_factory=dict)
    residual_us: dict[str, float] = field(default_factory=dict)
    valid_per_step: float = 0.0
    unroll_length: int = 1


class RateTable:
    """Times of all actors; memory is bounded by actors × levels."""

    def __init__(self) -> None:
        self._actors: dict[int, _Actor] = {}

    def add_unroll(
        self,
        actor: int,
        level: str | None,
        unroll_length: int,
        valid_steps: int,
        *,
        outside_s: float,
        env_s: float,
        level_s: float,
        loaded: bool,
    ) -> None:
        """Add the times of one unroll.

        Args:
            level: the one that acted on all environments, or None when several shared them.
            unroll_length: T, vector steps.
            valid_steps: of all environments together.
            outside_s: environment, overhead and sending; env_s: of it, the environment.
            level_s: policy and loading.
            loaded: whether a new policy came before this unroll.
        """
        known = self._actors.setdefault(actor, _Actor())
        if level != known.level:
            known.level, known.unrolls_on_level = level, 0
            known.level_us.clear()
        known.unrolls_on_level += 1
        known.unroll_length = unroll_length
        steps = valid_steps / unroll_length
        known.valid_per_step = steps if known.valid_per_step == 0.0 else 0.95 * known.valid_per_step + 0.05 * steps
        known.outside_us.append(outside_s / unroll_length * 1e6)
        known.env_us.append(env_s / unroll_length * 1e6)
        known.loads.append(float(loaded))
        # The first unroll on a level carries the quick measurement and a cold session.
        if level is not None and known.unrolls_on_level > 1:
            known.level_us.append(level_s / unroll_length * 1e6)

    def add_report(self, actor: int, level: str, policy_us: float, load_us: float) -> None:
        """Add an actor's quick measurement: one policy call for all of its environments, and loading one artifact."""
        known = self._actors.setdefault(actor, _Actor())
        self._keep_residual(known)
        known.quick[level] = (policy_us, load_us)

    def forget(self, actor: int) -> None:
        """Drop an actor that died."""
        self._actors.pop(actor, None)

    def reported(self, actor: int, level: str) -> bool:
        """Whether the actor has measured this level."""
        return actor in self._actors and level in self._actors[actor].quick

    def forget_reports(self) -> None:
        """Discard quick measurements before a new survey, and keep their residuals."""
        for known in self._actors.values():
            self._keep_residual(known)
            known.quick.clear()

    def rate(self, level: str, actors: Iterable[int]) -> float | None:
        """Valid environment steps per second of these actors together on one level; None while unknown for all.

        Actors that have not measured it count as the mean of those that have.
        """
        rates = [self._rate(self._actors[actor], level) if actor in self._actors else None for actor in actors]
        known = [rate for rate in rates if rate is not None]
        return sum(known) / len(known) * len(rates) if known else None

    def env_share(self, actors: Iterable[int]) -> float:
        """The environments' share of these actors' unblocked time as they are now, in [0, 1]; 0 while unknown."""
        env_us = total_us = 0.0
        for actor in actors:
            known = self._actors.get(actor)
            if known is None or known.level is None or not known.env_us:
                continue
            level_us = self._level_us(known, known.level)
            if level_us is not None:
                env_us += median(known.env_us)
                total_us += median(known.outside_us) + level_us
        return env_us / total_us if total_us > 0.0 else 0.0

    def _rate(self, known: _Actor, level: str) -> float | None:
        level_us = self._level_us(known, level)
        if level_us is None or not known.outside_us:
            return None
        return known.valid_per_step * 1e6 / (median(known.outside_us) + level_us)

    def _level_us(self, known: _Actor, level: str) -> float | None:
        if level == known.level and len(known.level_us) >= SETTLED_UNROLLS:
            return median(known.level_us)
        quick_us = self._quick_us(known, level)
        if quick_us is None:
            return None
        self._keep_residual(known)
        residuals = known.residual_us
        shared = median(residuals.values()) if residuals else 0.0
        return max(quick_us + residuals.get(level, shared), 0.0)

    def _quick_us(self, known: _Actor, level: str) -> float | None:
        if level not in known.quick:
            return None
        policy_us, load_us = known.quick[level]
        load_share = sum(known.loads) / len(known.loads) if known.loads else 1.0
        return policy_us + load_us * load_share / known.unroll_length

    def _keep_residual(self, known: _Actor) -> None:
        """Store the difference between unrolls and the quick measurement of the level in use."""
        if known.level is None or len(known.level_us) < SETTLED_UNROLLS:
            return
        quick_us = self._quick_us(known, known.level)
        if quick_us is not None:
            known.residual_us[known.level] = median(known.level_us) - quick_us
