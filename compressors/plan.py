"""A policy bound to a scheme: refreshed often, changed in between by updates that are prepared beside its refreshes.

``Compressor.bind`` is slow and rare: export through torch, recognise the graph, fuse, lay out the serialised model with
places for the weights. ``Plan.refresh`` is fast and frequent: quantise, write into those places, copy out
the bytes; no protobuf work, no export and no change to a session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accel.compressors.arrays import Array, State
from accel.compressors.artifact import CompressedPolicy, Json
from accel.compressors.graph.policy_graph import PolicyGraph
from accel.compressors.methods import Encoder, Reduction
from accel.compressors.module_state import as_arrays, leaves_of, read_state
from accel.compressors.quantisation.ranges import Range, check_inputs

if TYPE_CHECKING:
    import torch


class Plan:
    """One policy architecture under one scheme; owns the template, ranges and selections that refreshes reuse.

    Attributes:
        scheme: the scheme's text form.
        graph: the exported policy.
        encoder: the bound format.
        reductions: compute the graph's parameters from the module's own, in order.
        reductions_lock: held while an update copies reductions, and while ``refit`` changes them in place.
    """

    def __init__(
        self,
        scheme: str,
        reductions: tuple[Reduction, ...],
        graph: PolicyGraph,
        encoder: Encoder,
        metadata: Mapping[str, Json],
        module: torch.nn.Module,
    ) -> None:
        """Use ``Compressor.bind``."""
        self.scheme = scheme
        self._module = module
        self.reductions = reductions
        self.graph = graph
        self.encoder = encoder
        contract = (graph.inputs, graph.outputs, metadata, encoder.cpu_features)
        self._contract = CompressedPolicy(scheme, 0, *contract, b"", encoder.optimisation, encoder.variant)
        self.reductions_lock = threading.Lock()

    def refresh(self, module: torch.nn.Module, version: int, *, in_torch: bool = False) -> CompressedPolicy:
        """The artifact of the module's present weights; fast, and never changes the module.

        Args:
            in_torch: compute codes of weights on the module's device, so that codes are copied from it, not weights.
        Raises:
            WeightsError: the module lacks a parameter of the one bound, or a weight is not finite.
        """
        self._module = module
        if not in_torch or self.reductions:
            return self._contract.with_model(self.encoder.encode(self.begin_update(module).parameters), version)
        tensors = leaves_of(module, self.graph.prologue.leaves)
        there = {name: tensors.pop(name).detach() for name in self.encoder.coded_weights}
        return self._contract.with_model(self.encoder.encode_there(self.graph.read(as_arrays(tensors)), there), version)

    def fit(self, module: torch.nn.Module, inputs: Mapping[str, Array], version: int) -> CompressedPolicy:
        """The artifact of a finished policy, fitted to real inputs ([N, *shape] by name); seconds.

        Raises:
            WeightsError, CalibrationError: as for ``refresh`` and ``calibrate``.
        """
        self._module = module
        return self._contract.with_model(self.encoder.fit(self.begin_update(module).parameters, inputs), version)

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """Merge the activation ranges on recent real inputs ([N, *shape] by name) into the running ones.

        Measured with the present weights of the module last refreshed, selected for or bound. Nothing to do for
        ``fp32``.

        Raises:
            CalibrationError: an input is missing, empty, misshapen or leads to activations that are not finite.
        """
        update = self.begin_update(self._module)
        update.calibrate(inputs)
        update.commit()

    def refit(self, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
        """Fit the least-squares compensation for pruned channels again, on recent real inputs; some milliseconds.

        A fit is outdated some tens of optimiser steps later. Nothing to do without ``prune``.

        Raises:
            CalibrationError: as for ``calibrate``.
        """
        with self.reductions_lock:
            if self.reductions:
                check_inputs(self.graph.inputs, inputs)
                state: State = read_state(module)
                for reduction in self.reductions:
                    reduction.refit(state, inputs)
                    state = reduction.project(state)

    def begin_update(self, module: torch.nn.Module) -> PlanUpdate:
        """Start an update for the module's present weights, to be prepared in any thread."""
        return PlanUpdate(self, module)


