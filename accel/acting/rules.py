"""Action rules: how an actor turns the policy's outputs into actions, and the resulting policy μ. No torch.

A rule is chosen by the algorithm and travels to the actors as a ``RuleSpec``. Bound to an actor it is a ``Sampler``,
which draws the noise of a whole unroll in one call. A rule also gives the action distribution for outputs, so that
recorded log-probabilities, divergences and mismatch are those of the acting policy; ``accel.algorithms.distributions``
holds the torch twins.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from accel.envs.spaces import ALLOWED_ABOVE, MASKED, ActionSpec
from accel.errors import ConfigError

FloatArray = npt.NDArray[np.float32]
ActionArray = npt.NDArray[np.int64 | np.float32]

LOG_STD_BOUNDS = (-5.0, 2.0)
"""Of a Gaussian whose deviation the policy gives for each state: wider ones explore nothing but the actions' ends."""
_LOG_2PI = math.log(2.0 * math.pi)
# resolution of float32 draws of an exponential: an exact zero stands for anything below it
_LEAST_EXPONENTIAL = np.float32(2.0**-25)
# lower bound of probabilities, as log 0 is not finite
_LEAST_PROBABILITY = np.float32(1e-8)


@dataclass(frozen=True)
class RuleSpec:
    """Which rule, as it travels: a name of ``_RULES`` or ``module:factory``, and plain JSON keyword arguments of it."""

    name: str = "stochastic"
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ActorPlace:
    """Where a rule acts: actor number ``actor`` of ``actors``, which steps ``envs`` environments, T rows an unroll."""

    envs: int
    unroll_length: int
    actor: int = 0
    actors: int = 1


class ActionRule(Protocol):
    """From a policy's outputs [..., P] to actions.

    Attributes:
        output_size: P.
        explores: whether exploration is a number per row, ε, that unrolls record; otherwise it is in the outputs.
    """

    output_size: int
    explores: bool

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """A sampler for one actor; ``generator`` is its only source of randomness. Raises ConfigError."""

    def action_params(self, outputs: FloatArray, exploration: FloatArray | None) -> FloatArray:
        """Parameters of the action space's distribution, [..., ActionSpec.param_size].

        Args:
            outputs: [..., P].
            exploration: [...] ε of each row where the rule explores; None: that of a trained policy.
        """


class Sampler(Protocol):
    """Samples the actions of B environments, row by row of an unroll of T steps.

    ``begin`` is called before every unroll; ``sample`` then neither draws random numbers nor allocates. Actions are as
    sampled: indices (int64), or Gaussian samples (float32) before clipping or squashing.

    Attributes:
        exploration: ε of the unroll that was begun last, one for all or [B]; None where the rule does not explore.
    """

    exploration: float | FloatArray | None

    def begin(self, env_steps: int = 0) -> None:
        """Draws the noise of one whole unroll, [T, B, ...]; ``env_steps``: of the whole run so far, as far as known."""

    def sample(self, outputs: FloatArray, t: int, out: ActionArray) -> None:
        """Writes one sample per environment for row ``t`` (0 <= t < T): ``outputs`` [B, P], ``out`` [B, *shape]."""

    def greedy(self, outputs: FloatArray, out: ActionArray) -> None:
        """Writes the most likely actions: ``outputs`` [B, P], ``out`` [B, *shape]."""

    def log_prob(self, outputs: FloatArray, actions: ActionArray) -> FloatArray:
        """Log-probability (density) of actions as sampled, nats: [..., P] and [..., *shape] to [...] float32."""

    def to_env(self, actions: ActionArray) -> ActionArray:
        """What the environment gets, [B, *shape]: indices as they are; Gaussian samples clipped or squashed, copied."""


class StochasticRule:
    """Samples from the distribution that the outputs parametrise: a softmax, several, or a Gaussian."""

    explores = False

    def __init__(self, action: ActionSpec) -> None:
        self._action = action
        self.output_size = action.param_size

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """See ``ActionRule.bind``."""
        if self._action.kind == "gaussian":
            return _GaussianSampler(self, self._action, place, generator)
        return _CategoricalSampler(self._action, place, generator)

    def action_params(self, outputs: FloatArray, exploration: FloatArray | None) -> FloatArray:
        """The outputs themselves."""
        return outputs


class SquashedGaussianRule(StochasticRule):
    """A Gaussian whose means and log deviations the policy gives for each state, these kept within bounds."""

    def __init__(self, action: ActionSpec) -> None:
        if action.kind != "gaussian" or not action.squash:
            raise ConfigError(
                f"this rule needs continuous actions that are squashed into their bounds, not {action.kind} ones: "
                "set --squash-actions, or use another algorithm"
            )
        super().__init__(action)

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """See ``ActionRule.bind``."""
        return _SquashedGaussianSampler(self, self._action, place, generator)

    def action_params(self, outputs: FloatArray, exploration: FloatArray | None) -> FloatArray:
        """Means and bounded log deviations, [..., 2k]."""
        params = outputs.copy()
        log_std = params[..., self._action.sizes[0] :]
        np.clip(log_std, *LOG_STD_BOUNDS, out=log_std)
        return params


