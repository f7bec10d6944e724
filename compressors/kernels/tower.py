"""What ``forward`` and ``backward`` of tower.h take, as ctypes. No torch."""

from __future__ import annotations

import ctypes


class Layer(ctypes.Structure):
    """A linear layer: addresses, the strides of its weight and gradient, and its sizes."""

    _fields_ = (
        ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("of_weight", ctypes.c_void_p),
        ("of_bias", ctypes.c_void_p), ("row", ctypes.c_long), ("column", ctypes.c_long), ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
    )  # fmt: skip


class Tower(ctypes.Structure):
    """Layers, an activation by its place in ACTIVATIONS, and heads; widest: outputs of a layer of any tower."""

    _fields_ = (
        ("layers", ctypes.c_int32), ("heads", ctypes.c_int32), ("activation", ctypes.c_int32),
        ("widest", ctypes.c_int32), ("each", ctypes.POINTER(Layer)),
    )  # fmt: skip
