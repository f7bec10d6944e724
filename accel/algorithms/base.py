"""What every algorithm is: networks, how actors act with them, and what one update does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from accel.acting.rules import RuleSpec
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.algorithms.exchange import GradientExchange, LocalGradients
from accel.algorithms.optimizers import QuickAdam, QuickRMSprop, load_optimizer, pack_optimizer
from accel.config import TrainConfig
from accel.config.models import OptimiserConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError, DivergenceError
from accel.experience.stores.base import Sample
from accel.experience.unroll import Unroll
from accel.networks import PolicyNetwork
from accel.runs.state_tree import Tree

Phase = Callable[[str], None]


@dataclass(frozen=True)
class Update:
    """What an update leaves behind.

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
    """

    networks: nn.Module
    network: PolicyNetwork
    rule: RuleSpec
    output_size: int
    explores: bool

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
            mark: called with a phase's name when it ends: forward, correct, backward.
        Raises:
            DivergenceError: a loss or gradient is NaN or infinite; the parameters are still those before the step.
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

    Args:
        config: the run's, its precision chosen.
        spec: the environment's layout. device: where the networks live.
        network: the network whose policy side acts. networks: all of them; None: that one.
        exchange: sums gradients over learners.
    """

    rule = RuleSpec()
    explores = False

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        network: PolicyNetwork,
        networks: nn.Module | None = None,
        exchange: GradientExchange | None = None,
    ) -> None:
        self.config = config
        self.spec = spec
        self.device = device
        self.network = network.to(device)
        self.networks: nn.Module = network if networks is None else networks.to(device)
        self.output_size = spec.action.param_size
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.exchange = LocalGradients() if exchange is None else exchange
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(config.optimiser, self.parameters)

    def distribution(self, outputs: Tensor, exploration: Tensor | None) -> ActionDistribution:
        """The action space's own distribution."""
        return make_distribution(self.spec.action, outputs)

    def observe(self, unroll: Unroll) -> None:
        """Update the observation normaliser with the unroll's valid rows."""
        if self.network.normaliser is not None:
            observations = torch.from_numpy(unroll["observations"][:-1])
            valid = torch.from_numpy(unroll["valid"][:-1])
            self.network.normaliser.update(observations[valid].to(self.device))

    def is_finite(self) -> bool:
        """Whether every parameter and buffer is a finite number."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in self.networks.state_dict().values())

    def save(self) -> dict[str, Tree]:
        """The optimiser and the generator."""
        return {"optimizer": cast(Tree, pack_optimizer(self.optimizer)), "generator": self.generator.get_state()}

    def load(self, state: Mapping[str, Tree]) -> None:
        """Inverse of ``save``. Raises CheckpointError."""
        try:
            load_optimizer(self.optimizer, cast(Mapping[str, Tree], state["optimizer"]))
            self.generator.set_state(cast(Tensor, state["generator"]))
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint lacks what the algorithm goes on from: {error!r}") from error

    def set_learning_rate(self, progress: float) -> float:
        """The rate of this update; set even if constant, as a resumed optimiser has its checkpoint's."""
        options = self.config.optimiser
        left = max(1.0 - progress, 0.0) if options.learning_rate_schedule == "linear" else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * left
        return options.learning_rate * left

    def autocast(self) -> AbstractContextManager[object]:
        """The precision of a forward pass."""
        if self.config.learner.mixed_precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def step(self, loss: Tensor) -> Tensor:
        """Backward and one optimiser step; returns the gradient's global norm.

        Raises:
            DivergenceError: the loss or the norm is not finite; nothing was stepped.
        """
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.exchange.sum(gradients)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        size, value = float(norm), float(loss.detach())
        if not (abs(size) < float("inf") and abs(value) < float("inf")):
            raise DivergenceError(f"loss {value}, gradient norm {size}")
        limit = self.config.optimiser.max_gradient_norm
        if limit is not None and size > limit:
            torch._foreach_mul_(gradients, limit / size)
        self.optimizer.step()
        return norm


def make_optimizer(options: OptimiserConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser that a run's options ask for."""
    if options.optimizer == "rmsprop":
        return QuickRMSprop(
            parameters,
            options.learning_rate,
            alpha=options.rmsprop_decay,
            eps=options.optimizer_epsilon,
            foreach=True,
        )
    return QuickAdam(
        parameters,
        options.learning_rate,
        betas=(0.9, options.adam_beta2),
        eps=options.optimizer_epsilon,
        fused=True,
    )
