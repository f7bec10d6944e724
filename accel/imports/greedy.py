"""The greedy action rule: the greatest output, or the Gaussian mean, without noise. No torch."""

from __future__ import annotations

import numpy as np

from accel.acting.rules import ActionArray, ActorPlace, FloatArray, Sampler, StochasticRule

RULE = "accel.imports.greedy:GreedyRule"


class GreedyRule(StochasticRule):
    """Always the most likely action: the greatest logit or Q-value, or the Gaussian mean."""

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """See ``ActionRule.bind``."""
        return _GreedySampler(super().bind(place, generator))


class _GreedySampler:
    exploration: float | FloatArray | None = None

    def __init__(self, sampler: Sampler) -> None:
        self.greedy, self.log_prob, self.to_env = sampler.greedy, sampler.log_prob, sampler.to_env

    def begin(self, env_steps: int = 0) -> None:
        """Nothing is drawn."""

    def sample(self, outputs: FloatArray, t: int, out: ActionArray) -> None:
        """The most likely actions."""
        self.greedy(outputs, out)
