"""What an actor thinks of its own transitions: temporal differences from the Q-values that it acted by. No torch.

    δ_t = R_t + γ^m max_a Q(o_{t+m}, a) − Q(o_t, a_t),   m ≤ n steps

A row's difference needs the n rows after it: those of an unroll's last n rows travel with the next unroll.

Source: Horgan et al. 2018, arXiv:1803.00933, section 3. Deviations: Q is that of the compressed policy that acted,
target included; rewards are normalised by the statistics of this actor's own, which those of all come near; where an
environment resets within a step, a truncated episode is taken to end.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from accel.config.actor import PriorityOptions
from accel.envs.spaces import ALLOWED_ABOVE
from accel.experience.rewards import RewardTransform
from accel.experience.unroll import Unroll, UnrollLayout

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class TemporalDifferences:
    """|δ| of an actor's environments with one discrete action, unroll by unroll."""

    def __init__(self, layout: UnrollLayout, options: PriorityOptions) -> None:
        n_step = options.n_step
        self._n, self._discount = n_step, options.discount
        self._duelling = options.duelling
        self._transform = RewardTransform(options, options.discount)
        self._same_step = layout.spec.autoreset == "same_step"
        envs = layout.envs
        self._taken, self._best, self._rewards = (np.zeros((n_step, envs), np.float32) for _ in range(3))
        self._terminated, self._truncated = (np.ones((n_step, envs), np.bool_) for _ in range(2))

    def of(self, unroll: Unroll) -> Floats:
        """[T, B] of the rows from n before the unroll's first to n before its last; of those without a step, anything.

        Unrolls come in order, each once.
        """
        taken, best = self._values(unroll)
        # The learner drops what is not finite; here it must not stay in the statistics.
        rewards = np.nan_to_num(unroll["rewards"], posinf=0.0, neginf=0.0)
        rows = {"rewards": rewards, "first": unroll["first"], "valid": unroll["valid"]}
        self._transform.observe(0, rows)
        self._taken = np.concatenate((self._taken[-self._n :], taken))
        self._best = np.concatenate((self._best[-self._n :], best))
        self._rewards = np.concatenate((self._rewards[-self._n :], self._transform.transform(rows)))
        self._terminated = np.concatenate((self._terminated[-self._n :], cast(Flags, unroll["terminated"])))
        self._truncated = np.concatenate((self._truncated[-self._n :], cast(Flags, unroll["truncated"])))
        return self._differences(len(taken))

    def _differences(self, rows: int) -> Floats:
        total, power = np.zeros_like(self._taken[:rows]), np.float32(1.0)
        following = np.zeros_like(total)
        going_on = np.ones(total.shape, np.bool_)
        for k in range(self._n):
            now = slice(k, k + rows)
            total += np.where(going_on, self._rewards[now] * power, np.float32(0.0))
            power *= np.float32(self._discount)
            truncated = self._truncated[now] & ~self._terminated[now]
            if not self._same_step:
                ends = going_on & truncated
                following += np.where(ends, power * self._best[k + 1 : k + 1 + rows], np.float32(0.0))
            going_on &= ~(self._terminated[now] | truncated)
        following += np.where(going_on, power * self._best[self._n : self._n + rows], np.float32(0.0))
        differences: Floats = np.abs(total + following - self._taken[:rows])
        return differences

    def _values(self, unroll: Unroll) -> tuple[Floats, Floats]:
        """[T, B] Q of the action taken and the greatest."""
        outputs, actions = cast(Floats, unroll["behaviour_params"]), cast(npt.NDArray[np.int64], unroll["actions"])
        if self._duelling:
            advantages, value = outputs[..., :-1], outputs[..., -1:]
            # NaN counts as allowed: a mean of nothing would warn
            outputs = value + advantages - advantages.mean(-1, keepdims=True, where=~(advantages <= ALLOWED_ABOVE))
        return np.take_along_axis(outputs, actions[..., None], -1)[..., 0], outputs.max(-1)