class GaussianNoiseRule(SquashedGaussianRule):
    """A deterministic policy's action, tanh of its outputs in [-1, 1], with noise of one deviation around it.

    The divergence of two such policies is that of the Gaussians: squared action error over twice the noise's variance.
    ``noise`` is σ, in units of half the action's range, whose bounds are finite.
    """

    def __init__(self, action: ActionSpec, *, noise: float) -> None:
        super().__init__(action)
        self.noise = noise
        self.output_size = action.sizes[0]

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """See ``ActionRule.bind``."""
        return _GaussianNoiseSampler(self, self._action, place, generator)

    def action_params(self, outputs: FloatArray, exploration: FloatArray | None) -> FloatArray:
        """Means in [-1, 1] and log σ, [..., 2k]."""
        means = np.tanh(outputs)
        return np.concatenate((means, np.full_like(means, math.log(self.noise))), -1)


class EpsilonGreedyRule:
    """The greatest Q-value with probability 1 − ε + ε/n, any other action with ε/n, n allowed ones.

    ε falls linearly from ``initial_epsilon`` to ``final_epsilon`` over ``exploration_env_steps`` of the whole run. With
    an ``exponent`` α it is constant, and another one for each of the M environments of all actors,
    initial^(1 + α i/(M−1)).

    With ``duelling``, outputs are n advantages and the state's value, [A…, V], with Q = V + A − mean A; else Q itself.

    Source of α:
        Horgan et al. 2018, arXiv:1803.00933, section 4.1. Deviation: i counts environments; an actor has several.
    """

    explores = True

    def __init__(
        self,
        action: ActionSpec,
        *,
        duelling: bool = False,
        initial_epsilon: float = 1.0,
        final_epsilon: float = 0.05,
        exploration_env_steps: int = 10_000,
        exponent: float | None = None,
    ) -> None:
        if action.kind != "categorical":
            raise ConfigError(
                f"ε-greedy actions need one discrete action, not {action.kind} actions: use --algorithm ppo"
            )
        self.actions = action.sizes[0]
        self.masked = action.masked
        self.output_size = self.actions + duelling
        self._initial, self._final, self._steps = initial_epsilon, final_epsilon, exploration_env_steps
        self._exponent = exponent

    def epsilon(self, env_steps: int, place: ActorPlace) -> float | FloatArray:
        """ε after so many environment steps of the whole run; [B] where each environment has its own."""
        if self._exponent is not None:
            environments = place.actors * place.envs
            ladder = (place.actor * place.envs + np.arange(place.envs)) / max(environments - 1, 1)
            found: FloatArray = (self._initial ** (1.0 + self._exponent * ladder)).astype(np.float32)
            return found
        left = max(1.0 - env_steps / self._steps, 0.0)
        return self._final + (self._initial - self._final) * left

    def bind(self, place: ActorPlace, generator: np.random.Generator) -> Sampler:
        """See ``ActionRule.bind``."""
        return _EpsilonGreedySampler(self, place, generator)

    def action_params(self, outputs: FloatArray, exploration: FloatArray | None) -> FloatArray:
        """log μ(·|s) [..., n], with probabilities of zero as 1e-8."""
        epsilon = np.full(outputs.shape[:-1], self._final, np.float32) if exploration is None else exploration
        best = outputs[..., : self.actions].argmax(-1)
        allowed = outputs[..., : self.actions] > ALLOWED_ABOVE
        count = np.maximum(allowed.sum(-1), 1) if self.masked else self.actions
        is_best = np.arange(self.actions) == best[..., None]
        probabilities = (epsilon / count)[..., None] + np.where(is_best, (1.0 - epsilon)[..., None], np.float32(0.0))
        log_probabilities = np.log(np.maximum(probabilities, _LEAST_PROBABILITY), dtype=np.float32)
        return np.where(allowed, log_probabilities, np.float32(MASKED)) if self.masked else log_probabilities


_RULES: Mapping[str, Callable[..., ActionRule]] = {
    "stochastic": StochasticRule,
    "squashed-gaussian": SquashedGaussianRule,
    "gaussian-noise": GaussianNoiseRule,
    "epsilon-greedy": EpsilonGreedyRule,
}


