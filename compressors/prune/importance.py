"""Importance of each channel of a group: residual variance given the kept channels, or magnitude. Pure.

    residual:  I_c = Σ_readers ‖W S e_c‖² / (S_cc + λ)   output variance of the readers W explained by keeping c too,
                                                         S the covariance of the channels given those kept so far
    magnitude: I_c = Σ_tensors ‖W[c]‖²                   over every weight matrix that produces or reads channel c

Source: forward selection for least squares, as in orthogonal least squares (Chen et al. 1989), with several channels a
round; torch-pruning's group L2 magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel.compressors.arrays import State
from accel.compressors.prune.channels import ChannelGroup

_ROUNDS = 64


def residual(count: int, readers: Sequence[tuple[Tensor, Tensor, float]]) -> NDArray[np.float64]:
    """[channels] importance: greatest for the channel selected first, zero for those that are not selected.

    Args:
        count: how many to select, in at most 64 rounds.
        readers: for each, the covariance of its inputs and WᵀW, [channels, channels] each, and λ.
    """
    size = len(readers[0][0])
    scores = np.zeros(size)
    left = [(covariance.clone(), products @ covariance, ridge) for covariance, products, ridge in readers]
    selected = 0
    while selected < count:
        gains = torch.zeros(size, dtype=torch.float64)
        for given, read, ridge in left:
            gains += torch.linalg.vecdot(given, read, dim=0) / (given.diagonal().clamp_min(0.0) + ridge)
        gains[torch.from_numpy(scores > 0.0)] = -torch.inf
        best = torch.argsort(gains, descending=True, stable=True)[: min(-(-count // _ROUNDS), count - selected)]
        scores[best.numpy()] = count - selected - np.arange(len(best))
        selected += len(best)
        for given, read, ridge in left if selected < count else ():
            _condition(given, read, best, ridge)
    return scores


def _condition(given: Tensor, read: Tensor, best: Tensor, ridge: float) -> None:
    """Condition S and WᵀW S on the channels ``best`` as well, in place."""
    rows = given[best]  # and columns, as S is symmetric
    among = rows[:, best].double()
    among.diagonal().add_(ridge)
    # LAPACK takes much longer to solve for thousands of right-hand sides than to invert a few rows
    coefficients = torch.linalg.inv(among).to(rows.dtype) @ rows
    read.addmm_(read.index_select(1, best), coefficients, alpha=-1.0)
    given.addmm_(rows.t(), coefficients, alpha=-1.0)


def magnitude(group: ChannelGroup, state: State) -> NDArray[np.float64]:
    """[channels] importance by magnitude; biases do not count."""
    total = np.zeros(group.size)
    for cut in group.cuts:
        weight = state[cut.parameter]
        if weight.ndim > 1:
            others = tuple(axis for axis in range(weight.ndim) if axis != cut.axis)
            squares = np.square(weight, dtype=np.float64).sum(axis=others)
            total += np.bincount(cut.channel, weights=squares[cut.index], minlength=group.size)
    return total