class PlanUpdate:
    """Changes to a plan, prepared beside its refreshes: the plan stays as it is until ``commit``.

    One thread works on an update, which need not be the one that refreshes. The module keeps its weights until the
    update is prepared. A plan has at most one open update. It works on copies of the plan's reductions.

    Attributes:
        changed: whether selections or ranges changed; distillation steps do not count.
    """

    def __init__(self, plan: Plan, module: torch.nn.Module) -> None:
        self.changed = False
        self._plan = plan
        self._module = module
        self._reductions = list(plan.reductions)
        self._ranges: list[Mapping[str, Range]] = []
        self._copied: set[int] = set()
        self._state: State | None = None
        self._parameters: Mapping[str, Array] | None = None

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The parameters of the plan's graph, with this update's changes."""
        if self._parameters is None:
            state = self._policy_state()
            for reduction in self._reductions:
                state = reduction.project(state)
            self._parameters = self._plan.graph.read(state)
        return self._parameters

    def distill_step(self, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """One training step of a distilled student towards the module on real [N, *shape] inputs; slow.

        Returns:
            The divergence before the step, in its own unit; None for schemes without a student.
        """
        loss: float | None = None
        for index, reduction in enumerate(self._reductions):
            if reduction.has_student:
                loss, self._parameters = self._own(index).distill_step(self._module, inputs), None
        return loss

    def reselect(self) -> None:
        """Select pruned channels and low-rank bases again for the present weights; slow, on a schedule."""
        self._parameters = None
        if not self._reductions:
            return
        state = self._policy_state()
        for index in range(len(self._reductions)):
            reduction = self._own(index)
            reduction.reselect(state)
            state = reduction.project(state)
        self._parameters = self._plan.graph.read(state)
        self.changed = True

    def calibrate(
        self, inputs: Mapping[str, Array], *, reselect: bool = False, between: Callable[[], object] = lambda: None
    ) -> None:
        """See ``Plan.calibrate``. Reductions observe the inputs too, each after the ones before it.

        Args:
            inputs: [N, *shape] by name.
            reselect: select channels and bases again as well, by what was just observed.
            between: called between two parts of the work; an exception that it raises ends the work.
        """
        if self._reductions:
            check_inputs(self._plan.graph.inputs, inputs)
            state = self._policy_state()
            for index in range(len(self._reductions)):
                reduction = self._own(index)
                has_selected = reduction.observe(state, inputs)
                if reselect and not has_selected:
                    between()
                    reduction.reselect(state)
                state = reduction.project(state)
                between()
            self._parameters = self._plan.graph.read(state)
            self.changed = True
        self._add_ranges(self._plan.encoder.measure(self.parameters, inputs))

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """Widen the ranges if an activation leaves its own on recent inputs; returns how many do.

        No range gets narrower, so a few rows are enough. Raises CalibrationError: as for ``Plan.calibrate``.
        """
        encoder = self._plan.encoder
        measured = encoder.measure(self.parameters, inputs, quick=True)
        drifted = encoder.drifted(measured)
        if drifted or not encoder.calibrations:
            # a few rows show what has to be covered, not what no longer occurs
            self._add_ranges(encoder.covering(measured))
        return drifted

    def commit(self) -> None:
        """Apply the changes to the plan, all of them, between two refreshes; fast."""
        self._plan.reductions = tuple(self._reductions)
        for measured in self._ranges:
            self._plan.encoder.merge_ranges(measured)

    def _add_ranges(self, measured: Mapping[str, Range]) -> None:
        self._ranges.append(measured)
        self.changed |= bool(measured)

    def _policy_state(self) -> State:
        if self._state is None:
            self._state = read_state(self._module, None if self._reductions else self._plan.graph.prologue.leaves)
        return self._state

    def _own(self, index: int) -> Reduction:
        """A reduction's copy, made on first use."""
        if index not in self._copied:
            with self._plan.reductions_lock:
                self._reductions[index] = self._reductions[index].copy()
            self._copied.add(index)
        return self._reductions[index]
