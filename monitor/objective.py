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
evenly spread over its time. Its gain is the mean of the last third of them less that
of the first third over the time between the two. It is blind where a block has fewer than two episodes of an
environment, and where a replay gives both levels' experience to both blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel.monitor.decisions import Figure
from accel.monitor.sequential import PairedTest, Verdict

Floats = npt.NDArray[np.float64]

RECENT, FEWEST = 8, 6
"""Pairs whose steps per second count, at most and at least."""
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

    def mean_return(self, episodes: int) -> tuple[float, float]:
        """Of so many episodes of every environment, evenly spread over the block, with its standard error."""
        places = ((np.arange(episodes) + 0.5) * len(self.returns) / max(episodes, 1)).astype(np.int64)
        return _mean(self.returns[places])

    def gain(self) -> tuple[float, float]:
        """Returns per second that training at this level gained, with its standard error; NaN below two episodes."""
        if len(self.returns) < 2:
            return math.nan, math.nan
        third = max(len(self.returns) // 3, 1)
        (early, early_error), (late, late_error) = _mean(self.returns[:third]), _mean(self.returns[-third:])
        apart_s = max(float(self.ends_s[-third:].mean() - self.ends_s[:third].mean()), 1e-9)
        return (late - early) / apart_s, math.hypot(early_error, late_error) / apart_s


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
        """Whether it lasted so long, and every environment known to end episodes has ended one; at most five times as
        long."""
        if self._began is None:
            if self._actors >= alive:
                self._began = time_s, env_steps
            return False
        lasted_s, taken = time_s - self._began[0], env_steps - self._began[1]
        ended = all(self._episodes.get(key) for key in known if key[0] in alive)
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
    """

    def __init__(self, level: str, full: str) -> None:
        self.level, self.full = level, full
        self.pairs = 0
        self.returns, self.gain = PairedTest(), PairedTest()
        self.kl = math.nan
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._gains: list[tuple[float, float]] = []
        self._last: tuple[Block, Block] | None = None

    def add(self, level: Block, full: Block) -> None:
        """One pair."""
        self.pairs += 1
        self._last = level, full
        share = level.share / full.share if full.share > 0.0 else math.nan
        self._recent.append((level.steps_per_s / max(full.steps_per_s, 1e-9), share if math.isfinite(share) else 1.0))
        episodes = min(len(level.returns), len(full.returns))
        if episodes:
            (mine, error), (theirs, other) = level.mean_return(episodes), full.mean_return(episodes)
            self.returns.add(mine - theirs, math.hypot(error, other))
        (mine, error), (theirs, other) = level.gain(), full.gain()
        self.gain.add(mine - theirs, math.hypot(error, other))
        if math.isfinite(mine - theirs):
            self._gains.append((mine, theirs))

    def try_again(self) -> None:
        """Forget steps per second, which may be others when the level is taken again; returns count on."""
        self._recent.clear()

    @property
    def speed(self) -> float:
        """Steps per second over full precision's: the median of the last pairs; 1 before the first."""
        return float(np.median([speed for speed, _ in self._recent])) if self._recent else 1.0

    @property
    def share(self) -> float:
        """Effective share over full precision's, likewise."""
        return float(np.median([share for _, share in self._recent])) if self._recent else 1.0

    @property
    def worth(self) -> float:
        """Effective steps per second over full precision's."""
        return self.speed * self.share

    @property
    def recent(self) -> int:
        """Pairs whose steps per second count."""
        return len(self._recent)

    @property
    def verdict(self) -> Verdict:
        """See the module's docstring."""
        if self.gain.verdict != "open":
            return self.gain.verdict
        slower = sum(speed * share < 1.0 for speed, share in self._recent)
        enough = len(self._recent) >= FEWEST and slower >= max(len(self._recent) - 1, FEWEST)
        return "worse" if self.returns.verdict == "worse" or enough else "open"

    @property
    def is_final(self) -> bool:
        """Whether returns gave the verdict, which is kept; steps per second may be others later."""
        return "worse" in (self.gain.verdict, self.returns.verdict)

    def __str__(self) -> str:
        """What it rests on, as a clause."""
        if self.gain.verdict != "open":
            mine, theirs = np.mean(self._gains, axis=0)
            return f"returns rise by {mine:.3g} a second with it and by {theirs:.3g} with {self.full}"
        if self.returns.verdict == "worse":
            return f"lower returns than with {self.full} in {self.returns.pairs} comparisons"
        worth = "" if abs(self.share - 1.0) < 0.02 else f", each worth {self.share:.2f} of one"
        return f"{self.speed:.2f} times as many steps a second as {self.full}{worth}{_policy_clause(self.kl)}"

    def figures(self) -> dict[str, Figure]:
        """Every factor by name, of the last pair where it is of one."""
        found: dict[str, Figure] = {"pairs": self.pairs, "speed": self.speed, "share": self.share, "kl": self.kl}
        for name, test in (("return", self.returns), ("gain", self.gain)):
            found[f"{name}_pairs"] = test.pairs
            found[f"{name}_evidence_worse"], found[f"{name}_evidence_better"] = test.evidence
        for level, block in zip((self.level, self.full), self._last or (), strict=False):
            found[f"steps_per_s/{level}"], found[f"effective_share/{level}"] = block.steps_per_s, block.share
            found[f"return/{level}"], found[f"gain_per_s/{level}"] = (
                block.mean_return(len(block.returns))[0],
                block.gain()[0],
            )
        return found


def _policy_clause(kl: float) -> str:
    """How far a policy is from full precision's, as a clause after a comma; empty while unknown."""
    if not math.isfinite(kl):
        return ""
    return f", same policy (KL {kl:.2g})" if kl < SAME_KL else f", policy at KL {kl:.2g}"


def _mean(values: Floats) -> tuple[float, float]:
    if not values.size:
        return math.nan, math.nan
    spread = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return float(values.mean()), spread / math.sqrt(values.size)
