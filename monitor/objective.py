"""What a compression level is worth: the gain in return per second of wall-clock.

    gain per second = steps per second that the learner takes × effective share × gain per effective step

The first two are measured to a few per cent in seconds. The effective share is the effective sample size under π/μ,
with staleness and compression both, times the retention of the trace (``mismatch.py``). What learning makes of a step
shows only in returns, in minutes: it counts as equal until ``PairedTest`` finds the measured gain per second different,
and then that decides alone. So a level is

    worse    its returns rise more slowly per second; or, while that is open, its returns are lower, or its steps per
             second × effective share were lower in all, or all but one, of the last pairs
    better   its returns rise faster per second
    open     neither: the level in use stays

All is compared in pairs of blocks, one with every actor on the level and one with every actor on full precision. A
block's returns are the first m episodes of every environment that began in it, m being the least that any of them
ended: neither short episodes nor the faster level count more, and of the block with more of them as many are compared,
evenly spread over its time. Its gain is the slope of a line through the mean return of every environment's k-th episode
against the mean time of its end. Of blocks below ``LEARNING_S`` no returns are compared, as the noise of a gain falls
with the 1.5th power of their length. It is blind where a block has fewer than two episodes of an environment, and where
a replay gives both levels' experience to both blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel.monitor.decisions import Figure
from accel.monitor.sequential import Estimate, PairedTest, Verdict

Floats = npt.NDArray[np.float64]

RECENT, FEWEST = 8, 6
"""Pairs whose steps per second count, at most and at least."""
LEARNING_S = 10.0
"""Of both blocks of a pair whose returns count."""
EPISODES = 2
"""Of every environment, for which a block waits."""
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
SAME_KL = 0.01
"""Nats up to which a record calls two policies the same."""

Environment = tuple[int, int]
"""An actor and a row of its environments."""


@dataclass(frozen=True)
class Block:
    """What one block of training showed.

    Attributes:
        seconds: wall-clock. env_steps: that the learner took in it.
        share: effective share of a step, in [0, 1]; NaN where no sample was taken.
        returns, ends_s: [m, n] the first m episodes of n environments, and when they ended.
    """

    seconds: float
    env_steps: int
    share: float
    returns: Floats
    ends_s: Floats

    @property
    def steps_per_s(self) -> float:
        """Steps per second that the learner took."""
        return self.env_steps / self.seconds

    def mean_return(self, episodes: int) -> Estimate:
        """Of so many episodes of every environment, evenly spread over the block."""
        places = ((np.arange(episodes) + 0.5) * len(self.returns) / max(episodes, 1)).astype(np.int64)
        returns, ends_s = self.returns[places], self.ends_s[places]
        if not returns.size:
            return UNKNOWN
        spread = float(returns.std(ddof=1)) if returns.size > 1 else 0.0
        return Estimate(float(returns.mean()), spread / math.sqrt(returns.size), float(ends_s.mean()))

    def gain(self) -> Estimate:
        """Returns per second that training at this level gained; NaN below two episodes."""
        if len(self.returns) < EPISODES:
            return UNKNOWN
        times_s = self.ends_s.mean(axis=1)
        away_s = times_s - times_s.mean()
        if (squares := float(away_s @ away_s)) <= 0.0:  # all ended in one unroll
            return UNKNOWN
        slope = float(away_s @ self.returns.mean(axis=1)) / squares
        rest = self.returns - self.returns.mean() - slope * away_s[:, None]
        error = math.sqrt(float((rest**2).mean()) / (squares * self.returns.shape[1]))
        return Estimate(slope, error, float(times_s.mean()))


class BlockRecorder:
    """A block while it lasts: it begins when every actor has sent an unroll on its level.

    Args:
        level: of all actors.
    """

    def __init__(self, level: str) -> None:
        self.level = level
        self._actors: set[int] = set()
        self._episodes: dict[Environment, list[tuple[float, float]]] = {}
        self._began: tuple[float, int] | None = None

    def add(self, actor: int, level: str, ends: Iterable[tuple[int, float]], time_s: float) -> None:
        """One unroll, on ``level``, with the environment and return of each episode that ended in it, in order."""
        if level != self.level:  # the change is on its way, or full precision stands in
            self.lose(actor)
            return
        self._actors.add(actor)
        for environment, value in ends:
            key = actor, environment
            if key in self._episodes:
                self._episodes[key].append((value, time_s))
            else:
                self._episodes[key] = []  # this one began before

    def lose(self, actor: int) -> None:
        """Its episodes do not count."""
        self._actors.discard(actor)
        self._episodes = {key: found for key, found in self._episodes.items() if key[0] != actor}

    def over(
        self, time_s: float, env_steps: int, alive: Set[int], least_s: float, least_steps: int, known: Set[Environment]
    ) -> bool:
        """Whether it lasted so long, and every environment known to end episodes has ended ``EPISODES``; at most five
        times as long."""
        if self._began is None:
            if self._actors >= alive:
                self._began = time_s, env_steps
            return False
        lasted_s, taken = time_s - self._began[0], env_steps - self._began[1]
        ended = all(len(self._episodes.get(key, ())) >= EPISODES for key in known if key[0] in alive)
        return lasted_s >= least_s and taken >= least_steps and (ended or lasted_s >= 5.0 * least_s)

    def end(self, time_s: float, env_steps: int, share: float, known: Set[Environment]) -> Block:
        """What it showed, once it is over."""
        began_s, steps = self._began or (time_s, env_steps)
        found = [self._episodes.get(key, []) for key in sorted(known) if key[0] in self._actors]
        least = min(map(len, found), default=0)
        table = np.array([episodes[:least] for episodes in found], np.float64).reshape(len(found), least, 2)
        seconds = max(time_s - began_s, 1e-9)
        return Block(seconds, env_steps - steps, share, table[..., 0].T, table[..., 1].T)


class Comparison:
    """A level against full precision, over all pairs of a run.

    Args:
        level, full: their names.
    Attributes:
        returns, gain: the tests. kl: of the level's policy from full precision's, nats; NaN while unknown.
        blind: pairs long enough for returns that had too few of them.
        recent: steps per second and effective share over full precision's, of the last pairs; cleared where a level is
            tried again, when they may be others, while returns count on.
    """

    def __init__(self, level: str, full: str) -> None:
        self.level, self.full = level, full
        self.pairs = 0
        self.returns, self.gain = PairedTest(), PairedTest()
        self.kl = math.nan
        self.blind = 0
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._last: tuple[Block, Block] | None = None

    def add(self, level: Block, full: Block) -> None:
        """One pair."""
        self.pairs += 1
        self._last = level, full
        share = level.share / full.share if full.share > 0.0 else math.nan
        self.recent.append((level.steps_per_s / max(full.steps_per_s, 1e-9), share if math.isfinite(share) else 1.0))
        if min(level.seconds, full.seconds) < LEARNING_S:
            return
        episodes, seen = min(len(level.returns), len(full.returns)), self.gain.pairs
        self.returns.add(level.mean_return(episodes), full.mean_return(episodes))
        self.gain.add(level.gain(), full.gain())
        self.blind += self.gain.pairs == seen

    @property
    def speed(self) -> float:
        """Steps per second over full precision's: the median of the last pairs; 1 before the first."""
        return float(np.median([speed for speed, _ in self.recent])) if self.recent else 1.0

    @property
    def share(self) -> float:
        """Effective share over full precision's, likewise."""
        return float(np.median([share for _, share in self.recent])) if self.recent else 1.0

    @property
    def worth(self) -> float:
        """Effective steps per second over full precision's."""
        return self.speed * self.share

    @property
    def verdict(self) -> Verdict:
        """See the module's docstring."""
        if self.gain.verdict != "open":
            return self.gain.verdict
        slower = sum(speed * share < 1.0 for speed, share in self.recent)
        enough = len(self.recent) >= FEWEST and slower >= max(len(self.recent) - 1, FEWEST)
        return "worse" if self.returns.verdict == "worse" or enough else "open"

    @property
    def is_final(self) -> bool:
        """Whether returns gave the verdict, which is kept; steps per second may be others later."""
        return "worse" in (self.gain.verdict, self.returns.verdict)

    def __str__(self) -> str:
        """What it rests on, as a clause."""
        if self.gain.verdict != "open":
            mine, theirs = self.gain.medians()
            return f"returns rise by {mine:.3g} a second with it and by {theirs:.3g} with {self.full}"
        if self.returns.verdict == "worse":
            mine, theirs = self.returns.medians()
            return f"returns of {mine:.3g} with it and of {theirs:.3g} with {self.full}"
        clauses = "" if abs(self.share - 1.0) < 0.02 else f", each worth {self.share:.2f} of one"
        if math.isfinite(self.kl):
            clauses += f", same policy (KL {self.kl:.2g})" if self.kl < SAME_KL else f", policy at KL {self.kl:.2g}"
        return f"{self.speed:.2f} times as many steps a second as {self.full}{clauses}"

    def figures(self) -> dict[str, Figure]:
        """Every factor by name, of the last pair where it is of one; none before the first."""
        if self._last is None:
            return {}
        found: dict[str, Figure] = {"pairs": self.pairs, "speed": self.speed, "share": self.share, "kl": self.kl}
        for name, test in (("return", self.returns), ("gain", self.gain)):
            found[f"{name}_pairs"] = test.pairs
            found[f"{name}_evidence_worse"], found[f"{name}_evidence_better"] = test.evidence
        for level, block in zip((self.level, self.full), self._last, strict=True):
            found[f"steps_per_s/{level}"], found[f"effective_share/{level}"] = block.steps_per_s, block.share
            found[f"return/{level}"] = block.mean_return(len(block.returns)).mean
            found[f"gain_per_s/{level}"] = block.gain().mean
        return found
