"""Draws of leaves in proportion to their weights, and changes of many weights at once; replays' priorities. No torch.

Each node has 32 children, so that a million leaves are four levels and every operation a few numpy calls on whole
batches; a binary tree needs twenty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FAN_OUT = 32
_LEAST_PRIORITY = 1e-3

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_MOST = 1e100


class PriorityTree:
    """Draws in proportion to p^α, p = |priority| + 0.001, with importance weights (N P)^−β over the batch's greatest.

    Leaves have weights that are not negative, zero at first. Memory: 8.3 bytes for each leaf.

    Args:
        size: leaves. exponent: α. weight_exponent: β.
        greatest: the priority of what comes without one, until there is a greater.
    Attributes:
        levels: weights in rows of ``FAN_OUT``, the leaves' first; each level above has the sums of the rows below.
    """

    def __init__(self, size: int, exponent: float, weight_exponent: float, greatest: float = 1.0) -> None:
        self.greatest = greatest
        self._exponent, self._weight_exponent = exponent, weight_exponent
        rows = -(-size // FAN_OUT)
        self.levels = [np.zeros((rows, FAN_OUT))]
        while rows > 1:
            rows = -(-rows // FAN_OUT)
            self.levels.append(np.zeros((rows, FAN_OUT)))
        self._flat = [level.reshape(-1) for level in self.levels]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._flat[-1].sum())

    @property
    def weights(self) -> Floats:
        """Of all leaves, and zeros behind them."""
        return self._flat[0]

    def get(self, leaves: Indices) -> Floats:
        """[N] weights of some leaves."""
        return self._flat[0][leaves]

    def set(self, leaves: Indices, weights: Floats) -> None:
        """Change the weights of leaves [N]; where one occurs twice, the last counts."""
        self._flat[0][leaves] = weights
        nodes = leaves
        for below, sums in zip(self.levels, self._flat[1:], strict=False):
            nodes = nodes // FAN_OUT
            sums[nodes] = below[nodes].sum(1)

    def find(self, points: Floats) -> Indices:
        """The leaf that each point [N] in [0, total) falls on, where leaves lie side by side, as long as their weights.

        A leaf without weight is never found, as long as there is one with.
        """
        row = np.zeros(len(points), np.int64)
        left = points.copy()
        each = np.arange(len(points))
        for level in reversed(self.levels):
            ends = level[row].cumsum(1)
            # Sums of sums are rounded: a point at the very end belongs to the last child with a weight.
            np.minimum(left, np.nextafter(ends[:, -1], 0.0), out=left)
            column = (ends <= left[:, None]).sum(1)
            left -= np.where(column > 0, ends[each, column - 1], 0.0)
            row = row * FAN_OUT + column
        return row

    def weigh(self, priorities: npt.NDArray[np.generic]) -> Floats:
        """p^α of priorities of any shape, the greatest of which is kept."""
        finite = np.nan_to_num(np.abs(priorities.astype(np.float64)), nan=0.0, posinf=self.greatest)
        self.greatest = max(self.greatest, float(finite.max(initial=0.0)))
        weights: Floats = (finite + _LEAST_PRIORITY) ** self._exponent
        return weights

    def draw(self, count: int, generator: np.random.Generator) -> Indices:
        """[count] leaves, stratified, in order; the total must not be zero."""
        return self.find((np.arange(count) + generator.random(count)) * (self.total / count))

    def importance(self, leaves: Indices, among: int) -> npt.NDArray[np.float32]:
        """[N] weights of drawn leaves, N of the formula being ``among``."""
        weights: Floats = (self.get(leaves) * (among / self.total)) ** -self._weight_exponent
        weights /= weights.max()
        return weights.astype(np.float32)

    def restore(self, weights: npt.NDArray[np.generic], greatest: float) -> None:
        """Go on from another tree's. Raises ValueError, TypeError: another size, or what are no weights."""
        found = weights.astype(np.float64, casting="same_kind")
        if not ((found >= 0.0) & (found < _MOST)).all():
            raise ValueError("a weight is negative, or far too great")
        self.set(np.arange(len(self.weights)), found)
        self.greatest = greatest
