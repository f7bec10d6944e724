"""The protocol of algorithms: networks, how actors act with them, and one update; and a base class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from accel.acting.rules import RuleSpec
from accel.algorithms.cuda_graphs import StepRunner
from accel.algorithms.distributions import ActionDistribution, PolicyDivergence, make_distribution
from accel.algorithms.flat import FlatParameters
from accel.algorithms.gradient_exchange import GradientExchange
from accel.algorithms.health import StepHealth
from accel.algorithms.optimizers import Adam, Optimiser, RMSprop
from accel.algorithms.state_tree import Tree
from accel.config import TrainConfig
from accel.config.actor import PriorityOptions
from accel.config.algorithms import OptimiserConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError, DivergenceError
from accel.experience.stores.base import Sample
from accel.experience.transfer import to_device
from accel.experience.unroll import Unroll
from accel.networks import PolicyNetwork
from accel.networks.policy import Differentiator, NetworkOutput
from accel.networks.towers import Pull

Phase = Callable[[str], object]
"""Called with the name of a phase that has ended. Answers with something true where the run is to stop."""


@dataclass(frozen=True)
class Update:
    """The result of an update.

    Attributes:
        read: metrics by name, as host numbers; synchronises a CUDA device, so it is called when they are wanted.
        priorities: [N] of the sample's transitions, for stores that rank them.
    """

    read: Callable[[], dict[str, float]]
    priorities: Tensor | None = None


class Algorithm(Protocol):
    """What is trained, how actors act with it, and what one update does.

    Attributes:
        networks: everything trainable or kept beside it, targets and critics included.
        network: whose policy side acts: actors get its ``acting_module()``.
        rule: how actors turn its outputs into actions. output_size: P. explores: whether unrolls record ε.
        initial_priorities: how actors compute the priorities of their own transitions; None where they cannot.
    """

    networks: nn.Module
    network: PolicyNetwork
    rule: RuleSpec
    output_size: int
    explores: bool
    initial_priorities: PriorityOptions | None

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """The policy that outputs [..., P] make under the rule, at ε [...] where it explores: the rule's torch twin."""
        ...

    def observe(self, unroll: Unroll) -> None:
        """Take in the statistics of new steps, exactly once each."""
        ...

    def update(self, sample: Sample, progress: float, mark: Phase) -> Update:
        """Learn from one sample.

        Args:
            sample: of the kind that the algorithm's store makes.
            progress: share of the run that is done, in [0, 1], for schedules.
            mark: called with a phase's name when it ends: forward, correct, backward. Where an update makes many
                optimiser steps and this answers yes after one of them, the others are left out.
        Raises:
            DivergenceError: a loss or gradient is NaN or infinite, of this update or of the one before, see
                ``updates_ago``; the parameters are still those before that step.
        """
        ...

    def is_finite(self) -> bool:
        """Whether every parameter and buffer is a finite number."""
        ...

    def save(self) -> dict[str, Tree]:
        """Everything but ``networks`` that training goes on from: optimisers, generators, counters."""
        ...

    def load(self, state: Mapping[str, Tree]) -> None:
        """Inverse of ``save``. Raises CheckpointError."""
        ...


