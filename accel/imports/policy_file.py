"""A policy in somebody else's file, before its environment is known; and what readers of such files have in common."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from accel.errors import CheckpointError
from accel.imports.saved_spaces import SavedSpaces
from accel.imports.torch_files import checked_tensors, read_plain
from accel.imports.torch_modules import FactorySpec
from accel.system.untrusted import ARCHIVE_ERRORS, read_file, unpack

Array = npt.NDArray[np.generic]
Source = Callable[[Sequence[Array]], Sequence[Array]]
"""The file's own program: one row [1, *shape] of prepared observations and of states to outputs and next states."""

LIMIT_BYTES = 2**32
# what members that are packed, such as code, may take beside the weights, which are not
_SPARE_BYTES = 2**26


@dataclass(frozen=True)
class ReadPolicy:
    """What a file says of its policy.

    Attributes:
        architecture: a short text.
        make: the module, from observations (flat, or images in [0, 1] or as bytes) and states to logits, Q-values or
            means, and next states; called with the environment's layout.
        source: the file's own program; None where the file holds weights alone.
        log_std: [k] of a Gaussian; None elsewhere.
        squashes: whether the environment gets tanh of the outputs, rescaled to its bounds.
        samples: whether the outputs say what a sampled action is.
        scales_images: whether it takes images in [0, 1].
        images_alone: whether bytes that are no image are treated otherwise than the module does.
        takes_parts: whether a Dict observation's parts are arguments of ``make``'s module.
        env_steps: of its training.
        spaces: what the file says of its observation and action space.
        normalised: whether observations were normalised outside the policy; None where the file does not tell.
    """

    architecture: str
    make: Callable[[FactorySpec], nn.Module] = field(repr=False)
    source: Source | None = field(default=None, repr=False)
    log_std: Tensor | None = None
    squashes: bool = False
    samples: bool = True
    scales_images: bool = False
    images_alone: bool = False
    takes_parts: bool = False
    env_steps: int = 0
    spaces: SavedSpaces = field(default_factory=SavedSpaces)
    normalised: bool | None = None


@dataclass(frozen=True)
class PolicyFile:
    """A file, and the options that tell what it does not say itself.

    Attributes:
        activation: a name of ``stable_baselines3.ACTIVATIONS``. module: ``package:factory`` that weights belong to.
    """

    path: Path
    activation: str | None = None
    module: str | None = None

    @cached_property
    def content(self) -> bytes:
        """All of it. Raises CheckpointError."""
        try:
            return read_file(self.path, LIMIT_BYTES)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}") from error

    @cached_property
    def checkpoint(self) -> Mapping[str, object]:
        """What ``torch.save`` wrote, where that is a dictionary of tensors and plain values; else empty."""
        if "data.pkl" not in self.members or "constants.pkl" in self.members:
            return {}
        try:
            value = read_plain(self.content, str(self.path))
        except CheckpointError:
            return {}
        return value if isinstance(value, Mapping) else {}

    def tensors(self, key: str) -> dict[str, Tensor]:
        """The state dict under a key of the checkpoint; empty without one. Raises CheckpointError."""
        return checked_tensors(self.checkpoint.get(key) or {}, f"{key} in {self.path}")

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Names in a zip archive, without the directory that torch puts around them; empty for anything else."""
        try:
            with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
                names = archive.namelist()
        except (*ARCHIVE_ERRORS, ValueError):
            return ()
        tops = {name.partition("/")[0] for name in names}
        return tuple(name.partition("/")[2] for name in names) if len(tops) == 1 else tuple(names)

    def unpack(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        """Members of a zip archive, by name. Raises CheckpointError: a damaged one, or far larger than the file."""
        try:
            return unpack(self.content, _SPARE_BYTES + 2 * len(self.content), wanted)
        except ValueError as error:
            raise CheckpointError(f"archive {self.path} is damaged: {error}") from error


@dataclass(frozen=True)
class PolicyReader:
    """Reads one kind of file. Nothing in a file is unpickled, and no Python in it runs.

    Attributes:
        kind: what messages call it. owns: whether a file is of this kind, by its content.
        read: the policy. Raises CheckpointError for a damaged file, ConfigError for a policy of another kind and for
            options that are not for it.
        takes_activation: whether ``PolicyFile.activation`` says what such files do not. takes_module: and ``module``.
    """

    kind: str
    owns: Callable[[PolicyFile], bool]
    read: Callable[[PolicyFile], ReadPolicy]
    takes_activation: bool = False
    takes_module: bool = False