def make_rule(spec: RuleSpec, action: ActionSpec) -> ActionRule:
    """The rule that a spec names. Raises ConfigError: unknown, or not for this action space."""
    if spec.name in _RULES:
        return _RULES[spec.name](action, **spec.options)
    module_name, colon, name = spec.name.partition(":")
    if not colon:
        raise ConfigError(f"unknown action rule '{spec.name}'; there are {', '.join(_RULES)}, or module:factory")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"action rule '{spec.name}' cannot be loaded: {error}") from error
    return cast(ActionRule, factory(action, **spec.options))


class _EpsilonGreedySampler:
    def __init__(self, rule: EpsilonGreedyRule, place: ActorPlace, rng: np.random.Generator) -> None:
        self.exploration: float | FloatArray | None = rule.epsilon(0, place)
        self._rule = rule
        self._place = place
        self._rng = rng
        self._size = (place.unroll_length, place.envs)

    def begin(self, env_steps: int = 0) -> None:
        self.exploration = self._rule.epsilon(env_steps, self._place)
        self._explores = self._rng.random(self._size, np.float32) < self.exploration
        if self._rule.masked:
            self._uniform = self._rng.random(self._size)
        else:
            self._random = self._rng.integers(self._rule.actions, size=self._size)

    def sample(self, outputs: FloatArray, t: int, out: ActionArray) -> None:
        self.greedy(outputs, out)
        random = self._allowed(outputs, self._uniform[t]) if self._rule.masked else self._random[t]
        np.copyto(out, random, where=self._explores[t])

    def _allowed(self, outputs: FloatArray, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """One of each row's allowed actions, [B], by uniform numbers in [0, 1); the first where there are none."""
        count = np.cumsum(outputs[:, : self._rule.actions] > ALLOWED_ABOVE, axis=1)
        chosen: npt.NDArray[np.int64] = (count > np.floor(uniform * count[:, -1])[:, None]).argmax(1)
        return chosen

    def greedy(self, outputs: FloatArray, out: ActionArray) -> None:
        outputs[:, : self._rule.actions].argmax(1, out)  # type: ignore[type-var]

    def log_prob(self, outputs: FloatArray, actions: ActionArray) -> FloatArray:
        epsilon = np.broadcast_to(np.asarray(self.exploration, np.float32), outputs.shape[:-1])
        params = self._rule.action_params(outputs, epsilon)
        return np.take_along_axis(params, actions[..., None].astype(np.int64), -1)[..., 0]

    def to_env(self, actions: ActionArray) -> ActionArray:
        return actions


def make_sampler(action: ActionSpec, num_envs: int, unroll_length: int, rng: np.random.Generator) -> Sampler:
    """The sampler of an action space's own distribution, for B environments and T rows. Raises ConfigError."""
    return StochasticRule(action).bind(ActorPlace(num_envs, unroll_length), rng)


class _CategoricalSampler:
    """Gumbel-max: argmax_i(logit_i + g_i) ~ softmax(logits), with g = -log e and e standard exponential.

    Several independent categoricals are laid out [B, k, largest size] so that one argmax serves them all.
    """

    exploration: float | FloatArray | None = None

    def __init__(self, action: ActionSpec, place: ActorPlace, rng: np.random.Generator) -> None:
        self._rng = rng
        self._sizes = sizes = action.sizes
        self._shape = (place.envs, *action.shape, max(sizes))
        offsets = np.cumsum((0, *sizes[:-1]))[:, None]
        column = np.arange(max(sizes))[None, :]
        missing = column >= np.asarray(sizes)[:, None]
        # A missing column repeats a real logit and loses to it: its noise is infinite.
        self._columns = np.where(missing, offsets, offsets + column)
        self._missing = np.broadcast_to(missing, self._shape) if missing.any() else None
        self._negative_gumbel = np.zeros((place.unroll_length, *self._shape), np.float32)
        self._rows = list(self._negative_gumbel)
        self._padding = np.where(missing, np.float32(np.inf), np.float32(0.0))
        self._logits = np.empty(self._shape, np.float32)
        self._scores = np.empty(self._shape, np.float32)

    def begin(self, env_steps: int = 0) -> None:
        drawn = self._negative_gumbel
        self._rng.standard_exponential(dtype=np.float32, out=drawn)
        # With a drawn zero, actions whose probability is zero in single precision could be chosen.
        np.maximum(drawn, _LEAST_EXPONENTIAL, out=drawn)
        np.log(drawn, drawn)
        if self._missing is not None:
            drawn[:, self._missing] = np.inf

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        np.subtract(self._padded(params), self._rows[t], self._scores)
        self._scores.argmax(-1, out)  # type: ignore[type-var]

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        np.subtract(self._padded(params), self._padding, self._scores)
        self._scores.argmax(-1, out)  # type: ignore[type-var]

    def log_prob(self, params: FloatArray, actions: ActionArray) -> FloatArray:
        flat_params = params.reshape(-1, params.shape[-1])
        flat_actions = actions.reshape(-1, len(self._sizes))
        total = np.zeros(len(flat_params), np.float32)
        start = 0
        for component, size in enumerate(self._sizes):
            total += _categorical_log_prob(flat_params[:, start : start + size], flat_actions[:, component])
            start += size
        return total.reshape(params.shape[:-1])

    def to_env(self, actions: ActionArray) -> ActionArray:
        return actions

    def _padded(self, params: FloatArray) -> FloatArray:
        if len(self._sizes) == 1:
            return params
        if self._missing is None:
            return params.reshape(self._shape)
        return params.take(self._columns, 1, self._logits, "clip")


class _GaussianSampler:
    """Diagonal Gaussian over the sample before squashing; no Jacobian enters the density."""

    exploration: float | FloatArray | None = None

    def __init__(self, rule: ActionRule, action: ActionSpec, place: ActorPlace, rng: np.random.Generator) -> None:
        self._rule, self._rng = rule, rng
        self._size = action.sizes[0]
        self._noise = np.zeros((place.unroll_length, place.envs, self._size), np.float32)
        self._rows = list(self._noise)
        self._scale = np.empty((place.envs, self._size), np.float32)
        self._squash = action.squash
        low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
        # a row for each environment: numpy takes twice as long where it repeats one
        self._low, self._high = (np.tile(bound, (place.envs, 1)) for bound in (low, high))
        self._bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        if self._squash and not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"squashed actions need finite bounds, these are {action.low} to {action.high}: "
                "switch squashing off, or wrap the environment with gymnasium's RescaleAction"
            )
        if self._squash:
            self._centre, self._half_range = _centre_and_half_range(low, high)

    def begin(self, env_steps: int = 0) -> None:
        self._rng.standard_normal(dtype=np.float32, out=self._noise)

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        scale = self._scale
        np.exp(params[:, self._size :], scale)
        np.multiply(scale, self._rows[t], scale)
        np.add(params[:, : self._size], scale, out)

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        np.copyto(out, params[:, : self._size])

    def log_prob(self, outputs: FloatArray, actions: ActionArray) -> FloatArray:
        params = self._rule.action_params(outputs, None)
        log_std = params[..., self._size :]
        scaled = np.exp(-log_std)
        scaled *= actions - params[..., : self._size]
        scaled *= scaled
        scaled += 2.0 * log_std
        total: FloatArray = scaled.sum(-1)
        return np.float32(-0.5) * total - np.float32(0.5 * self._size * _LOG_2PI)

    def to_env(self, actions: ActionArray) -> ActionArray:
        # Always a new array: some environments keep a reference to their last action.
        if self._squash:
            squashed = np.tanh(actions)
            squashed *= self._half_range
            squashed += self._centre
            return squashed
        if not self._bounded:
            return actions.copy()
        rows = len(actions)
        clipped = np.maximum(actions, self._low[:rows])
        return np.minimum(clipped, self._high[:rows], out=clipped)


