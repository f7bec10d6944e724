"""How much each channel of a group matters, from weights alone or with gradients. Pure.

    magnitude: I_c = Σ_tensors ‖W[c]‖²      over every weight matrix that makes or reads channel c
    Taylor:    I_c = (Σ_{θ makes c} θ ∂L/∂θ)²  the first-order change of the loss when channel c falls silent

Source: torch-pruning's group L2 magnitude; Molchanov et al. 2019, arXiv:1906.10771, equation 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compressors.base import State
from compressors.channels import ChannelGroup, Cut


def magnitude(group: ChannelGroup, state: State) -> NDArray[np.float64]:
    """[channels] importance by magnitude; biases do not count."""
    total = np.zeros(group.size)
    for cut in group.cuts:
        weight = state[cut.parameter]
        if weight.ndim > 1:
            total += _by_channel(cut, _along(np.square(weight, dtype=np.float64), cut.axis), group.size)
    return total


def taylor(group: ChannelGroup, state: State, gradients: State) -> NDArray[np.float64] | None:
    """[channels] importance by first-order Taylor expansion; None where a parameter has no gradient."""
    total = np.zeros(group.size)
    for cut in group.cuts:
        if not cut.produces:
            continue
        if cut.parameter not in gradients:
            return None
        change = np.multiply(state[cut.parameter], gradients[cut.parameter], dtype=np.float64)
        total += _by_channel(cut, _along(change, cut.axis), group.size)
    return np.square(total)


def _along(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Sums over every axis but one."""
    sums: NDArray[np.float64] = values.sum(axis=tuple(a for a in range(values.ndim) if a != axis))
    return sums


def _by_channel(cut: Cut, values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = np.bincount(cut.channel, weights=values[cut.index], minlength=size).astype(np.float64)
    return sums
