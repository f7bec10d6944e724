"""Upkeep of a bound plan beside its refreshes: lessons, choices, ranges, worked out on copies and adopted at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from compressors.arrays import Array, State
from compressors.module_state import read_gradients, read_state
from compressors.quantisation.ranges import Range, check_inputs

if TYPE_CHECKING:
    import torch

    from compressors.pipeline import BoundReduction, PipelinePlan


class Revision:
    """What is to change in a plan. Until ``Plan.adopt`` takes it, refreshes go on with what the plan has.

    One thread works on it, which need not be the one that refreshes; a plan has one revision in work at a time.

    Args:
        plan: to be kept up; it is read here, never changed.
        module: the policy, which must keep its weights while the revision is in work.
    Attributes:
        changed: whether choices or ranges did, beyond a student's lessons.
        ranges: activation ranges that were measured for the plan to take over, oldest first.
    """

    def __init__(self, plan: PipelinePlan, module: torch.nn.Module) -> None:
        self.changed = False
        self.ranges: list[Mapping[str, Range]] = []
        self._graph, self._encoder, self._copying = plan.graph, plan.encoder, plan.copying
        self._module = module
        self._reductions = list(plan.reductions)
        self._copied: set[int] = set()
        self._state: State | None = None
        self._parameters: Mapping[str, Array] | None = None

    @property
    def reductions(self) -> tuple[BoundReduction, ...]:
        """The plan's; those that were worked on are copies."""
        return tuple(self._reductions)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Of the plan's graph, by what has been chosen and learnt so far."""
        if self._parameters is None:
            state = self._policy_state()
            for reduction in self._reductions:
                state = reduction.project(state)
            self._parameters = self._graph.read(state)
        return self._parameters

    def train_step(self, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.train_step``."""
        loss: float | None = None
        for index, reduction in enumerate(self._reductions):
            if reduction.learns:
                loss, self._parameters = self._own(index).train_step(self._module, inputs), None
        return loss

    def rechoose(self) -> None:
        """See ``Plan.rechoose``."""
        self._parameters = None
        if not self._reductions:
            return
        state, gradients = self._policy_state(), read_gradients(self._module)
        for index in range(len(self._reductions)):
            reduction = self._own(index)
            reduction.rechoose(state, gradients)
            state, gradients = reduction.project(state), {}
        self._parameters = self._graph.read(state)
        self.changed = True

    def calibrate(
        self, inputs: Mapping[str, Array], *, rechoose: bool = False, between: Callable[[], object] = lambda: None
    ) -> None:
        """See ``Plan.calibrate``. Reductions look at the inputs too, each behind the ones before it.

        Args:
            inputs: [N, *shape] by name.
            rechoose: choose anew as well, each reduction by what it has just seen.
            between: called between two parts of the work; what it raises ends it.
        """
        if self._reductions:
            check_inputs(self._graph.inputs, inputs)
            state, gradients = self._policy_state(), read_gradients(self._module) if rechoose else {}
            for index in range(len(self._reductions)):
                reduction = self._own(index)
                has_chosen = reduction.observe(state, inputs)
                if rechoose and not has_chosen:
                    between()
                    reduction.rechoose(state, gradients)
                state, gradients = reduction.project(state), {}
                between()
            self._parameters = self._graph.read(state)
            self.changed = True
        self._take(self._encoder.measure(self.parameters, inputs))

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        seen = self._encoder.measure(self.parameters, inputs)
        drifted = self._encoder.drifted(seen)
        if drifted or not self._encoder.statistics.calibrations:
            # a few rows say what must be covered, not what occurs no longer
            self._take(self._encoder.covering(seen))
        return drifted

    def _take(self, seen: Mapping[str, Range]) -> None:
        self.ranges.append(seen)
        self.changed |= bool(seen)

    def _policy_state(self) -> State:
        if self._state is None:
            self._state = read_state(self._module, None if self._reductions else self._graph.leaves)
        return self._state

    def _own(self, index: int) -> BoundReduction:
        """A reduction as a copy, made when it is first needed."""
        if index not in self._copied:
            with self._copying:
                self._reductions[index] = self._reductions[index].copy()
            self._copied.add(index)
        return self._reductions[index]


def follow(plan: PipelinePlan, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
    """See ``Plan.follow``; the plan's reductions change in place."""
    if plan.reductions:
        check_inputs(plan.graph.inputs, inputs)
        state: State = read_state(module)
        for reduction in plan.reductions:
            reduction.follow(state, inputs)
            state = reduction.project(state)
