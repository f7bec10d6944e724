"""Returns of whole episodes by compression level, compared between two levels that act at the same time.

A return counts for a level only if every step of its episode was acted by that level. Learning moves returns, so levels
are compared within strata of episodes that *started* at about the same time: of each level the first K started in the
stratum, which counts once all of them have ended. So the selection does not depend on the lengths of episodes,
nor on how many a faster level completes. With S complete strata and d_s the difference of the two means in each:

    difference = Σ d_s / S − drift,    drift = slope · gap
    slope = Σ (x − x̄)(y − ȳ) / Σ (x − x̄)²    pooled within levels; x the policy version at a start, y the return
    gap   = Σ (x̄_c − x̄_r) / S + (D_c − D_r) / 2    D: mean number of versions during a level's episode
    error² = (σ_c² + σ_r²) / (K S) + gap² σ² / Σ (x − x̄)²,    z = difference / error

σ² is pooled within strata. While returns rise, the slower level starts its episodes of a stratum later and they last
longer, so newer policies play them; the drift is the difference that this explains. Only a level's mean duration
enters, not an episode's own, because long episodes may be the good ones.

Source: a stratified difference of means with equal cells, and analysis of covariance (Cochran 1957) for the drift.
Deviations: σ² is not that of the residuals, which a bent trend would inflate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monitor.decisions import Figure

Ints = npt.NDArray[np.integer]
EPISODES_PER_STRATUM = 4
"""K."""


@dataclass(frozen=True)
class ReturnComparison:
    """Returns of a candidate against a reference over the same strata.

    Attributes:
        candidate_episodes, reference_episodes: whole episodes that count.
        candidate_mean, reference_mean: their plain mean returns.
        difference: stratified candidate − reference, less the drift; error: its standard error.
        deviation: standard deviation of returns within strata, pooled over both levels.
        drift: the part of the difference that is explained by newer policies having played the candidate's episodes.
    """

    candidate_episodes: int = 0
    reference_episodes: int = 0
    candidate_mean: float = math.nan
    reference_mean: float = math.nan
    difference: float = 0.0
    error: float = 0.0
    deviation: float = 0.0
    drift: float = 0.0

    def __str__(self) -> str:
        if self.episodes == 0:
            return "no whole episodes to compare"
        return (
            f"return {self.candidate_mean:.4g} over {self.candidate_episodes} episodes against "
            f"{self.reference_mean:.4g} over {self.reference_episodes} concurrent ones (z {self.z:+.1f}{self._drifted})"
        )

    @property
    def _drifted(self) -> str:
        """The correction for drift as a clause; empty where it is negligible."""
        if abs(self.drift) < 0.1 * self.deviation:
            return ""
        sign = "newer" if self.drift > 0 else "older"
        return f", corrected by {abs(self.drift):.3g} because its policies were {sign}"

    @property
    def episodes(self) -> int:
        """Of the side that has fewer."""
        return min(self.candidate_episodes, self.reference_episodes)

    @property
    def z(self) -> float:
        """Difference in standard errors; infinite when returns do not vary and differ."""
        if self.difference == 0.0:
            return 0.0
        return self.difference / self.error if self.error > 0.0 else math.copysign(math.inf, self.difference)

    @property
    def effect(self) -> float:
        """Difference in standard deviations, or in tenths of the reference's mean where those are larger."""
        if self.difference == 0.0:
            return 0.0
        scale = max(self.deviation, 0.1 * abs(self.reference_mean))
        return self.difference / scale if scale > 0.0 else math.copysign(math.inf, self.difference)

    def figures(self) -> dict[str, Figure]:
        """Its numbers by the names that the decision log uses."""
        return {
            "return/candidate": None if math.isnan(self.candidate_mean) else self.candidate_mean,
            "return/reference": None if math.isnan(self.reference_mean) else self.reference_mean,
            "episodes/candidate": self.candidate_episodes,
            "episodes/reference": self.reference_episodes,
            "return_difference": self.difference,
            "return_drift": self.drift,
            "return_z": self.z,
            "return_effect": self.effect,
        }


@dataclass(frozen=True)
class _Episode:
    """A whole episode that counts; versions are those of the unrolls in which it began and ended."""

    value: float
    start: float
    end: float


@dataclass
class _Cell:
    """One level's episodes in one stratum."""

    started: int = 0
    episodes: list[_Episode] = field(default_factory=list)
    lost: int = 0

    @property
    def is_complete(self) -> bool:
        return self.started == EPISODES_PER_STRATUM and len(self.episodes) + self.lost == self.started


