"""Reward transforms of whole unrolls: running normalisation, then clipping, then scaling. No torch.

Normalisation divides by the running standard deviation of the discounted return, without centring:

    R_t = gamma R_{t-1} + r_t  (R = 0 before an episode's first step);   r'_t = r_t / sqrt(Var[R] + 1e-8).

Rows that are no transitions (automatic resets) keep reward 0 and leave the statistics alone.

Source: gymnasium.wrappers.NormalizeReward and Stable-Baselines3's VecNormalize. Deviations: R starts afresh after every
episode, truncated ones included, as in VecNormalize; the statistics are updated once per unroll, with all of its steps,
before that unroll is divided.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from accel.errors import CheckpointError, ConfigError

Floats: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]
_EPSILON = 1e-8


class RewardOptions(Protocol):
    """The run's options that decide the transform."""

    @property
    def reward_scale(self) -> float:
        """Factor on every reward, last."""

    @property
    def reward_clip(self) -> float | None:
        """Rewards are clipped to [-x, x] before scaling; None leaves them."""

    @property
    def normalise_rewards(self) -> bool:
        """Whether rewards are divided by the running deviation of the discounted return."""

    @property
    def discount(self) -> float:
        """gamma in [0, 1]."""


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
        added = values.size
        if not added:
            return
        total = self.count + added
        delta = float(values.mean()) - self.mean
        squares = self.variance * self.count + float(values.var()) * added + delta**2 * self.count * added / total
        self.mean += delta * added / total
        self.variance = squares / total
        self.count = total


class RewardTransform:
    """Transforms unrolls' rewards; keeps one running return per environment and one set of statistics for all.

    Args:
        options: the run's reward options and discount.
    Raises:
        ConfigError: the scale or the clip is not positive, or the discount is outside [0, 1].
    """

    def __init__(self, options: RewardOptions) -> None:
        self._scale = options.reward_scale
        self._clip = options.reward_clip
        self._discount = options.discount if options.normalise_rewards else None
        if not self._scale > 0 or not np.isfinite(self._scale):
            raise ConfigError(f"reward_scale is {self._scale}: it must be positive and finite")
        if self._clip is not None and not self._clip > 0:
            raise ConfigError(f"reward_clip is {self._clip}: it must be positive, or none to leave rewards unclipped")
        if self._discount is not None and not 0 <= self._discount <= 1:
            raise ConfigError(f"the discount is {self._discount}: it must lie in [0, 1]")
        self.moments = RunningMoments()
        self._returns: dict[int, npt.NDArray[np.float64]] = {}

    @property
    def is_identity(self) -> bool:
        """Whether ``apply`` gives rewards back as they are."""
        return self._scale == 1 and self._clip is None and self._discount is None

    def apply(self, actor: int, unroll: Rows) -> Floats:
        """The transformed rewards of one unroll.

        An actor's unrolls must come in order; where one was left out, running returns go on as if it had not been.

        Args:
            actor: whose environments these are.
            unroll: its ``rewards``, ``first`` and ``valid`` are read; nothing is written.
        Returns:
            [T, B] float32; the unroll's own array where there is nothing to do.
        """
        rewards = cast(Floats, unroll["rewards"])
        if self.is_identity:
            return rewards
        length = len(rewards)
        valid = cast(Flags, unroll["valid"][:length])
        result = np.where(valid, rewards, np.float32(0))
        if self._discount is not None:
            self._observe(actor, result, cast(Flags, unroll["first"][:length]), valid, self._discount)
            result *= np.float32(1 / np.sqrt(self.moments.variance + _EPSILON))
        if self._clip is not None:
            np.clip(result, -self._clip, self._clip, out=result)
        if self._scale != 1:
            result *= np.float32(self._scale)
        return result

    def _observe(self, actor: int, rewards: Floats, first: Flags, valid: Flags, discount: float) -> None:
        running = self._returns.get(actor)
        if running is None or len(running) != rewards.shape[1]:
            running = np.zeros(rewards.shape[1])
        decays = np.where(first, 0.0, discount)
        returns = np.empty(rewards.shape)
        for t in range(len(rewards)):
            running = np.multiply(running, decays[t], out=returns[t])
            running += rewards[t]
        self._returns[actor] = running.copy()
        self.moments.update(returns[valid])

    def is_finite(self) -> bool:
        """Whether the statistics are numbers: a reward that is none spoils them for good."""
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
