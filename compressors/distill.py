"""``distill(64x2)``: a small student acts in place of the policy and is trained towards it online.

The caller provides a factory for the student and the divergence that it minimises. ``distill_step`` trains it on real
observations, off the critical path; a refresh exports the student as it is. Modules that the student shares with the
policy, such as the observation normaliser, are copied from the policy at each step and not trained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import State
from accel.compressors.errors import GraphError, SchemeError, UnsupportedLayerError
from accel.compressors.methods import Reduction
from accel.compressors.module_state import named_tensors, read_state

if TYPE_CHECKING:
    from accel.compressors.scheme import Divergence, StudentFactory

_LEARNING_RATE = 1e-3


class Student(Reduction):
    """A student in training; see ``Reduction``.

    All copies train the same student; ``project`` returns its parameters after the copy's own last step.
    """

    has_student = True

    def __init__(
        self,
        size: str,
        policy: nn.Module,
        example_inputs: Mapping[str, Tensor],
        *,
        scheme: str,
        student_factory: StudentFactory | None,
        divergence: Divergence | None,
    ) -> None:
        """Make a student.

        Args:
            size: passed to the factory: ``64x2`` is two layers of 64 units.
            policy: what it learns from. example_inputs: as for ``Compressor.bind``.
            scheme: the method's text.
            student_factory: (size, policy) to a student with the policy's input and output.
            divergence: (student's parameters, policy's parameters), both [N, P], to a scalar to minimise.
        Raises:
            SchemeError: no student factory or divergence was given, or the student is larger than the policy.
            UnsupportedLayerError: the policy is recurrent, or observes several inputs.
            GraphError: the student's output has another shape than the policy's, or it has nothing to train.
        """
        if student_factory is None or divergence is None:
            raise SchemeError(f"{scheme} needs a student factory and a divergence; pass both to make_compressor")
        if len(example_inputs) > 1:
            raise UnsupportedLayerError(
                f"{scheme} supports policies of one observation input, without recurrent state; use prune or lowrank"
            )
        student = student_factory(size, policy)
        if _size(student) > _size(policy):
            raise SchemeError(
                f"{scheme}: the student has more parameters ({_count(student)}) than the policy ({_count(policy)}); "
                "use prune or lowrank, or a smaller student"
            )
        self._divergence = divergence
        owners = {id(tensor): name for name, tensor in named_tensors(policy).items()}
        self._shared = {n: owners[id(t)] for n, t in named_tensors(student).items() if id(t) in owners}
        with torch.no_grad():
            theirs, ours = (_parameters(m, example_inputs) for m in (policy, student))
        if theirs.shape != ours.shape:
            raise GraphError(
                f"the student returns shape {tuple(ours.shape)}, but the policy returns {tuple(theirs.shape)}; change "
                "the student factory"
            )
        self.module = copy.deepcopy(student)  # what it shares with the policy must not change during a step
        own = [p for name, p in self.module.named_parameters() if name not in self._shared and p.requires_grad]
        if not own:
            raise GraphError(
                "the student has no parameters of its own to train, as it shares them all; change the student factory"
            )
        self._optimiser = torch.optim.Adam(own, _LEARNING_RATE)
        self._trained = self._read()

    def project(self, state: State) -> State:
        """See ``Reduction.project``."""
        return {**self._trained, **{name: state[owner] for name, owner in self._shared.items()}}

    def copy(self) -> Self:
        """See ``Reduction.copy``."""
        return copy.copy(self)

    def distill_step(self, module: nn.Module, inputs: Mapping[str, Tensor]) -> float | None:
        """See ``PlanUpdate.distill_step``."""
        with torch.no_grad():
            theirs, ours = named_tensors(module), named_tensors(self.module)
            for name, owner in self._shared.items():
                ours[name].copy_(theirs[owner])
            target = _parameters(module, inputs)
        with torch.enable_grad():
            output = _parameters(self.module, inputs)
            loss = self._divergence(output, target.to(output.device))
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
        self._trained = self._read()
        return float(loss.detach())

    def _read(self) -> State:
        """Copies of the student's own parameters and buffers."""
        tensors = read_state(self.module)
        return {name: np.array(array) for name, array in tensors.items() if name not in self._shared}


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _count(module: nn.Module) -> str:
    parameters = _size(module)
    return f"{parameters / 1e6:.2f} M" if parameters >= 10_000 else str(parameters)


def _parameters(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The first output, computed on the module's device."""
    device = next(module.parameters()).device
    result = module(*(value.to(device) for value in inputs.values()))
    first: Tensor = result if isinstance(result, Tensor) else result[0]
    return first
