"""The protocols of the package: bind a policy module once (Compressor), refresh its artifact often (Plan).

``Compressor.bind`` is slow and rare: export through torch, recognise the graph, fuse, lay out the serialised model with
places for the weights. ``Plan.refresh`` is fast and frequent: quantise with numpy, write into those places, copy out
the bytes; no protobuf work, no export and no change to a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy, Json

if TYPE_CHECKING:
    import torch

    from accel.compressors.graph.policy_graph import PolicyGraph


@dataclass(frozen=True)
class PlanStatistics:
    """What a plan has measured so far.

    Attributes:
        calibrations: how often activation ranges were measured; 0 for schemes without.
        drifted_activations: how many activations, counted over all calibrations but the first, left their range by more
            than 5 % of its width.
    """

    calibrations: int = 0
    drifted_activations: int = 0


class PlanUpdate(Protocol):
    """Changes to a plan, prepared beside its refreshes: the plan stays as it is until ``commit``.

    One thread works on an update, which need not be the one that refreshes. The module keeps its weights until the
    update is prepared. A plan has at most one open update.
    """

    @property
    def changed(self) -> bool:
        """Whether selections or ranges changed; distillation steps do not count."""
        ...

    def distill_step(self, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``Plan.distill_step``."""
        ...

    def reselect(self) -> None:
        """See ``Plan.reselect``."""
        ...

    def calibrate(
        self, inputs: Mapping[str, Array], *, reselect: bool = False, between: Callable[[], object] = lambda: None
    ) -> None:
        """See ``Plan.calibrate``. Reductions observe the inputs too, each after the ones before it.

        Args:
            inputs: [N, *shape] by name.
            reselect: select channels and bases again as well, by what was just observed.
            between: called between two parts of the work; an exception that it raises ends the work.
        """
        ...

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """See ``Plan.recalibrate_on_drift``."""
        ...

    def commit(self) -> None:
        """Apply the changes to the plan, all of them, between two refreshes; fast."""
        ...


class Plan(Protocol):
    """One policy architecture under one scheme; owns the template, ranges and selections that refreshes reuse."""

    @property
    def scheme(self) -> str:
        """The scheme's text form."""
        ...

    def refresh(self, module: torch.nn.Module, version: int) -> CompressedPolicy:
        """The artifact of the module's present weights; fast, and never changes the module.

        Raises:
            WeightsError: the module lacks a parameter of the one bound, or a weight is not finite.
        """
        ...

    def fit(self, module: torch.nn.Module, inputs: Mapping[str, Array], version: int) -> CompressedPolicy:
        """The artifact of a finished policy, fitted to real inputs ([N, *shape] by name); seconds.

        Raises:
            WeightsError, CalibrationError: as for ``refresh`` and ``calibrate``.
        """
        ...

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """Merge the activation ranges on recent real inputs ([N, *shape] by name) into the running ones.

        Measured with the present weights of the module last refreshed, selected for or bound. Nothing to do for
        ``fp32``.

        Raises:
            CalibrationError: an input is missing, empty, misshapen or leads to activations that are not finite.
        """
        ...

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """Widen the ranges if an activation leaves its own on recent inputs; returns how many do.

        No range gets narrower, so a few rows are enough.

        Raises:
            CalibrationError: as for ``calibrate``.
        """
        ...

    def refit(self, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
        """Fit the least-squares compensation for pruned channels again, on recent real inputs; some milliseconds.

        A fit is outdated some tens of optimiser steps later. Nothing to do without ``prune``.

        Raises:
            CalibrationError: as for ``calibrate``.
        """
        ...

    def reselect(self, module: torch.nn.Module) -> None:
        """Select pruned channels and low-rank bases again for the present weights; slow, on a schedule.

        Raises:
            WeightsError: as for ``refresh``.
        """
        ...

    def distill_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """One training step of a distilled student towards the module on real [N, *shape] inputs; slow.

        Returns:
            The divergence before the step, in its own unit; None for schemes without a student.
        """
        ...

    def begin_update(self, module: torch.nn.Module) -> PlanUpdate:
        """Start an update for the module's present weights, to be prepared in any thread."""
        ...

    @property
    def statistics(self) -> PlanStatistics:
        """What the plan has measured so far."""
        ...


class Compressor(Protocol):
    """A compression scheme, not yet bound to a policy."""

    @property
    def scheme(self) -> str:
        """The scheme's text form."""
        ...

    def bind(
        self,
        module: torch.nn.Module,
        example_inputs: Mapping[str, torch.Tensor],
        calibration: Mapping[str, Array] | None = None,
        *,
        output_names: Sequence[str],
        metadata: Mapping[str, Json] | None = None,
        graph: PolicyGraph | None = None,
    ) -> Plan:
        """Export, fuse and lay out a policy; slow, once per architecture.

        Args:
            module: the acting policy; its forward takes the inputs in order and returns the outputs in order.
            example_inputs: name to tensor [N, *shape], in the order of forward's arguments; N is any.
            calibration: name to array [N, *shape] of real inputs, for schemes with activation ranges.
            output_names: names of the outputs, in order.
            metadata: plain JSON carried by every artifact.
            graph: what ``export_policy`` makes of these, where it is there already; schemes that reduce the module
                export what they make of it.

        Raises:
            GraphError: the module cannot be exported so that its weights can be refreshed.
            UnsupportedLayerError: it has a layer that this scheme cannot compress.
            CalibrationError: the scheme needs calibration inputs and got none, or unusable ones.
        """
        ...