class _SquashedGaussianSampler(_GaussianSampler):
    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        scale = self._scale
        np.clip(params[:, self._size :], *LOG_STD_BOUNDS, out=scale)
        np.exp(scale, scale)
        np.multiply(scale, self._rows[t], scale)
        np.add(params[:, : self._size], scale, out)


class _GaussianNoiseSampler(_GaussianSampler):
    """Actions as sampled are the noisy ones in units of half the range; what lies outside is clipped for the env."""

    _rule: GaussianNoiseRule

    def begin(self, env_steps: int = 0) -> None:
        super().begin(env_steps)
        self._noise *= np.float32(self._rule.noise)

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        np.tanh(params, out)
        np.add(out, self._rows[t], out)

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        np.tanh(params, out)

    def to_env(self, actions: ActionArray) -> ActionArray:
        clipped: FloatArray = np.clip(cast(FloatArray, actions), -1.0, 1.0)
        clipped *= self._half_range
        clipped += self._centre
        return clipped


def _centre_and_half_range(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Such that centre ± half_range, rounded to float32, stays within the bounds."""
    centre, half_range = low / np.float32(2.0) + high / np.float32(2.0), high / np.float32(2.0) - low / np.float32(2.0)
    while (outside := (centre + half_range > high) | (centre - half_range < low)).any():
        half_range = np.where(outside, np.nextafter(half_range, np.float32(0.0)), half_range)
    return centre, half_range


def _categorical_log_prob(logits: FloatArray, actions: ActionArray) -> FloatArray:
    """[N, n] logits and [N] indices to [N]; transposed, because numpy reduces long rows fast and short ones slowly."""
    shifted = np.array(logits.T, order="C")
    shifted -= shifted.max(axis=0)
    taken: FloatArray = shifted[actions, np.arange(len(actions))]
    np.exp(shifted, shifted)
    taken -= np.log(shifted.sum(axis=0))
    return taken
