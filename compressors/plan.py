"""The two protocols of the package: bind a policy module once (Compressor), refresh its artifact often (Plan)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from compressors.arrays import Array
from compressors.artifact import CompressedPolicy, Json

if TYPE_CHECKING:
    import torch

    from compressors.revision import Revision


@dataclass(frozen=True)
class PlanStatistics:
    """What a plan has seen so far.

    Attributes:
        calibrations: how often activation ranges were measured; 0 for schemes without.
        drifted_activations: how many activations, counted over all calibrations but the first, left their range by more
            than 5 % of its width.
        changed_codes: share of integer weight codes, of 8 or 4 bits, that the last refresh changed, in [0, 1]; None
            before the second refresh, and for schemes without integer codes.
    """

    calibrations: int = 0
    drifted_activations: int = 0
    changed_codes: float | None = None


class Plan(Protocol):
    """One policy architecture under one scheme; owns the template, the ranges and the choices that refreshes reuse."""

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

    def calibrate(self, inputs: Mapping[str, Array]) -> None:
        """Take recent real inputs ([N, *shape] by name) into the running activation ranges; nothing to do for ``fp32``.

        Activations are those of the present weights of the module last refreshed, chosen for or bound.

        Raises:
            CalibrationError: an input is missing, empty, misshapen or leads to activations that are not finite.
        """
        ...

    def recalibrate_on_drift(self, inputs: Mapping[str, Array]) -> int:
        """Widen the ranges if some activation leaves its own on recent inputs; returns how many do. None gets narrower,
        so that a few rows will do.

        Raises:
            CalibrationError: as for ``calibrate``.
        """
        ...

    def follow(self, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
        """Measure anew, on recent real inputs, what a pruned policy makes up for what is gone by; some milliseconds.

        What was measured is worth little some tens of optimiser steps later. Nothing to do without ``prune``.

        Raises:
            CalibrationError: as for ``calibrate``.
        """
        ...

    def rechoose(self, module: torch.nn.Module) -> None:
        """Choose pruned channels and low-rank bases anew for the present weights; off the critical path, on a schedule.

        Raises:
            WeightsError: as for ``refresh``.
        """
        ...

    def train_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """One step of a distilled student towards the module on real [N, *shape] inputs, off the critical path.

        Returns:
            The divergence before the step, in its own unit; None for schemes without a student.
        """
        ...

    def revise(self, module: torch.nn.Module) -> Revision:
        """The same upkeep for another thread: it reads the module, which must not change meanwhile, and leaves the plan
        as it is, so that refreshes go on."""
        ...

    def adopt(self, revision: Revision) -> None:
        """Take over a finished revision of this plan, all of it, between two refreshes; fast."""
        ...

    @property
    def statistics(self) -> PlanStatistics:
        """What the plan has seen so far."""
        ...


class Compressor(Protocol):
    """A compression scheme, not yet tied to a policy."""

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
    ) -> Plan:
        """Export, fuse and lay out a policy; slow, once per architecture.

        Args:
            module: the acting policy; its forward takes the inputs in order and returns the outputs in order.
            example_inputs: name to tensor [N, *shape], in the order of forward's arguments; N is any.
            calibration: name to array [N, *shape] of real inputs, for schemes with activation ranges.
            output_names: names of the outputs, in order.
            metadata: plain JSON carried by every artifact.

        Raises:
            GraphError: the module cannot be exported so that its weights can be refreshed.
            UnsupportedLayerError: it has a layer that this scheme cannot compress.
            CalibrationError: the scheme needs calibration inputs and got none, or unusable ones.
        """
        ...
