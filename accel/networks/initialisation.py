"""Orthogonal initialisation with zero biases (Saxe et al. 2014, arXiv:1312.6120)."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

SQRT2 = math.sqrt(2.0)

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = SQRT2) -> Layer:
    """Initialises a layer in place from torch's default generator, and returns it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def orthogonal_gates(layer: nn.LSTM | nn.Linear, gates: int) -> None:
    """Initialises every gate's matrices of a recurrent layer in place; biases are zero."""
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            for gate in torch.chunk(parameter.data, gates):
                nn.init.orthogonal_(gate)
