"""What a method of a scheme implements, bound to a policy: an ``Encoder`` stores its numbers, a ``Reduction`` makes it
smaller.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from accel.compressors.arrays import Array, State
from accel.compressors.artifact import Optimisation
from accel.compressors.quantisation.ranges import Range

if TYPE_CHECKING:
    import torch


class Encoder(ABC):
    """How numbers are stored and multiplied: writes a graph's parameters into the bytes of a model.

    Attributes:
        optimisation, cpu_features, variant: see ``CompressedPolicy``.
        coded_weights: parameters of the module that are written as codes only.
        calibrations: how often activation ranges were measured; 0 for formats without.
        drifted_activations: how many activations, counted over all calibrations but the first, left their range by more
            than 5 % of its width.
    """

    optimisation: Optimisation = "none"
    cpu_features: tuple[str, ...] = ()
    variant: str = ""
    coded_weights: frozenset[str] = frozenset()
    calibrations: int = 0
    drifted_activations: int = 0

    @abstractmethod
    def encode(self, parameters: Mapping[str, Array]) -> bytes:
        """The serialised model; raises WeightsError when a parameter is not finite."""

    def encode_there(self, parameters: Mapping[str, Array], there: Mapping[str, torch.Tensor]) -> bytes:
        """``encode`` with the ``coded_weights`` as tensors on a device, and all other parameters as arrays."""
        return self.encode(parameters)

    def fit(self, parameters: Mapping[str, Array], inputs: Mapping[str, Array]) -> bytes:
        """The serialised model of a finished policy, rounded to answer these real inputs as the full one does; slow.

        Raises:
            WeightsError, CalibrationError: see ``encode`` and ``measure``.
        """
        return self.encode(parameters)

    def measure(
        self, parameters: Mapping[str, Array], inputs: Mapping[str, Array], *, quick: bool = False
    ) -> Mapping[str, Range]:
        """Ranges of activations on recent inputs. Changes nothing, so any thread may call it.

        Args:
            quick: only as much as ``drifted`` and ``covering`` need.
        Raises:
            CalibrationError: see ``Plan.calibrate``.
        """
        return {}

    def drifted(self, measured: Mapping[str, Range]) -> int:
        """How many activations left their running range by more than the tolerance."""
        return 0

    def covering(self, measured: Mapping[str, Range]) -> Mapping[str, Range]:
        """The union of the measured and the running ranges: merging it widens ranges and narrows none."""
        return measured

    def merge_ranges(self, measured: Mapping[str, Range]) -> None:  # noqa: B027 - not every format has ranges
        """Merge measured ranges into the running ones."""


class Reduction(ABC):
    """A policy's smaller module, and how its parameters are computed from the policy's.

    Attributes:
        module: the smaller module, exported once; its own weights are not used.
        has_student: whether the smaller module is a student, trained by ``distill_step``.
    """

    module: torch.nn.Module
    has_student: bool = False

    @abstractmethod
    def project(self, state: State) -> State:
        """The smaller module's parameters and buffers, computed from the policy's; fast."""

    def copy(self) -> Self:
        """A copy that another thread may change while this one is used."""
        return copy.deepcopy(self)

    def reselect(self, state: State) -> None:  # noqa: B027 - not every reduction selects
        """Select channels or bases again for the policy's present parameters."""

    def observe(self, state: State, inputs: Mapping[str, Array]) -> bool:
        """Measure statistics of activations on recent real inputs ([N, *shape] by name); not every reduction does.

        Returns:
            Whether this selected channels or bases again, as the first inputs may.
        """
        return False

    def refit(self, state: State, inputs: Mapping[str, Array]) -> None:  # noqa: B027 - not every reduction fits
        """Like ``observe``, for what has to be fitted again between two selections, and only for that."""

    def distill_step(self, module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> float | None:
        """See ``PlanUpdate.distill_step``."""
        return None

    def zero_filled(self, projected: State, state: State) -> State | None:
        """The smaller module's parameters ``projected`` in the policy's own shapes, with zeros for what is removed.

        None where the smaller module's layers are not the policy's.
        """
        return None
