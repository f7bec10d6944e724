"""Weights that are hard to quantise."""

from __future__ import annotations

import torch
from torch import nn


def _weights(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.dim() > 1]


def zero_layers(module: nn.Module) -> None:
    """Nothing but zeros in every other layer, which leaves ranges of nothing but the bias or zero behind it."""
    for weight in _weights(module)[::2]:
        weight.data.zero_()


def zero_channels(module: nn.Module) -> None:
    """A channel of nothing but zeros in every layer."""
    for weight in _weights(module):
        weight.data[1].zero_()


def ends_of_the_range(module: nn.Module) -> None:
    """±max|w| in every channel, halves between two codes, and subnormal numbers."""
    for weight in _weights(module):
        flat = weight.data.view(len(weight), -1)
        flat[:, 0], flat[:, 1] = 127.0, -127.0
        flat[:, 2] = torch.arange(len(flat)) + 0.5
        flat[0, 3:] = 1e-40


def zero_ranges(module: nn.Module) -> None:
    """Every unit is dead, or puts out its bias alone."""
    for weight in _weights(module):
        weight.data.zero_()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.fill_(-1.0)


def biases_beyond_32_bits(module: nn.Module) -> None:
    """Weights so small that a bias would not fit 32 bits at their scale."""
    for weight in _weights(module)[1:]:
        weight.data *= 1e-9
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.fill_(50.0)


SPOILS = [zero_layers, zero_channels, ends_of_the_range, zero_ranges, biases_beyond_32_bits]