class _Side:
    """One level over all complete strata: running sums."""

    def __init__(self) -> None:
        self.count = self._freedom = 0
        self.mean = self.duration = self.spread = self.covariation = 0.0
        self._start = self._squares = 0.0

    def add(self, episodes: Sequence[_Episode]) -> tuple[float, float]:
        """Add the episodes of one stratum; returns the means of their returns and of their starts."""
        values, starts = np.array([(e.value, e.start) for e in episodes]).T
        self._squares += float(np.square(values - values.mean()).sum())
        self._freedom += len(episodes) - 1
        for episode in episodes:
            self.count += 1
            ahead = episode.start - self._start
            self._start += ahead / self.count
            self.mean += (episode.value - self.mean) / self.count
            self.duration += (episode.end - episode.start - self.duration) / self.count
            self.spread += ahead * (episode.start - self._start)
            self.covariation += ahead * (episode.value - self.mean)
        return float(values.mean()), float(starts.mean())

    @property
    def variance(self) -> float:
        """σ²."""
        return self._squares / self._freedom if self._freedom else 0.0


class ReturnLedger:
    """Follows every environment's episode through the unrolls of its actor, in order, while two levels are compared.

    Memory: one entry for each environment and each stratum that has not ended yet.
    """

    def __init__(self) -> None:
        self._levels = (-1, -1)
        self._reset()

    def begin(self, candidate: int, reference: int) -> None:
        """Compare these two levels: episodes that start from now on count."""
        self._levels = (candidate, reference)
        self._reset()

    def forget(self, actor: int) -> None:
        """Drop a dead actor and its unfinished episodes."""
        for key in [key for key in self._running if key[0] == actor]:
            self._lose(key)

    def observe(self, actor: int, version: float, levels: Ints, envs: Ints, returns: npt.NDArray[np.floating]) -> None:
        """Add one unroll.

        Args:
            actor: whose unroll it is.
            version: of the policy that acted.
            levels: [B] number of the level that acted on each environment throughout the unroll.
            envs: [n] environment of each episode that ended in it, earlier rows first.
            returns: [n] their returns.
        """
        for key, (level, _, _) in list(self._running.items()):
            if key[0] == actor and level != levels[key[1]]:
                self._lose(key)
        for env, value in zip(envs.tolist(), returns.tolist(), strict=True):
            key = (actor, env)
            if key in self._running:
                level, stratum, start = self._running.pop(key)
                self._cells[stratum][level].episodes.append(_Episode(value, start, version))
                self._settle(stratum)
            self._start(key, int(levels[env]), version)

    def compare(self) -> ReturnComparison:
        """Candidate against reference over all complete strata since ``begin``."""
        candidate, reference = self._sides
        if not self._strata:
            return ReturnComparison()
        pooled = (candidate.variance + reference.variance) / 2.0
        gap = self._lead / self._strata + (candidate.duration - reference.duration) / 2.0
        spread = candidate.spread + reference.spread
        slope = (candidate.covariation + reference.covariation) / spread if spread > 0.0 else 0.0
        # Sums of d_s rather than of returns: cells that lost an episode weigh as much as the others.
        variances = candidate.variance / candidate.count + reference.variance / reference.count
        return ReturnComparison(
            candidate_episodes=candidate.count,
            reference_episodes=reference.count,
            candidate_mean=candidate.mean,
            reference_mean=reference.mean,
            difference=self._differences / self._strata - slope * gap,
            error=math.sqrt(variances + (gap * gap * pooled / spread if spread > 0.0 else 0.0)),
            deviation=math.sqrt(pooled),
            drift=slope * gap,
        )

    def _reset(self) -> None:
        self._running: dict[tuple[int, int], tuple[int, int, float]] = {}
        self._stratum = 0
        self._cells: dict[int, dict[int, _Cell]] = {0: {level: _Cell() for level in self._levels}}
        self._sides = (_Side(), _Side())
        self._differences = self._lead = 0.0
        self._strata = 0

    def _start(self, key: tuple[int, int], level: int, version: float) -> None:
        """An episode begins; it counts if it is among the stratum's first of its level."""
        cells = self._cells[self._stratum]
        if level not in cells or cells[level].started == EPISODES_PER_STRATUM:
            return
        cells[level].started += 1
        self._running[key] = (level, self._stratum, version)
        if all(cell.started == EPISODES_PER_STRATUM for cell in cells.values()):
            self._stratum += 1
            self._cells[self._stratum] = {level: _Cell() for level in self._levels}

    def _lose(self, key: tuple[int, int]) -> None:
        level, stratum, _ = self._running.pop(key)
        self._cells[stratum][level].lost += 1
        self._settle(stratum)

    def _settle(self, stratum: int) -> None:
        cells = self._cells[stratum]
        if not all(cell.is_complete for cell in cells.values()):
            return
        del self._cells[stratum]
        candidate, reference = (cells[level].episodes for level in self._levels)
        if candidate and reference:
            ours, theirs = (side.add(found) for side, found in zip(self._sides, (candidate, reference), strict=True))
            self._differences += ours[0] - theirs[0]
            self._lead += ours[1] - theirs[1]
            self._strata += 1
