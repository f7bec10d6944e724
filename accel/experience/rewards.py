"""Reward transforms of whole unrolls: running normalisation, then clipping, then scaling. No torch.

Normalisation divides by the running standard deviation of the discounted return, without centring:

    R_t = gamma R_{t-1} + r_t  (R = 0 before an episode's first step);   r'_t = r_t / sqrt(Var[R] + 1e-8).

Rows that are no transitions (automatic resets) keep reward 0 and do not change the statistics.

Source: gymnasium.wrappers.NormalizeReward and Stable-Baselines3's VecNormalize. Deviations: R starts afresh after every
episode, truncated ones included, as in VecNormalize; the statistics are updated once per unroll, with all of its steps,
before it is used; rewards from a replay are divided by the statistics of the moment; VecNormalize's clip at 10 is an
option (``--reward-clip``), off by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from accel.errors import CheckpointError

if TYPE_CHECKING:
    from accel.config.actor import PriorityOptions
    from accel.config.parts import RewardConfig

Floats: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]
Sums: TypeAlias = tuple[float, float, float]
_EPSILON = 1e-8


class Rows(Protocol):
    """An unroll, by field name; ``rewards`` [T, B], ``first`` and ``valid`` [T, B] or [T+1, B] are read."""

    def __getitem__(self, name: str, /) -> npt.NDArray[np.generic]:
        """The field's array."""


class RunningMoments:
    """Mean and variance of all numbers seen, by Chan's pairwise update; starts as one ten-thousandth of N(0, 1)."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 1e-4

    def update(self, values: npt.NDArray[np.float64]) -> None:
        """Take in all of ``values``; an empty array changes nothing."""
        if values.size:
            self._take(values.size, float(values.mean()) - self.mean, float(values.var()))

    def sums(self, values: npt.NDArray[np.float64]) -> Sums:
        """Of 1, x − m and (x − m)² over values, m the mean so far; they add up over learners of the same statistics."""
        shifted = values - self.mean
        return float(values.size), float(shifted.sum()), float(np.square(shifted).sum())

    def merge(self, sums: Sums) -> None:
        """Take in what ``sums`` gave, added up."""
        added, shift, squares = sums
        if added:
            self._take(added, shift / added, max(squares / added - (shift / added) ** 2, 0.0))

    def _take(self, added: float, delta: float, variance: float) -> None:
        """Merge numbers whose mean is ``delta`` from the one so far."""
        total = self.count + added
        squares = self.variance * self.count + variance * added + delta**2 * self.count * added / total
        self.mean += delta * added / total
        self.variance = squares / total
        self.count = total


class RewardTransform:
    """Transforms unrolls' rewards; keeps one running return per environment and one set of statistics for all.

    Args:
        options: the run's reward options, or what an actor is told of them. discount: γ in [0, 1].
    """

    def __init__(self, options: RewardConfig | PriorityOptions, discount: float) -> None:
        self._scale = options.reward_scale
        self._clip = options.reward_clip
        self._discount = discount if options.normalise_rewards else None
        self.moments = RunningMoments()
        self._returns: dict[int, npt.NDArray[np.float64]] = {}
        self._collected: npt.NDArray[np.float64] | None = None

    def share(self) -> None:
        """From now on collect what is observed, for ``collected``, instead of taking it in at once."""
        self._collected = np.zeros(3)

    @property
    def is_identity(self) -> bool:
        """Whether ``transform`` gives rewards back as they are."""
        return self._scale == 1 and self._clip is None and self._discount is None

    def observe(self, actor: int, unroll: Rows) -> None:
        """Take in an unroll's rewards, once each; an actor's unrolls must come in order. Nothing is written."""
        if self._discount is None:
            return
        length = len(unroll["rewards"])
        valid = cast(Flags, unroll["valid"][:length])
        rewards = np.where(valid, cast(Floats, unroll["rewards"]), np.float32(0))
        running = self._returns.get(actor)
        if running is None or len(running) != rewards.shape[1]:
            running = np.zeros(rewards.shape[1])
        decays = np.where(cast(Flags, unroll["first"][:length]), 0.0, self._discount)
        returns = np.empty(rewards.shape)
        for t in range(length):
            running = np.multiply(running, decays[t], out=returns[t])
            running += rewards[t]
        self._returns[actor] = running.copy()
        if self._collected is None:
            self.moments.update(returns[valid])
        else:
            self._collected += self.moments.sums(returns[valid])

    def transform(self, unroll: Rows) -> Floats:
        """[T, B] transformed rewards by the statistics so far; the unroll's own array where there is nothing to do."""
        rewards = cast(Floats, unroll["rewards"])
        if self.is_identity:
            return rewards
        return self.of(np.where(cast(Flags, unroll["valid"][: len(rewards)]), rewards, np.float32(0)))

    def of(self, rewards: Floats) -> Floats:
        """Transformed rewards of any shape, written in place."""
        if self._discount is not None:
            rewards *= np.float32(1 / np.sqrt(self.moments.variance + _EPSILON))
        if self._clip is not None:
            np.clip(rewards, -self._clip, self._clip, out=rewards)
        if self._scale != 1:
            rewards *= np.float32(self._scale)
        return rewards

    def collected(self) -> Sums:
        """Where learners share statistics: sums over the returns since the last time, to be added up and merged."""
        if self._collected is None:
            return 0.0, 0.0, 0.0
        count, shift, squares = self._collected.tolist()
        self._collected[:] = 0.0
        return count, shift, squares

    def is_finite(self) -> bool:
        """Whether the statistics are finite: a NaN reward makes them NaN for ever."""
        return bool(np.isfinite(self.moments.variance))

    def state(self) -> dict[str, object]:
        """Everything that ``restore`` needs, as a JSON object; numbers survive JSON exactly."""
        return {
            "mean": self.moments.mean,
            "variance": self.moments.variance,
            "count": self.moments.count,
            "returns": {str(actor): values.tolist() for actor, values in self._returns.items()},
        }

    def restore(self, state: dict[str, object]) -> None:
        """Go on from ``state``. Raises CheckpointError when it is not one of ours."""
        try:
            numbers = [float(cast(float, state[name])) for name in ("mean", "variance", "count")]
            returns = cast(dict[str, list[float]], state["returns"])
            self._returns = {int(actor): np.array(values, np.float64) for actor, values in returns.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the reward normalisation's saved state is damaged: {error!r}") from error
        self.moments.mean, self.moments.variance, self.moments.count = numbers
