"""The interface of an export format: check its requirements, write its files, run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.json_object import Json

if TYPE_CHECKING:  # which a device's runtime has not
    from accel.acting.policy import Array, InPlaceSession

Contract = dict[str, Any]


@dataclass(frozen=True)
class Vectors:
    """Test vectors: inputs, and the outputs of the compressed policy on onnxruntime.

    Attributes:
        inputs, outputs: by name, [N, ...]; half of the rows are real, half random.
        bound: greatest relative difference allowed, see ``run_policy.mismatch``.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    bound: float


@dataclass(frozen=True)
class Written:
    """The files that a format has written into a bundle.

    Attributes:
        files: names of the files of its own.
        model_bytes: size of the model on the target, without files that only describe it.
        facts: plain JSON for the contract: operators, settings, sizes.
    """

    files: tuple[str, ...]
    model_bytes: int
    facts: Json = field(default_factory=dict)


class ExportFormat(ABC):
    """One export format.

    Attributes:
        name: as the user writes it.
        batch: the only batch that it can be called with, or None for any.
        runs_onnx: whether its session is onnxruntime's, on the contract's ``model``.
    """

    name: str
    batch: int | None = None
    runs_onnx: bool = False

    def require(self, *, writing: bool) -> None:  # noqa: B027 - most formats need nothing
        """Raise MissingExtraError if a package is missing that writing, or else running, the format needs."""

    def formed(self, artifact: CompressedPolicy) -> CompressedPolicy:
        """The artifact in the operators of the format."""
        return artifact

    @abstractmethod
    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """Write the format's own files for a policy.

        Args:
            artifact: the policy. directory: the bundle.
            vectors: for a format with its own check program.
            progress: gets the steps that take long.
        Raises:
            ExportError: the format cannot take an operator of the policy; names it.
        """

    @abstractmethod
    def session(self, directory: Path, contract: Mapping[str, Any], batch: int) -> InPlaceSession:
        """Load the written files on this machine.

        Args:
            directory: the bundle.
            contract: its contract, of which inputs, outputs, ``model`` and ``target`` are read.
            batch: rows of a call; a format with a batch of its own is called as often as needed.
        Raises:
            BundleError: it cannot be loaded.
        """

    def check(self, directory: Path) -> str | None:
        """Run the bundle's own check program; returns its output in one line, None for a format without one.

        Raises:
            BundleError: it cannot be built, or the policy fails its check.
        """
        return None


def runs_integers(operators: Mapping[str, int]) -> bool:
    """Whether a model computes in integers, whose rounding differs between kinds of CPU and engines."""
    return any("Integer" in name or "QGemm" in name or "QLinear" in name or "Quantize" in name for name in operators)
