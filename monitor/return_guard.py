"""Guards a compression level by its returns: one actor plays full precision now and then, between two spells of it.

    before  the level · control  full precision · after  the level

Of each spell every environment of that actor gives the first episode that began in it and has ended: so neither long
episodes nor the faster level count more. With L₁, C and L₂ an environment's three returns,

    d = (L₁ + L₂) / 2 − C,      d̄ ± t · s_d / √n over all d of a series

in which a linear trend of returns cancels. Looks are at 4, 8, 16, … ``MOST`` differences:

    passed   d̄ − t·s/√n > −margin: a loss beyond the margin is excluded; the next series begins
    loss     d̄ + t′·s/√n < 0: the level loses return
    unshown  neither with ``MOST`` differences

margin is ``MARGIN`` of the control's mean return, or ``MARGIN_DEVIATIONS`` standard deviations of an episode where that
is more. t has ``CONFIDENCE`` at each of a series' ``LOOKS``, so that a level that loses the margin passes 8 % of the
series at most. t′ has 1 − (1 − ``CONFIDENCE``) / (LOOKS · k²) in series k: with Bonferroni's bound over looks and
series, a level that loses nothing is thrown out, each time that it is taken, with a probability of 1.6 % at most,
however long it is in use. What is detectable, at 80 %, is stated with each look.

Control spells take at most ``TIME_SHARE`` of the time since the level was taken, so that the first begins after twenty
times as long as it lasts: a run of a minute whose full precision is slow ends before.

Source: Student's paired test, one-sided; non-inferiority by a confidence bound, Blackwelder 1982.
Deviations: d of one environment's successive spells are taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.monitor.decisions import Figure
from accel.monitor.statistics import student_t_quantile

FIRST, MOST = 4, 512
LOOKS = (MOST // FIRST).bit_length()
CONFIDENCE = 0.99
MARGIN = 0.05
MARGIN_DEVIATIONS = 0.25
TIME_SHARE = 0.05
_POWER = 0.8
_PATIENCE = 4.0
_LEAST_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Verdict:
    """One look; ``str`` gives the clause for a log.

    Attributes:
        kind: ``passed``, ``loss``, ``unshown``, or ``open``.
        episodes: n. difference: d̄; low, high: its bounds. margin, detectable: of a loss, in returns.
    """

    kind: str
    episodes: int
    difference: float
    low: float
    high: float
    margin: float
    detectable: float

    def __str__(self) -> str:
        return (
            f"return {self.difference:+.3g} against full precision over {self.episodes} episodes each, between "
            f"{self.low:+.3g} and {self.high:+.3g}; the margin is −{self.margin:.3g}, detectable {self.detectable:.3g}"
        )

    def figures(self) -> dict[str, Figure]:
        """Its numbers by the names that the decision log uses."""
        names = ("episodes", "difference", "low", "high", "margin", "detectable")
        return {f"return_{name}": getattr(self, name) for name in names}


def judge(differences: Sequence[float], control: Sequence[float], series: int = 1) -> Verdict:
    """The verdict on n ≥ 2 differences of a run's ``series``-th, whose controls returned ``control``."""
    d, n = np.asarray(differences, np.float64), len(differences)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    half = student_t_quantile(CONFIDENCE, n - 1) * error
    surely = student_t_quantile(1.0 - (1.0 - CONFIDENCE) / (LOOKS * series**2), n - 1) * error
    mean = float(d.mean())
    deviation = float(d.std(ddof=1)) / math.sqrt(1.5)
    margin = max(MARGIN * abs(float(np.mean(control))), MARGIN_DEVIATIONS * deviation)
    kind = "passed" if mean - half >= -margin else "loss" if mean + surely < 0.0 else "open"
    kind = "unshown" if kind == "open" and n >= MOST else kind
    detectable = surely + student_t_quantile(_POWER, n - 1) * error
    return Verdict(kind, n, mean, mean - half, mean + surely, margin, detectable)


class ReturnGuard:
    """One level's guard, from when it was taken.

    Args:
        level, full: the level in use and full precision. envs: environments of each actor.
        slowdown: how many times as long a step takes with full precision, as expected.
        time_s: now, as in ``observe``.
    Attributes:
        actor: whose returns count now; None: anyone's will do next. spell: 0 before, 1 control, 2 after.
    """

    def __init__(self, level: str, full: str, envs: int, slowdown: float, time_s: float) -> None:
        self.actor: int | None = None
        self._level, self._full, self._envs = level, full, envs
        self._slowdown = max(slowdown, 1.0)
        self._began_s = self._spell_s = time_s
        self._control_s, self._expected_s = 0.0, 0.0
        self._next, self._series = FIRST, 1
        self._differences: list[float] = []
        self._controls: list[float] = []
        self._found: list[dict[int, float]] = [{}, {}, {}]
        self._start(0, time_s)

    def control(self, actor: int) -> bool:
        """Whether this actor should act with full precision now."""
        return self.spell == 1 and actor == self.actor

    def lose(self, actor: int, time_s: float) -> None:
        """Begin anew with another actor where this one was watched."""
        if actor == self.actor:
            self._rotate(time_s)

    def observe(self, actor: int, level: str, ends: Iterable[tuple[int, float]], time_s: float) -> Verdict | None:
        """Add one unroll's finished episodes; a verdict when one is due.

        Args:
            actor: whose unroll it is. level: what acted. ends: environment and return of each, in order.
            time_s: seconds, a clock that does not go back.
        """
        if self.actor is None:
            self.actor = actor
        if actor != self.actor:
            return None
        if self.spell == 1 and time_s - self._spell_s > max(_PATIENCE * self._expected_s, _LEAST_PATIENCE_S):
            self._rotate(time_s)
            return None
        if level != (self._full if self.spell == 1 else self._level):
            self._seen.clear()  # the change is on its way, or full precision stands in: the spell begins after it
            return None
        for env, value in ends:
            if env in self._seen and math.isfinite(value):
                self._found[self.spell].setdefault(env, value)
            self._seen.add(env)
        return self._next_spell(time_s) if len(self._found[self.spell]) == self._envs else None

    def _next_spell(self, time_s: float) -> Verdict | None:
        if self.spell == 0:
            self._expected_s = self._slowdown * (time_s - self._spell_s)
            affordable = self._control_s + self._expected_s <= TIME_SHARE * (time_s - self._began_s)
            self._start(1 if affordable else 0, time_s)
            if not affordable:
                self._found[0] = {}
            return None
        if self.spell == 1:
            self._control_s += time_s - self._spell_s
            self._start(2, time_s)
            return None
        before, control, after = self._found
        self._add(before, control, after)
        self._rotate(time_s)
        if len(self._differences) < self._next:
            return None
        while self._next <= len(self._differences):
            self._next *= 2
        verdict = judge(self._differences, self._controls, self._series)
        if verdict.kind == "passed":
            self._differences, self._controls, self._next = [], [], FIRST
            self._series += 1
        return verdict

    def _add(self, before: Mapping[int, float], control: Mapping[int, float], after: Mapping[int, float]) -> None:
        for env, value in control.items():
            self._differences.append(0.5 * (before[env] + after[env]) - value)
            self._controls.append(value)

    def _rotate(self, time_s: float) -> None:
        """The next actor whose unroll arrives is watched."""
        if self.spell == 1:
            self._control_s += time_s - self._spell_s
        self.actor = None
        self._found = [{}, {}, {}]
        self._start(0, time_s)

    def _start(self, spell: int, time_s: float) -> None:
        self.spell, self._spell_s = spell, time_s
        self._seen: set[int] = set()
