"""The interface of an export format: check its requirements, write its files, run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.exporting.run_policy import Array, Contract, PolicySession
from accel.json_object import Json


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
        runs_onnx: whether its session is onnxruntime's, on the contract's ``model``.
        session: loads the written files on this machine: the bundle's directory, its contract, and the rows of a call.
            Raises BundleError, or that of ``run_policy``.
    """

    name: str
    runs_onnx: bool = False
    session: Callable[[Path, Contract, int], PolicySession]

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

    def check(self, directory: Path) -> str | None:
        """Run the bundle's own check program; returns its output in one line, None for a format without one.

        Raises:
            BundleError: it cannot be built, or the policy fails its check.
        """
        return None
