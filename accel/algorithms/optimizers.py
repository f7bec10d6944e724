"""torch's optimisers without the second that their first use spends on importing torch's compiler.

torch wraps the methods of its optimisers in decorators that import ``torch._dynamo``, and sympy with it, at the first
call, only to say that the methods are not to be compiled. Nothing here is compiled, so the undecorated methods, which
``functools.wraps`` keeps, do the same work; where a torch has other decorators, the decorated ones are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Adam, Optimizer, RMSprop

Function = TypeVar("Function", bound=Callable[..., object])


def undecorated(function: Function) -> Function:
    """What a decorated function wraps; a plain one itself."""
    wrapped: Function = getattr(function, "__wrapped__", function)
    return wrapped


class _Undecorated(Optimizer):
    """Overrides whatever torch decorates, except ``zero_grad``, which is not used."""

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
    """``torch.optim.Adam``."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step from the gradients in place."""
        undecorated(Adam.step)(self)


class QuickRMSprop(_Undecorated, RMSprop):
    """``torch.optim.RMSprop``."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step from the gradients in place."""
        undecorated(RMSprop.step)(self)