class GradientAlgorithm:
    """A base with one optimiser: learning rate, clipping, precision, exchange of gradients, saving.

    Attributes:
        exchange: with the run's other learners. ``make_algorithm`` sets it.
        defers: whether an update reads no number of the device's: learning rate and clipping are tensors, and whether
            loss and gradient were finite is read at the end of the next update.
        runner: what runs the parts of an update. Who trains with it may set another, see ``make_runner``.

    Args:
        config: the run's, its precision chosen. device: where the networks live.
        network: the network whose policy side acts. networks: all of them; None: that one.
    """

    rule = RuleSpec()
    explores = False
    initial_priorities: PriorityOptions | None = None

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        network: PolicyNetwork,
        networks: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.spec = spec
        self.device = device
        self.network = network.to(device)
        self.networks: nn.Module = network if networks is None else networks.to(device)
        self.output_size = spec.action.param_size
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.exchange = GradientExchange()
        self.parameters = FlatParameters([p for p in self.networks.parameters() if p.requires_grad])
        self.optimizer = make_optimizer(config.optimiser, self.parameters.values)
        self.updates = 0
        self.defers = device.type != "cpu"
        self.runner = StepRunner()
        self._differentiators: dict[PolicyNetwork, Differentiator] = {}
        self._health = StepHealth(device)
        self._rate = torch.zeros((), device=device)

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """The action space's own distribution."""
        return make_distribution(self.spec.action, outputs)

    def observe(self, unroll: Unroll) -> None:
        """Collect the statistics of the unroll's valid rows for ``share_statistics``."""
        normaliser = self.network.normaliser
        if normaliser is None:
            return
        observations = torch.as_tensor(unroll["observations"][:-1])
        valid = torch.as_tensor(unroll["valid"][: len(observations)])
        all_count = unroll.valid_steps == valid.numel()
        normaliser.collect(to_device(observations.flatten(0, 1) if all_count else observations[valid], self.device))

    def share_statistics(self) -> None:
        """Make what all learners observed since the last time part of every learner's normaliser.

        The normaliser is part of the policy: it changes at the end of an update, as weights do, and not between acting
        and learning, so that the learner's policy gives the actions of its own steps the probabilities that they had.
        """
        normaliser = self.network.normaliser
        if normaliser is not None and (normaliser.has_collected or self.exchange.learners > 1):
            sums = normaliser.collected()
            self.exchange.sum([sums])
            normaliser.merge(sums)

    def is_finite(self) -> bool:
        """Whether every parameter and buffer is a finite number."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in self.networks.state_dict().values())

    def save(self) -> dict[str, Tree]:
        """The optimiser, the generator and the number of updates."""
        return {"optimizer": self.optimizer.save(), "generator": self.generator.get_state(), "updates": self.updates}

    def load(self, state: Mapping[str, Tree]) -> None:
        """Inverse of ``save``. Raises CheckpointError."""
        try:
            self.optimizer.load(cast(Mapping[str, Tree], state["optimizer"]))
            self.generator.set_state(cast(Tensor, state["generator"]))
            self.updates = int(cast(int, state["updates"]))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint lacks what the algorithm goes on from: {error!r}") from error

    def begin(self, progress: float) -> float:
        """Begin an update; its learning rate, which is set in the optimiser.

        The first takes in what was observed before it: there are no other statistics yet, for target networks neither,
        and a policy that has learned nothing hardly looks at what it observes.
        """
        if self.updates == 0:
            self.share_statistics()
        options = self.config.optimiser
        left = max(1.0 - progress, 0.0) if options.learning_rate_schedule == "linear" else 1.0
        rate = options.learning_rate * left
        self.optimizer.learning_rate = self._rate.fill_(rate) if self.defers else rate
        return rate

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of a forward pass."""
        if self.config.learner.mixed_precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def differentiated(
        self, network: PolicyNetwork, observations: Tensor, first: Tensor, states: tuple[Tensor, ...] = ()
    ) -> tuple[NetworkOutput, Pull]:
        """What a network gives, without a graph, and the way back to its parameters, by its ``differentiator``."""
        differentiate = self._differentiators.get(network)
        if differentiate is None:
            differentiate = self._differentiators[network] = network.differentiator()
        with self.autocast():
            return differentiate(observations, first, states)

    @torch.no_grad()
    def outputs(self, network: PolicyNetwork, observations: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
        """A network without critic on [N, *obs]: outputs [N, P], float32, and their way back to its parameters."""
        first = torch.zeros(1, len(observations), dtype=torch.bool)
        output, pull = self.differentiated(network, observations.unsqueeze(0), first)
        return output.params[0].float(), lambda gradient: pull(gradient.unsqueeze(0), None)

    def step(self, loss: Tensor, *terms: Tensor, pull: Callable[[], None] | None = None, last: bool = True) -> Tensor:
        """Backward and one optimiser step; returns the gradient's global norm.

        Args:
            loss: this learner's share of a mean over all of them; afterwards the mean. terms: the same for its parts.
            pull: sets the parameters' gradients, which are zero; None: the loss has a graph for that.
            last: whether the update ends with it; if not, ``finish`` must be called at its end, outside of ``runner``.
        Raises:
            DivergenceError: the loss or the norm is not finite, see ``Algorithm.update``; nothing was stepped since.
        """
        gradient = self.parameters.gradient.zero_()
        if pull is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            pull()
        self.exchange.sum([gradient, loss.detach(), *terms])
        norm: Tensor = torch.linalg.vector_norm(gradient)
        limit = self.config.optimiser.max_gradient_norm
        if self.defers:  # From a step that is not finite on, nothing is stepped, without the host's knowing.
            self._health.note(loss.detach(), norm)
            self.optimizer.skip = self._health.skip
            if limit is not None:
                gradient.mul_((limit / norm).clamp(max=1.0))
        else:
            number, length = float(loss.detach()), float(norm)
            if not (math.isfinite(number) and math.isfinite(length)):
                raise DivergenceError(f"loss {number}, gradient norm {length}")
            if limit is not None and length > limit:
                gradient.mul_(limit / length)
        self.exchange.step(self.optimizer)
        if last:
            self.finish()
        return norm

    def apply(self, gradient: Tensor, progress: float) -> None:
        """One optimiser step from another learner's ``parameters.gradient``.

        On a device that is read late it may be one that is not finite: its learner has not heard of that yet.
        """
        self.begin(progress)
        self.parameters.gradient.copy_(gradient)
        if self.defers:
            norm: Tensor = torch.linalg.vector_norm(self.parameters.gradient)
            self._health.note(norm, norm)
            self.optimizer.skip = self._health.skip
        self.optimizer.step()
        self.updates += 1

    def finish(self) -> None:
        """End an update: its statistics become part of the policy.

        Raises DivergenceError: where it ``defers``, the update before was not made.
        """
        if self.defers:
            self._health.turn()
        self.updates += 1
        self.share_statistics()


def make_optimizer(options: OptimiserConfig, parameter: nn.Parameter) -> Optimiser:
    """The optimiser that a run's options ask for."""
    kind = RMSprop if options.optimizer == "rmsprop" else Adam
    return kind(parameter, options.learning_rate, options.optimizer_epsilon)


def make_divergence(algorithm: Algorithm) -> PolicyDivergence:
    """The divergence of an algorithm's policies, as its action rule sees them."""
    own = algorithm.rule.name != "stochastic"
    return PolicyDivergence(algorithm.network.spec.action, algorithm.distribution if own else None)


class ValueStep(NamedTuple):
    """What one step on Q-values gives, without a graph.

    Attributes:
        loss, gradient_norm: (). values, errors: [N], or [critics, N], of which the first explains the variance.
        targets: [N].
    """

    loss: Tensor
    gradient_norm: Tensor
    values: Tensor
    errors: Tensor
    targets: Tensor


def value_metrics(step: ValueStep, rate: float) -> dict[str, float]:
    """Metrics of a step; ``rate``: the learning rate."""
    loss, norm, values, errors, targets = step
    first = errors.reshape(-1, errors.shape[-1])[0]
    return {
        "loss": float(loss),
        "value_loss": float(loss),
        "q_mean": float(values.mean()),
        "td_error": float(errors.abs().mean()),
        "explained_variance": float(1.0 - first.square().mean() / targets.var(correction=0).clamp_min(1e-8)),
        "gradient_norm": float(norm),
        "learning_rate": rate,
    }
