"""What ``forward`` and ``backward`` of tower.h take, as ctypes. No torch."""

from __future__ import annotations

import ctypes

BLOCK = 256
"""As in chain.c."""


class Layer(ctypes.Structure):
    """A linear layer: addresses, the strides of its weight and gradient, and its sizes."""

    _fields_ = (
        ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("of_weight", ctypes.c_void_p),
        ("of_bias", ctypes.c_void_p), ("row", ctypes.c_long), ("column", ctypes.c_long), ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    )  # fmt: skip


class Tower(ctypes.Structure):
    """Layers, an activation by its place in ACTIVATIONS, and heads; outputs of the widest layer, and of all."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "heads", "activation", "widest", "columns")),
        ("each", ctypes.POINTER(Layer)),
    )
