"""The one recursion through time that every corrector needs, made cheap on both kinds of machine.

    x_t = a_t + b_t x_{t+1},   x_T = 0

On a CPU the T dependent steps are cheapest as two in-place numpy calls on row views: at T = 80, B = 256 a third of the
time of the same loop in torch, whose cost there is dispatch. On an accelerator, where each step is a kernel launch,
Hillis and Steele's doubling does it in ceil(log2 T) rounds: after the round with shift s,

    x_t = Σ_{t ≤ k < t+2s} (Π_{t ≤ i < k} b_i) a_k   and   p_t = Π_{t ≤ i < t+2s} b_i.

Source: Hillis and Steele 1986, "Data parallel algorithms"; Blelloch 1990, section 1.4, for first-order recurrences.
Deviation: the scan works in float64. Unclipped traces multiply to products p that float32 cannot hold although every
x_t that they belong to is small or zero, and infinity times zero is not a number; for the same reason p is held finite,
and so is every x, on both paths, where a decay exceeds 1: an episode that overflows leaves the one before it alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def backward_recursion(increments: Tensor, decays: Tensor) -> Tensor:
    """Solve x_t = increments_t + decays_t x_{t+1} backwards from x_T = 0.

    Args:
        increments: [T, B] float32 or float64, no gradient; a_t above. A CPU tensor is overwritten with the solution.
        decays: [T, B], same dtype and device; b_t above. Its last row is never read.
    Returns:
        [T, B] of the same dtype and device, which may be ``increments`` itself.
    """
    if increments.device.type == "cpu":
        return row_loop(increments, decays)
    return doubling_scan(increments, decays)


def row_loop(increments: Tensor, decays: Tensor) -> Tensor:
    """``backward_recursion`` for CPU tensors: T steps over row views, in ``increments`` itself."""
    rows = list(increments.numpy())
    decay_rows = list(decays.numpy())
    following = rows.pop()
    decay_rows.pop()
    scaled = np.empty_like(following)
    # Half of the greatest number: a sum of two such is finite. NaN compares as false, and is passed on.
    greatest = np.finfo(following.dtype).max / 2
    grows = bool((decays[:-1] > 1.0).any())
    # torch passes infinities on without a word; so do we, and the learner's own check reports them.
    with np.errstate(all="ignore"):
        while rows:
            np.multiply(decay_rows.pop(), following, scaled)
            following = rows.pop()
            np.add(following, scaled, following)
            if grows:
                np.clip(following, -greatest, greatest, following)
    return increments


def doubling_scan(increments: Tensor, decays: Tensor) -> Tensor:
    """``backward_recursion`` for any device: ceil(log2 T) rounds of whole-tensor operations."""
    length, batch = increments.shape
    # Rows past the end are zeros, which spares every round its special case for rows that are already complete.
    padding = (1 << (length - 1).bit_length()) // 2
    buffers = increments.new_zeros((2, 2, length + padding, batch), dtype=torch.float64)
    sums, products = buffers[0], buffers[1]
    sums[0, :length] = increments
    products[0, : length - 1] = decays[:-1]
    largest = torch.finfo(torch.float64).max
    old, shift = 0, 1
    while shift < length:
        new = 1 - old
        factor = products[old, :length]
        later = slice(shift, length + shift)
        torch.addcmul(sums[old, :length], factor, sums[old, later], out=sums[new, :length])
        sums[new].clamp_(-largest / 2, largest / 2)
        torch.mul(factor, products[old, later], out=products[new, :length]).clamp_(max=largest)
        old, shift = new, 2 * shift
    greatest = torch.finfo(increments.dtype).max / 2
    return sums[old, :length].clamp(-greatest, greatest).to(increments.dtype)
