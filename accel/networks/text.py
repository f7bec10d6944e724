"""The text that names a network, such as ``mlp:256x2`` or ``nature-cnn:0.5+lstm:256``: parsed and printed. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accel.errors import ConfigError

CHOICES = "mlp:WIDTHxDEPTH, nature-cnn[:MULTIPLE], impala-resnet[:MULTIPLE], module:factory, each with +lstm:SIZE"

_DEFAULTS = {"mlp": (256.0, 2.0), "nature-cnn": (1.0,), "impala-resnet": (1.0,)}
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MLP_SIZES = re.compile(r"([1-9]\d{0,5})x([1-9]\d?)")
_MULTIPLE = re.compile(r"\d{1,3}(\.\d{1,4})?")
_LSTM = re.compile(r"lstm(?::([1-9]\d{0,5}))?")
_LSTM_SIZE = 256


@dataclass(frozen=True)
class NetworkText:
    """A parsed network text; ``str`` gives the canonical text, which parses to an equal value.

    Attributes:
        torso: ``mlp``, ``nature-cnn``, ``impala-resnet``, or a factory as ``package.module:name``.
        sizes: (width, depth) of an mlp; (multiple of the convolutions' channels,) of a CNN; () of a factory.
        lstm_size: units of the LSTM after the torso; None without one.
    """

    torso: str
    sizes: tuple[float, ...]
    lstm_size: int | None

    @property
    def is_factory(self) -> bool:
        """Whether the torso is the user's own."""
        return ":" in self.torso

    @property
    def is_cnn(self) -> bool:
        """Whether the torso is a built-in convolutional one, which takes (C, H, W) images only."""
        return self.torso in ("nature-cnn", "impala-resnet")

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes, per environment, of the recurrent state: ((H,), (H,)) with an LSTM, else ()."""
        return () if self.lstm_size is None else ((self.lstm_size,), (self.lstm_size,))

    def __str__(self) -> str:
        torso = self.torso
        if self.torso == "mlp":
            torso += f":{self.sizes[0]:g}x{self.sizes[1]:g}"
        elif self.is_cnn and self.sizes != (1.0,):
            torso += f":{self.sizes[0]:g}"
        return torso if self.lstm_size is None else f"{torso}+lstm:{self.lstm_size}"


def parse_network(text: str) -> NetworkText:
    """Parses a network text; sizes that are left out are ``mlp:256x2``, a multiple of 1, and ``lstm:256``.

    Raises:
        ConfigError: an unknown name or a malformed size; the message lists the choices.
    """
    torso, *cores = text.strip().split("+")
    if len(cores) > 1:
        raise _error(text, "at most one core may follow the torso")
    lstm_size = _parse_core(text, cores[0]) if cores else None
    name, _, sizes = torso.partition(":")
    if name not in _DEFAULTS:
        if not _FACTORY.fullmatch(torso):
            raise _error(text, f"unknown torso '{torso}'")
        return NetworkText(torso, (), lstm_size)
    if ":" not in torso:
        return NetworkText(name, _DEFAULTS[name], lstm_size)
    return NetworkText(name, _parse_sizes(text, name, sizes), lstm_size)


def _parse_core(text: str, core: str) -> int:
    match = _LSTM.fullmatch(core)
    if match is None:
        raise _error(text, f"unknown core '{core}', only lstm:SIZE is known")
    return int(match[1] or _LSTM_SIZE)


def _parse_sizes(text: str, name: str, sizes: str) -> tuple[float, ...]:
    if name == "mlp":
        match = _MLP_SIZES.fullmatch(sizes)
        if match is None:
            raise _error(text, f"'{sizes}' is not WIDTHxDEPTH, such as 256x2")
        return float(match[1]), float(match[2])
    if not _MULTIPLE.fullmatch(sizes) or float(sizes) == 0.0:
        raise _error(text, f"'{sizes}' is not a positive multiple of the channels, such as 0.5")
    return (float(sizes),)


def _error(text: str, problem: str) -> ConfigError:
    return ConfigError(f"network '{text}': {problem}; choices: {CHOICES}")
