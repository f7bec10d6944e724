"""How actors sample: the action distributions in numpy, with the noise of a whole unroll drawn in one call. No torch.

``accel.algorithms.distributions`` holds the same distributions in torch, for the learner.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from accel.envs.spaces import ActionSpec
from accel.errors import ConfigError

FloatArray = npt.NDArray[np.float32]
ActionArray = npt.NDArray[np.int64 | np.float32]

_LOG_2PI = math.log(2.0 * math.pi)
_TINY = float(np.finfo(np.float32).tiny)


class Sampler(Protocol):
    """Samples the actions of B environments, row by row of an unroll of T steps.

    ``begin`` is called before every unroll; ``sample`` then neither draws random numbers nor allocates. Actions are as
    sampled: indices (int64), or Gaussian samples (float32) before clipping or squashing.
    """

    def begin(self) -> None:
        """Draws the noise of one whole unroll, [T, B, ...]."""
        ...

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        """Writes one sample per environment for row ``t`` (0 <= t < T): ``params`` [B, P], ``out`` [B, *shape]."""
        ...

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        """Writes the most likely actions: ``params`` [B, P], ``out`` [B, *shape]."""
        ...

    def log_prob(self, params: FloatArray, actions: ActionArray) -> FloatArray:
        """Log-probability (density) of actions as sampled, nats: [..., P] and [..., *shape] to [...] float32."""
        ...

    def to_env(self, actions: ActionArray) -> ActionArray:
        """What the environment gets, [B, *shape]: indices as they are; Gaussian samples clipped or squashed, copied."""
        ...


def make_sampler(action: ActionSpec, num_envs: int, unroll_length: int, rng: np.random.Generator) -> Sampler:
    """The sampler of an action space.

    Args:
        action: the action space.
        num_envs: B, environments sampled at once.
        unroll_length: T, rows of noise drawn by each ``begin``.
        rng: the only source of randomness; the same state gives the same actions.
    Raises:
        ConfigError: B or T is not positive, or squashing is asked for with an infinite bound.
    """
    if num_envs < 1 or unroll_length < 1:
        raise ConfigError(f"a sampler needs at least 1 environment and 1 row, not {num_envs} and {unroll_length}")
    if action.kind == "categorical":
        return _CategoricalSampler(action.sizes[0], num_envs, unroll_length, rng)
    if action.kind == "multi_categorical":
        return _MultiCategoricalSampler(action.sizes, num_envs, unroll_length, rng)
    return _GaussianSampler(action, num_envs, unroll_length, rng)


class _CategoricalSampler:
    """Gumbel-max: argmax_i(logit_i + g_i) ~ softmax(logits), with g = -log e and e standard exponential."""

    def __init__(self, size: int, num_envs: int, unroll_length: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._negative_gumbel = np.zeros((unroll_length, num_envs, size), np.float32)
        self._rows = list(self._negative_gumbel)
        self._scores = np.empty((num_envs, size), np.float32)

    def begin(self) -> None:
        _draw_negative_gumbel(self._rng, self._negative_gumbel)

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        np.subtract(params, self._rows[t], self._scores)
        self._scores.argmax(1, out)  # type: ignore[type-var]

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        params.argmax(1, out)  # type: ignore[type-var]

    def log_prob(self, params: FloatArray, actions: ActionArray) -> FloatArray:
        size = params.shape[-1]
        return _categorical_log_prob(params.reshape(-1, size), actions.reshape(-1)).reshape(actions.shape)

    def to_env(self, actions: ActionArray) -> ActionArray:
        return actions


class _MultiCategoricalSampler:
    """Independent categoricals, laid out [B, k, largest size] so that one argmax serves them all."""

    def __init__(self, sizes: tuple[int, ...], num_envs: int, unroll_length: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._sizes = sizes
        self._shape = (num_envs, len(sizes), max(sizes))
        offsets = np.cumsum((0, *sizes[:-1]))[:, None]
        column = np.arange(max(sizes))[None, :]
        missing = column >= np.asarray(sizes)[:, None]
        # A missing column repeats a real logit and loses to it: its noise is infinite.
        self._columns = np.where(missing, offsets, offsets + column)
        self._missing = np.broadcast_to(missing, self._shape) if missing.any() else None
        self._negative_gumbel = np.zeros((unroll_length, *self._shape), np.float32)
        self._rows = list(self._negative_gumbel)
        self._padding = np.where(missing, np.float32(np.inf), np.float32(0.0))
        self._logits = np.empty(self._shape, np.float32)
        self._scores = np.empty(self._shape, np.float32)

    def begin(self) -> None:
        _draw_negative_gumbel(self._rng, self._negative_gumbel)
        if self._missing is not None:
            self._negative_gumbel[:, self._missing] = np.inf

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        np.subtract(self._padded(params), self._rows[t], self._scores)
        self._scores.argmax(2, out)  # type: ignore[type-var]

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        np.subtract(self._padded(params), self._padding, self._scores)
        self._scores.argmax(2, out)  # type: ignore[type-var]

    def log_prob(self, params: FloatArray, actions: ActionArray) -> FloatArray:
        flat_params = params.reshape(-1, params.shape[-1])
        flat_actions = actions.reshape(-1, len(self._sizes))
        total = np.zeros(len(flat_params), np.float32)
        start = 0
        for component, size in enumerate(self._sizes):
            total += _categorical_log_prob(flat_params[:, start : start + size], flat_actions[:, component])
            start += size
        return total.reshape(actions.shape[:-1])

    def to_env(self, actions: ActionArray) -> ActionArray:
        return actions

    def _padded(self, params: FloatArray) -> FloatArray:
        if self._missing is None:
            return params.reshape(self._shape)
        return params.take(self._columns, 1, self._logits, "clip")


class _GaussianSampler:
    """Diagonal Gaussian over the sample before squashing; no Jacobian enters the density."""

    def __init__(self, action: ActionSpec, num_envs: int, unroll_length: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._size = action.sizes[0]
        self._noise = np.zeros((unroll_length, num_envs, self._size), np.float32)
        self._rows = list(self._noise)
        self._scale = np.empty((num_envs, self._size), np.float32)
        self._squash = action.squash
        low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
        self._low, self._high = low, high
        self._bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())
        if self._squash and not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(
                f"squashed actions need finite bounds, these are {action.low} to {action.high}: "
                "switch squashing off, or wrap the environment with gymnasium's RescaleAction"
            )
        if self._squash:
            self._centre, self._half_range = _centre_and_half_range(low, high)

    def begin(self) -> None:
        self._rng.standard_normal(dtype=np.float32, out=self._noise)

    def sample(self, params: FloatArray, t: int, out: ActionArray) -> None:
        scale = self._scale
        np.exp(params[:, self._size :], scale)
        np.multiply(scale, self._rows[t], scale)
        np.add(params[:, : self._size], scale, out)

    def greedy(self, params: FloatArray, out: ActionArray) -> None:
        np.copyto(out, params[:, : self._size])

    def log_prob(self, params: FloatArray, actions: ActionArray) -> FloatArray:
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
        clipped = np.maximum(actions, self._low)
        return np.minimum(clipped, self._high, out=clipped)


def _centre_and_half_range(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Such that centre ± half_range, rounded to float32, stays within the bounds."""
    centre, half_range = low / np.float32(2.0) + high / np.float32(2.0), high / np.float32(2.0) - low / np.float32(2.0)
    while (outside := (centre + half_range > high) | (centre - half_range < low)).any():
        half_range = np.where(outside, np.nextafter(half_range, np.float32(0.0)), half_range)
    return centre, half_range


def _draw_negative_gumbel(rng: np.random.Generator, out: FloatArray) -> None:
    """Fills ``out`` with log e, e standard exponential; the smallest float stands for a drawn zero."""
    rng.standard_exponential(dtype=np.float32, out=out)
    np.maximum(out, _TINY, out=out)
    np.log(out, out)


def _categorical_log_prob(logits: FloatArray, actions: ActionArray) -> FloatArray:
    """[N, n] logits and [N] indices to [N]; transposed, because numpy reduces long rows fast and short ones slowly."""
    shifted = np.array(logits.T, order="C")
    shifted -= shifted.max(axis=0)
    taken: FloatArray = shifted[actions, np.arange(len(actions))]
    np.exp(shifted, shifted)
    taken -= np.log(shifted.sum(axis=0))
    return taken
