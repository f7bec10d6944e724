"""The action distributions in torch, for the learner; ``accel.acting.rules`` has their numpy twins."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from accel.envs.spaces import ALLOWED_ABOVE, MASKED, ActionSpec

_LOG_2PI = math.log(2.0 * math.pi)
_LEAST_EXPONENTIAL = 2.0**-25
_LEAST_PROBABILITY = 1e-8

Array = npt.NDArray[np.generic]


class Scores(NamedTuple):
    """What a loss of single actions needs, without autograd: a fraction of its calls.

    Attributes:
        log_prob, entropy: [...] of actions and distributions, without a graph.
        pull: gradients of both [...] to that of the parameters [..., P].
    """

    log_prob: Tensor
    entropy: Tensor
    pull: Callable[[Tensor, Tensor], Tensor]


class SquashedSample(NamedTuple):
    """Actions of squashed Gaussians, without autograd.

    Attributes:
        actions: [N, k] in [-1, 1]. log_prob: [N] their log-densities.
        pull: gradients of actions [N, k] and of log-densities [N] to that of the parameters [N, 2k].
    """

    actions: Tensor
    log_prob: Tensor
    pull: Callable[[Tensor, Tensor], Tensor]


def squashed_sample(params: Tensor, noise: Tensor, log_std_bounds: tuple[float, float]) -> SquashedSample:
    """a = tanh u, u = m + σ ε;  log π(a) = Σ log N(ε) − log σ − log(1 − tanh² u), differentiable in m and log σ.

        ∂a/∂u = 1 − a²,   ∂ log π/∂u = 2a,   ∂u/∂ log σ = σ ε

    Args:
        params: [N, 2k] m and log σ, which is kept within the bounds. noise: ε [N, k].
    """
    mean, free = params.chunk(2, -1)
    log_std = free.clamp(*log_std_bounds)
    spread = log_std.exp().mul_(noise)
    samples = mean + spread
    actions = torch.tanh(samples)
    # log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)), without cancellation
    jacobian = F.softplus(-2.0 * samples).add_(samples).mul_(-2.0)
    constant = mean.shape[-1] * (2.0 * math.log(2.0) + 0.5 * _LOG_2PI)
    log_prob = (noise.square().mul_(-0.5).sub_(log_std).sub_(jacobian)).sum(-1).sub_(constant)

    def pull(of_actions: Tensor, of_log_prob: Tensor) -> Tensor:
        of_each = of_log_prob.unsqueeze(-1)
        of_samples = torch.addcmul(of_actions, of_actions, actions.square(), value=-1.0)
        of_samples.addcmul_(of_each, actions, value=2.0)
        of_log_std = (of_samples * spread).sub_(of_each).mul_(free == log_std)
        return torch.cat((of_samples, of_log_std), -1)

    return SquashedSample(actions, log_prob, pull)


class ActionDistribution(ABC):
    """A batch of action distributions; every method is differentiable in the parameters except the samples.

    Actions are as sampled: int64 indices [...] or [..., k], or Gaussian samples [..., k] before clipping or squashing.
    Parameters in half precision are computed with in float32. All values are in nats.
    """

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability (density) of actions as sampled: [..., *shape] to [...]."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy (differential for Gaussians, before squashing), [...]."""

    @abstractmethod
    def scores(self, actions: Tensor) -> Scores:
        """``log_prob`` and ``entropy`` with their gradients in closed form. Call it without a graph."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """KL(self ‖ other), [...], in closed form; ``other`` is of the same kind and sizes."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One sample each, [..., *shape], without gradient; ``generator`` must be on the parameters' device."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most likely actions, [..., *shape], without gradient."""


def make_distribution(action: ActionSpec, params: Tensor) -> ActionDistribution:
    """The distributions that ``params`` [..., P] describe: logits, concatenated logits, or means and log deviations.

    Raises:
        ValueError: the last dimension is not ``action.param_size``.
    """
    if params.shape[-1] != action.param_size:
        raise ValueError(
            f"{action.kind} actions of sizes {action.sizes} need {action.param_size} parameters in the last dimension, "
            f"got shape {tuple(params.shape)}"
        )
    if params.dtype in (torch.float16, torch.bfloat16):
        params = params.float()
    if action.kind == "categorical":
        return _Categorical(params)
    if action.kind == "multi_categorical":
        return _MultiCategorical(params, action.sizes)
    return _DiagonalGaussian(params)


def epsilon_greedy(q_values: Tensor, epsilon: Tensor) -> ActionDistribution:
    """The ε-greedy policy of Q-values [..., n] with ε [...], of MASKED ones not at all; twin of
    ``accel.acting.rules.EpsilonGreedyRule``."""
    best = F.one_hot(q_values.argmax(-1), q_values.shape[-1]).to(torch.float32)
    epsilon, allowed = epsilon.unsqueeze(-1), q_values > ALLOWED_ABOVE
    probabilities = epsilon / allowed.sum(-1, keepdim=True).clamp_min(1) + (1.0 - epsilon) * best
    return _Categorical(torch.where(allowed, probabilities.clamp_min(_LEAST_PROBABILITY).log(), MASKED))


class PolicyDivergence:
    """Distance of the acting policy from the learner's, by their first outputs: distribution parameters or values.

    It is KL(policy ‖ acting policy) in nats, of the distributions that the action rule makes of them. In this direction
    it keeps importance weights bounded: the acting policy must cover the policy's actions."""

    def __init__(
        self, action: ActionSpec, distribution: Callable[[Tensor, Tensor | None], ActionDistribution] | None = None
    ) -> None:
        """Args: action: the action space; distribution: what outputs describe, None for the space's own."""
        self._action = action
        self._distribution = distribution

    def __call__(self, student: Tensor, policy: Tensor) -> Tensor:
        """[N, P] each to the mean, a differentiable scalar, which distilled students minimise."""
        return self._kl(policy, student).mean()

    def of_rows(self, reference: Array, acting: Array) -> Array:
        """[N, P] each to [N]; zero where both act alike."""
        return self._kl(*(torch.as_tensor(params, dtype=torch.float32) for params in (reference, acting))).numpy()

    def upper_bound(self, reference: Array, acting: Array) -> float:
        """An upper bound on every row's divergence, in nats, ten times faster; infinite for Gaussians and for an action
        rule's own distribution.

        With d the difference of logits, KL(softmax(p) ‖ softmax(p + d)) = log E_p[exp(d − E_p[d])] ≤ (max d − min d)²/8
        for each of the categorical actions, and the range of d is twice its greatest absolute value at most.

        Source:
            Hoeffding 1963, Probability inequalities for sums of bounded random variables, eq. 4.16.
        """
        if self._action.kind == "gaussian" or self._distribution is not None:
            return math.inf
        difference = np.asarray(acting, np.float32) - np.asarray(reference, np.float32)
        greatest = float(np.abs(difference).max())
        return 0.5 * greatest * greatest * len(self._action.sizes)

    def _kl(self, policy: Tensor, acting: Tensor) -> Tensor:
        if self._distribution is not None:
            return self._distribution(policy, None).kl(self._distribution(acting, None))
        return make_distribution(self._action, policy).kl(make_distribution(self._action, acting))


