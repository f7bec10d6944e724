"""Which of two levels is better, by pairs of blocks: a sequential test for returns of any distribution.

A pair is a block of training at a level and one at full precision, in an order drawn at random. Of a quantity with
mean m and standard error s at time t in each block, and d its trend, which is the change of (m_level + m_full)/2 per
second since the last pair (0 for the first, and where noise in d adds more than the difference has):

    z = (m_level − m_full − d (t_level − t_full)) / √(s²_level + s²_full),   x = z clipped to [−1, 1]
    E⁻ = Σ_k w_k · mean over λ of Π_{i ≥ k} (1 − λ x_i),   w_k = 1 / (k (k + 1)),   λ = 0.5, 0.99
    E⁺ likewise with + λ x_i;   w_k for each k beyond the last pair counts as it is, its product being 1

    worse   E⁻ ≥ 1/ERROR, ever        better   E⁺ ≥ 1/ERROR        open   neither

Where the level makes no difference, exchanging the labels of a pair changes the sign of its x and nothing else, as d
does not depend on them, whatever went before: the mean of x is 0, both E are martingales that begin at 1, and each ever
reaches 1/ERROR with a probability of at most ``ERROR``, however long and however often one looks. Blocks are the unit,
so that environments may share policies, and returns a trend. Blocks that do not differ, as zeros against zeros, leave
the verdict open. No pair is ever discarded; the sum over k finds a level that is worse from some time on, as when
returns converge.

What that assumes is equal numbers of episodes on both sides, chosen by their place in the block and not by their
length: see ``objective.Block``. A level whose returns have the same mean and another shape may be called worse: the
test is of clipped differences, not of means.

Source: Ville 1939; Waudby-Smith and Ramdas 2024, doi:10.1093/jrsssb/qkad009, for the mixture of bets. Deviations: bets
are on the sign-symmetric x, so that no bound on returns is needed.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

Verdict = Literal["worse", "better", "open"]

ERROR = 0.02
"""Of each side's verdict, over a whole run."""
_BETS = np.array([0.5, 0.99])


class Estimate(NamedTuple):
    """Of a quantity in a block: mean, standard error, and the mean time of what it rests on, seconds."""

    mean: float
    error: float
    time_s: float


class PairedTest:
    """The evidence on one quantity.

    Attributes:
        pairs: how many were added. verdict: see the module's docstring. evidence: E⁻ and E⁺.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self.verdict: Verdict = "open"
        self.evidence = 1.0, 1.0
        self._logs = np.zeros((0, 2, len(_BETS)))
        self._means: list[tuple[float, float]] = []
        self._last: Estimate | None = None
        self._since = 0

    def add(self, level: Estimate, full: Estimate) -> None:
        """One pair. One whose means are not finite says nothing."""
        apart_s, error = level.time_s - full.time_s, math.hypot(level.error, full.error)
        now = Estimate((level.mean + full.mean) / 2.0, error / 2.0, (level.time_s + full.time_s) / 2.0)
        if not math.isfinite(now.mean):
            return
        last, self._last = self._last or now, now
        passed_s, noise = now.time_s - last.time_s, math.hypot(now.error, last.error)
        is_known = passed_s > 0.0 and noise * abs(apart_s) <= error * passed_s
        trend = (now.mean - last.mean) / passed_s if is_known else 0.0
        difference = level.mean - full.mean - trend * apart_s
        self.pairs += 1
        self._means.append((level.mean, full.mean))
        x = float(np.clip(difference / error, -1.0, 1.0)) if error > 0.0 else float(np.sign(difference))
        self._logs = np.concatenate([self._logs, np.zeros((1, 2, len(_BETS)))])
        self._logs += np.log1p(np.outer((-x, x), _BETS))
        begun = np.arange(1, self.pairs + 1)[:, None]
        terms = np.exp(np.minimum(self._logs, 700.0)).mean(axis=2) / (begun * (begun + 1))
        worse, better = terms.sum(axis=0) + 1.0 / (self.pairs + 1)
        self.evidence = float(worse), float(better)
        if self.verdict != "worse":
            self.verdict = "worse" if worse >= 1.0 / ERROR else "better" if better >= 1.0 / ERROR else "open"
            self._since = int(terms[:, int(better > worse)].argmax())

    def medians(self) -> tuple[float, float]:
        """Of the level's and full precision's means in the pairs that speak most for the verdict."""
        mine, theirs = np.median(self._means[self._since :], axis=0)
        return float(mine), float(theirs)
