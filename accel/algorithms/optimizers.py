"""torch's optimisers without the second that their first use spends on importing torch's compiler.

torch wraps the methods of its optimisers in decorators that import ``torch._dynamo``, and sympy with it, at the first
call, only to say that the methods are not to be compiled. Nothing here is compiled, so the undecorated methods, which
``functools.wraps`` keeps, do the same work; where a torch has other decorators, the decorated ones are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer, RMSprop

from accel.algorithms.state_tree import Tree
from accel.errors import CheckpointError

Function = TypeVar("Function", bound=Callable[..., object])


def undecorated(function: Function) -> Function:
    """What a decorated function wraps; a plain one itself."""
    wrapped: Function = getattr(function, "__wrapped__", function)
    return wrapped


class _Undecorated(Optimizer):
    """Overrides whatever torch decorates, except ``zero_grad``, which is not used."""

    def _patch_step_function(self) -> None:
        """Leaves ``step`` as it is: torch's would wrap it for its profiler and for hooks, which nobody sets."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        undecorated(Optimizer.add_param_group)(self, param_group)

    def state_dict(self) -> dict[str, Any]:
        """See ``torch.optim.Optimizer``."""
        return undecorated(Optimizer.state_dict)(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        undecorated(Optimizer.load_state_dict)(self, state_dict)


class QuickAdam(_Undecorated, Adam):
    """``torch.optim.Adam``, fused, of one group, with its tensors looked up once instead of in every step.

    Parameters that have a gradient at the first step have one at every step.

    Attributes:
        skip: () float on the parameters' device; where it is 1, ``step`` changes nothing. None: it always steps.
        rate: () float32 there, the learning rate; None: the group's number.
    """

    skip: Tensor | None = None
    rate: Tensor | None = None
    _found: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``torch.optim.Optimizer``."""
        self._found = None
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step from the gradients in place."""
        (group,) = self.param_groups
        gradients = [p.grad for p in group["params"] if p.grad is not None]
        if self._found is None:
            self._found = self._find(group)
        parameters, means, squares, steps = self._found
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        rate = group["lr"] if self.rate is None else self.rate
        torch._fused_adam_(
            parameters, gradients, means, squares, [], steps, amsgrad=False, lr=rate, beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=False, grad_scale=None, found_inf=self.skip,
        )  # fmt: skip
        if self.skip is not None:
            torch._foreach_sub_(steps, [self.skip] * len(steps))

    def _find(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """Parameters that have gradients, their moments and step counters, which torch makes."""
        found: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]] = ([], [], [], [])
        parameters, means, squares, steps = found
        self._init_group(group, parameters, [], means, squares, [], steps)  # type: ignore[no-untyped-call]
        return found


class QuickRMSprop(_Undecorated, RMSprop):
    """``torch.optim.RMSprop``. Attributes: as of ``QuickAdam``."""

    skip: Tensor | None = None
    rate: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step from the gradients in place."""
        (group,) = self.param_groups
        if self.skip is not None:
            for gradient in (p.grad for p in group["params"] if p.grad is not None):
                gradient.masked_fill_(self.skip.bool(), 0.0)  # which moves no parameter: there is no momentum
        if self.rate is None:
            undecorated(RMSprop.step)(self)
            return
        parameters, gradients, squares, steps = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        self._init_group(group, parameters, gradients, squares, [], [], steps)  # type: ignore[no-untyped-call]
        for parameter, gradient, square in zip(parameters, gradients, squares, strict=True):
            square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1.0 - group["alpha"])
            parameter.sub_((gradient / square.sqrt().add_(group["eps"])).mul_(self.rate))
        torch._foreach_add_(steps, 1)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> Mapping[str, Tree]:
    """Everything in any torch optimizer: its state, step counters included, and its hyper-parameters."""
    return {"kind": type(optimizer).__name__, **cast(dict[str, Tree], optimizer.state_dict())}


def load_optimizer(optimizer: torch.optim.Optimizer, packed: Mapping[str, Tree]) -> None:
    """Put a packed state into an optimizer of the same kind over parameters of the same shapes, on any device.

    Its hyper-parameters stay, but for the rate: they are the run's options, which may have changed since.

    Raises: CheckpointError, with the optimizer as it was.
    """
    kind = type(optimizer).__name__
    if packed.get("kind") != kind:
        raise CheckpointError(
            f"the checkpoint holds an optimizer {packed.get('kind')}, not {kind}: resume as it was run"
        )
    groups: Any = packed.get("param_groups")
    states = packed.get("state")
    if not isinstance(groups, list) or not isinstance(states, Mapping):
        raise CheckpointError(f"the checkpoint's {kind} state is incomplete: resume from an earlier checkpoint")
    parameters: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, state in cast(Mapping[int, Mapping[str, Tree]], states).items():
        shape = parameters[index].shape if index < len(parameters) else None
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != shape:
                raise CheckpointError(
                    f"the checkpoint's {kind} holds {name} of shape {tuple(value.shape)} for parameter {index}, "
                    f"whose shape is {tuple(shape) if shape is not None else 'unknown'}: it belongs to another network"
                )
    try:
        ours = optimizer.state_dict()["param_groups"]
        pairs = zip(groups, ours, strict=True)
        kept = [own | {"lr": theirs["lr"], "params": theirs["params"]} for theirs, own in pairs]
        optimizer.load_state_dict({"state": states, "param_groups": kept})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's {kind} does not fit ({error}): it belongs to another network"
        ) from error
