"""Optimisers of one vector of parameters: the arithmetic of torch's, bit for bit, without ``torch.optim.Optimizer``.

They replace ``torch.optim.Adam(fused=True)`` and ``torch.optim.RMSprop(foreach=True)``. Those look up parameters and
states anew in every step, and import torch's compiler, a second, in the first. Here the state is allocated once and
stays at its addresses, and on a device learning rate and ``skip`` are tensors, so that a step can be recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from accel.algorithms.state_tree import Tree
from accel.errors import CheckpointError


class Optimiser(ABC):
    """Steps a parameter by its gradient.

    Args:
        parameter: of any shape. learning_rate: of the first steps. epsilon: added to the root of the squared gradients.
    Attributes:
        learning_rate: a number, or () float32 on the parameter's device.
        skip: () float there; where it is 1, ``step`` moves nothing. None: it always steps.
        state: what a checkpoint keeps, by torch's names.
    """

    moments: ClassVar[tuple[str, ...]]

    def __init__(self, parameter: nn.Parameter, learning_rate: float, epsilon: float) -> None:
        self.parameter = parameter
        self.learning_rate: float | Tensor = learning_rate
        self.epsilon = epsilon
        self.skip: Tensor | None = None
        self.state = {name: parameter.data.new_zeros(parameter.shape) for name in self.moments}
        self.state["step"] = torch.zeros((), device=parameter.device)

    def step(self) -> None:
        """One step from the gradient in place; without one, nothing."""
        if self.parameter.grad is not None:
            with torch.no_grad():
                self._step(self.parameter.grad)

    @abstractmethod
    def _step(self, gradient: Tensor) -> None: ...

    def save(self) -> dict[str, Tree]:
        """Its state. Its options are the run's, which may change."""
        return {"kind": type(self).__name__, "state": dict(self.state)}

    def load(self, saved: Mapping[str, Tree]) -> None:
        """Inverse of ``save``, on any device. Raises CheckpointError, with the optimiser as it was."""
        kind, state = type(self).__name__, saved.get("state")
        if saved.get("kind") != kind:
            raise CheckpointError(
                f"the checkpoint holds an optimizer {saved.get('kind')}, not {kind}: resume as it was run"
            )
        if not isinstance(state, Mapping) or set(state) != set(self.state):
            raise CheckpointError(f"the checkpoint's {kind} state is incomplete: resume from an earlier checkpoint")
        found = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
        for name, own in self.state.items():
            shape = tuple(found[name].shape) if name in found else None
            if shape != own.shape:
                raise CheckpointError(
                    f"the checkpoint's {kind} holds {name} of shape {shape}, not {tuple(own.shape)}: it belongs to "
                    "another network"
                )
        for name, own in self.state.items():
            own.copy_(found[name])


class Adam(Optimiser):
    """Adam.

    Source: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; ``torch.optim.Adam``. Deviations: none.
    """

    moments = ("exp_avg", "exp_avg_sq")
    betas = (0.9, 0.999)

    def _step(self, gradient: Tensor) -> None:
        mean, square, step = self.state["exp_avg"], self.state["exp_avg_sq"], self.state["step"]
        step.add_(1)
        torch._fused_adam_(
            [self.parameter], [gradient], [mean], [square], [], [step], amsgrad=False, beta1=self.betas[0],
            beta2=self.betas[1], weight_decay=0.0, eps=self.epsilon, maximize=False, grad_scale=None,
            lr=self.learning_rate,  # type: ignore[arg-type] # of either type, by two overloads
            found_inf=self.skip,
        )  # fmt: skip
        if self.skip is not None:
            step.sub_(self.skip)


class RMSprop(Optimiser):
    """RMSprop without momentum; a skipped step still fades the squared gradients.

    Source: Tieleman and Hinton 2012, lecture 6.5; ``torch.optim.RMSprop``. Deviations: none.
    """

    moments = ("square_avg",)
    decay = 0.99

    def _step(self, gradient: Tensor) -> None:
        if self.skip is not None:
            gradient.masked_fill_(self.skip.bool(), 0.0)  # which moves no parameter: there is no momentum
        self.state["step"].add_(1)
        square = self.state["square_avg"].mul_(self.decay).addcmul_(gradient, gradient, value=1.0 - self.decay)
        root = square.sqrt().add_(self.epsilon)
        if isinstance(self.learning_rate, Tensor):
            self.parameter.sub_((gradient / root).mul_(self.learning_rate))
        else:
            self.parameter.addcdiv_(gradient, root, value=-self.learning_rate)