class _Categorical(ActionDistribution):
    """softmax(logits) over n indices; one ``log_softmax`` serves everything.

    ∂ log p_a / ∂ logits = 1_a − p and ∂H / ∂ logits = −p (log p + H).

    The indices come first, [n, ...]: torch normalises and sums short rows up to 7 times slower than columns.
    """

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits.movedim(-1, 0), dim=0)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(0, actions.unsqueeze(0)).squeeze(0)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(0)

    def scores(self, actions: Tensor) -> Scores:
        log_probs, chosen = self.log_probs, actions.unsqueeze(0)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(0)

        def pull(of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
            gradient = torch.addcmul(of_log_prob, of_entropy, log_probs + entropy).mul_(probs).neg_()
            return gradient.scatter_add_(0, chosen, of_log_prob.unsqueeze(0)).movedim(0, -1)

        return Scores(log_probs.gather(0, chosen).squeeze(0), entropy, pull)

    def kl(self, other: Self) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(0)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        log_probs = self.log_probs.detach()
        # Gumbel-max, as the actors do it: -log of a standard exponential is Gumbel.
        # On a CPU uniform numbers take a fifth of exponential ones' time, and max a thirtieth of argmax's.
        drawn = torch.rand(log_probs.shape, dtype=log_probs.dtype, device=log_probs.device, generator=generator)
        noise = drawn.clamp_min_(_LEAST_EXPONENTIAL).log_().neg_()
        return (log_probs - noise.clamp_min_(_LEAST_EXPONENTIAL).log_()).max(0).indices

    def mode(self) -> Tensor:
        return self.log_probs.detach().max(0).indices


class _MultiCategorical(ActionDistribution):
    """Independent categoricals, one for each entry of ``sizes``; equal sizes are computed as one batch."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        if len(set(sizes)) == 1:
            self._parts = [_Categorical(logits.reshape(*logits.shape[:-1], len(sizes), sizes[0]))]
        else:
            self._parts = [_Categorical(part.unsqueeze(-2)) for part in torch.split(logits, list(sizes), dim=-1)]
        # Each part is [n, ..., m]: m components of n indices.
        self._counts = [part.log_probs.shape[-1] for part in self._parts]

    def log_prob(self, actions: Tensor) -> Tensor:
        split = torch.split(actions, self._counts, dim=-1)
        return _sum([part.log_prob(a).sum(-1) for part, a in zip(self._parts, split, strict=True)])

    def entropy(self) -> Tensor:
        return _sum([part.entropy().sum(-1) for part in self._parts])

    def scores(self, actions: Tensor) -> Scores:
        split = torch.split(actions, self._counts, dim=-1)
        found = [part.scores(a) for part, a in zip(self._parts, split, strict=True)]

        def pull(of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
            of_log_prob, of_entropy = of_log_prob.unsqueeze(-1), of_entropy.unsqueeze(-1)
            pulled = [
                part.pull(of_log_prob.expand_as(part.log_prob), of_entropy.expand_as(part.entropy)) for part in found
            ]
            return torch.cat([gradient.flatten(-2) for gradient in pulled], dim=-1)

        log_prob, entropy = _sum([s.log_prob.sum(-1) for s in found]), _sum([s.entropy.sum(-1) for s in found])
        return Scores(log_prob, entropy, pull)

    def kl(self, other: Self) -> Tensor:
        return _sum([mine.kl(its).sum(-1) for mine, its in zip(self._parts, other._parts, strict=True)])

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.cat([part.sample(generator) for part in self._parts], dim=-1)

    def mode(self) -> Tensor:
        return torch.cat([part.mode() for part in self._parts], dim=-1)


class _DiagonalGaussian(ActionDistribution):
    """N(mean, diag(exp(log_std)²)) over the sample before squashing; no Jacobian enters the density.

    With z = (a − mean)/σ: ∂ log p / ∂ mean = z/σ, ∂ log p / ∂ log σ = z² − 1, ∂H / ∂ log σ = 1.
    """

    def __init__(self, params: Tensor) -> None:
        self.mean, self.log_std = params.chunk(2, dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        scaled = (actions - self.mean) * torch.exp(-self.log_std)
        return -(0.5 * scaled.square() + self.log_std).sum(-1) - 0.5 * self.mean.shape[-1] * _LOG_2PI

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + 0.5 * self.mean.shape[-1] * (1.0 + _LOG_2PI)

    def scores(self, actions: Tensor) -> Scores:
        inverse = torch.exp(-self.log_std)
        scaled = (actions - self.mean).mul_(inverse)
        squares, widths, constant = scaled.square(), self.log_std.sum(-1), 0.5 * self.mean.shape[-1] * _LOG_2PI

        def pull(of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
            of_log_prob = of_log_prob.unsqueeze(-1)
            of_mean = (scaled * inverse).mul_(of_log_prob)
            of_log_std = (squares - 1.0).mul_(of_log_prob).add_(of_entropy.unsqueeze(-1))
            return torch.cat((of_mean, of_log_std), dim=-1)

        log_prob = squares.sum(-1).mul_(-0.5).sub_(widths).sub_(constant)
        return Scores(log_prob, widths + (constant + 0.5 * self.mean.shape[-1]), pull)

    def kl(self, other: Self) -> Tensor:
        log_ratio = self.log_std - other.log_std
        shift = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * (torch.exp(2.0 * log_ratio) + shift.square() - 1.0) - log_ratio).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        mean, log_std = self.mean.detach(), self.log_std.detach()
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + torch.exp(log_std) * noise

    def mode(self) -> Tensor:
        return self.mean.detach()


def _sum(terms: list[Tensor]) -> Tensor:
    """Without the zero that ``sum`` starts from."""
    return reduce(torch.add, terms)
