"""The text that names a network, such as ``mlp:256x2`` or ``nature-cnn:0.5+lstm:256``: parsed and printed. No torch.

``auto`` is chosen by the kind of observation: ``for_observations``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, cast

from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError

CHOICES = (
    "auto[:WIDTHxDEPTH], mlp:WIDTHxDEPTH or mlp:WIDTH-WIDTH-…, nature-cnn[:MULTIPLE], impala-resnet[:MULTIPLE], "
    "module:factory, each with +lstm:SIZE, +gru:SIZE or +transformer:WIDTHxLAYERS"
)
CoreName = Literal["lstm", "gru", "transformer"]

_AUTO = "auto"
_DEFAULTS = {_AUTO: (64.0, 64.0), "mlp": (256.0, 256.0), "nature-cnn": (1.0,), "impala-resnet": (1.0,)}
SMALLEST_NATURE_IMAGE = 36
"""Height and width that the three convolutions of nature-cnn need."""
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MLP_SIZES = re.compile(r"([1-9]\d{0,5})x([1-9]\d?)")
_MLP_WIDTHS = re.compile(r"[1-9]\d{0,5}(-[1-9]\d{0,5}){1,98}")
_MULTIPLE = re.compile(r"\d{1,3}(\.\d{1,4})?")
_CORE = re.compile(r"(lstm|gru)(?::([1-9]\d{0,5}))?|(transformer)(?::([1-9]\d{0,3})x([1-9]))?")
_CORE_SIZE = 256
_TRANSFORMER = (64, 2)
HEADS = 4
"""Of a transformer: its width is a multiple of them."""


@dataclass(frozen=True)
class NetworkText:
    """A parsed network text; ``str`` gives the canonical text, which parses to an equal value.

    Attributes:
        torso: ``auto``, ``mlp``, ``nature-cnn``, ``impala-resnet``, or a factory as ``package.module:name``.
        sizes: widths of an mlp's layers and of auto's; (multiple of the convolutions' channels,) of a CNN; () of a
            factory.
        core: what follows the torso and keeps a state; None for nothing.
        core_size: its units, or the width of a transformer. core_layers: of a transformer, else 1.
    """

    torso: str
    sizes: tuple[float, ...]
    core: CoreName | None = None
    core_size: int = 0
    core_layers: int = 1

    @property
    def is_factory(self) -> bool:
        """Whether the torso is the user's own."""
        return ":" in self.torso

    @property
    def is_cnn(self) -> bool:
        """Whether the torso is a built-in convolutional one, which takes (C, H, W) images only."""
        return self.torso in ("nature-cnn", "impala-resnet")

    @property
    def least_weights(self) -> int:
        """Weights between the layers that it names, whatever observations and actions there are."""
        widths = [int(size) for size in self.sizes] if self.torso == "mlp" else []
        gates = {None: 0, "lstm": 4, "gru": 3, "transformer": 4}[self.core]
        return sum(a * b for a, b in pairwise(widths)) + gates * self.core_layers * self.core_size**2

    def for_observations(self, spec: EnvSpec) -> NetworkText:
        """``auto`` replaced: an mlp of its sizes for vectors, nature-cnn for images, impala-resnet for small ones.

        Raises:
            ConfigError: the observations are of neither kind, such as images of floats.
        """
        if self.torso != _AUTO:
            return self
        shape = spec.observation_shape
        if spec.observation_dtype == "uint8" and spec.is_image:
            cnn = cnn_for(shape)
            return replace(self, torso=cnn, sizes=_DEFAULTS[cnn])
        if len(shape) > 1:
            raise ConfigError(
                f"network 'auto' takes vectors and uint8 images, the observations are {spec.observation_dtype} of "
                f"shape {shape}: name one with --network ({CHOICES}), or give a --wrapper that makes images of uint8"
            )
        return replace(self, torso="mlp")

    def __str__(self) -> str:
        torso = self.torso
        if self.torso in (_AUTO, "mlp"):
            same = len(set(self.sizes)) == 1
            torso += f":{self.sizes[0]:g}x{len(self.sizes)}" if same else f":{'-'.join(f'{w:g}' for w in self.sizes)}"
        elif self.is_cnn and self.sizes != (1.0,):
            torso += f":{self.sizes[0]:g}"
        layers = f"x{self.core_layers}" if self.core == "transformer" else ""
        return torso if self.core is None else f"{torso}+{self.core}:{self.core_size}{layers}"


def cnn_for(shape: tuple[int, ...]) -> str:
    """The torso that (C, H, W) images get where none is named."""
    return "nature-cnn" if min(shape[1:]) >= SMALLEST_NATURE_IMAGE else "impala-resnet"


def parse_network(text: str) -> NetworkText:
    """Parses a network text; sizes that are left out are ``auto:64x2``, ``mlp:256x2``, a multiple of 1, and 256 units.

    Raises:
        ConfigError: an unknown name or a malformed size; the message lists the choices.
    """
    torso, *cores = text.strip().split("+")
    if len(cores) > 1:
        raise _error(text, "at most one core may follow the torso")
    core = _parse_core(text, cores[0]) if cores else ()
    name, _, sizes = torso.partition(":")
    if name not in _DEFAULTS:
        if not _FACTORY.fullmatch(torso):
            raise _error(text, f"unknown torso '{torso}'")
        return NetworkText(torso, (), *core)
    if ":" not in torso:
        return NetworkText(name, _DEFAULTS[name], *core)
    return NetworkText(name, _parse_sizes(text, name, sizes), *core)


def _parse_core(text: str, core: str) -> tuple[CoreName, int, int]:
    match = _CORE.fullmatch(core)
    if match is None:
        raise _error(text, f"unknown core '{core}', there are lstm:SIZE, gru:SIZE and transformer:WIDTHxLAYERS")
    if match[3] is None:
        return cast("CoreName", match[1]), int(match[2] or _CORE_SIZE), 1
    width, layers = (int(match[4]), int(match[5])) if match[4] else _TRANSFORMER
    if width % HEADS:
        raise _error(text, f"a transformer's width is a multiple of its {HEADS} heads, which {width} is not")
    return "transformer", width, layers


def _parse_sizes(text: str, name: str, sizes: str) -> tuple[float, ...]:
    if name in (_AUTO, "mlp"):
        match = _MLP_SIZES.fullmatch(sizes)
        if match is not None:
            return (float(match[1]),) * int(match[2])
        if not _MLP_WIDTHS.fullmatch(sizes):
            raise _error(text, f"'{sizes}' is not WIDTHxDEPTH, such as 256x2, of at most 999999x99, or 512-256-128")
        return tuple(map(float, sizes.split("-")))
    if not _MULTIPLE.fullmatch(sizes) or float(sizes) == 0.0:
        raise _error(text, f"'{sizes}' is not a positive multiple of the channels, such as 0.5")
    return (float(sizes),)


def _error(text: str, problem: str) -> ConfigError:
    return ConfigError(f"network '{text}': {problem}; choices: {CHOICES}")
