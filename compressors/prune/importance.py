"""How much each channel of a group matters: by what the others cannot tell, by weights alone, by gradients. Pure.

    residual:  I_c = Σ_readers ‖W S e_c‖² / (S_cc + λ)   what the readers W gain if c is kept too, S the covariance of
                                                         the channels given those kept so far
    magnitude: I_c = Σ_tensors ‖W[c]‖²                   over every weight matrix that makes or reads channel c
    Taylor:    I_c = (Σ_{θ makes c} θ ∂L/∂θ)²            first-order change of the loss when channel c falls silent

Source: forward selection for least squares, as in orthogonal least squares (Chen et al. 1989), with several channels a
round; torch-pruning's group L2 magnitude; Molchanov et al. 2019, arXiv:1906.10771, equation 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compressors.arrays import State
from compressors.prune.channels import ChannelGroup, Cut

_ROUNDS = 64


def residual(count: int, readers: Sequence[tuple[Tensor, Tensor, float]]) -> NDArray[np.float64]:
    """[channels] importance: greatest for the channel chosen first, zero for those not among the first ``count``.

    Args:
        count: how many to choose, in at most 64 rounds.
        readers: for each [channels, channels] covariance of what it reads and WᵀW, and λ.
    """
    size = len(readers[0][0])
    scores = np.zeros(size)
    left = [(covariance.clone(), products @ covariance, ridge) for covariance, products, ridge in readers]
    chosen = 0
    while chosen < count:
        gains = torch.zeros(size, dtype=torch.float64)
        for given, read, ridge in left:
            gains += torch.linalg.vecdot(given, read, dim=0) / (given.diagonal().clamp_min(0.0) + ridge)
        gains[torch.from_numpy(scores > 0.0)] = -torch.inf
        best = torch.argsort(gains, descending=True, stable=True)[: min(-(-count // _ROUNDS), count - chosen)]
        scores[best.numpy()] = count - chosen - np.arange(len(best))
        chosen += len(best)
        for given, read, ridge in left if chosen < count else ():
            _know(given, read, best, ridge)
    return scores


def _know(given: Tensor, read: Tensor, best: Tensor, ridge: float) -> None:
    """Make of S and WᵀW S what they are once the channels ``best`` are known as well, in place."""
    rows = given[best]  # and columns, as S is symmetric
    among = rows[:, best].double()
    among.diagonal().add_(ridge)
    # LAPACK takes much longer to solve for thousands of right-hand sides than to invert a few rows
    told = torch.linalg.inv(among).to(rows.dtype) @ rows
    read.addmm_(read.index_select(1, best), told, alpha=-1.0)
    given.addmm_(rows.t(), told, alpha=-1.0)


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
