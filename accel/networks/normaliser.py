"""Running observation normalisation whose constants are exported with the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 10.0
_EPSILON = 1e-8


class ObservationNormaliser(nn.Module):
    """clamp((x − mean) · rstd, −10, 10); the identity up to the clamp until the first ``update``.

    Statistics change in ``update`` and ``merge`` alone, and merge batches in float64 (Chan et al. 1983):
    m = m_a + δ n_b / n, M2 = M2_a + M2_b + δ² n_a n_b / n, with δ = m_b − m_a and n = n_a + n_b.

    Attributes:
        mean: [*shape] float32 buffer, the constant that the graph subtracts.
        rstd: [*shape] float32 buffer, 1/√(variance + 1e-8), the constant that the graph multiplies with.
        count: () float64 buffer, observations seen.
        running_mean: [*shape] float64 buffer.
        running_m2: [*shape] float64 buffer, the sum of squared deviations.
    """

    mean: Tensor
    rstd: Tensor
    count: Tensor
    running_mean: Tensor
    running_m2: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._sums: Tensor | None = None
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("rstd", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("running_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("running_m2", torch.zeros(shape, dtype=torch.float64))

    @property
    def variance(self) -> Tensor:
        """[*shape] float64, the variance (not corrected for bias) of all observations seen; zero before the first."""
        return self.running_m2 / self.count.clamp_min(1.0)

    def update(self, observations: Tensor) -> None:
        """Merges new observations [N, *shape], each to be given once; N may be 0."""
        self.collect(observations)
        self.merge(self.collected())

    @torch.no_grad()
    def collect(self, observations: Tensor) -> None:
        """Keeps the sums of new observations [N, *shape] for ``collected``, and leaves the statistics alone."""
        shifted = observations.double() - self.running_mean
        count = torch.full_like(self.running_mean, len(observations))
        new = torch.stack((count, shifted.sum(0), shifted.square().sum(0)))
        self._sums = new if self._sums is None else self._sums + new

    @property
    def has_collected(self) -> bool:
        """Whether there is something for ``collected``."""
        return self._sums is not None

    def collected(self) -> Tensor:
        """[3, *shape] float64 sums since the last time: of 1, x − m and (x − m)², with m the running mean; they add up
        over learners that have the same statistics."""
        sums, self._sums = self._sums, None
        return self.running_mean.new_zeros((3, *self.running_mean.shape)) if sums is None else sums

    @torch.no_grad()
    def merge(self, sums: Tensor) -> None:
        """Takes in what ``collected`` gave, added up over learners."""
        number = sums[0].flatten()[0]
        shift = sums[1] / number.clamp_min(1.0)
        m2 = (sums[2] - number * shift.square()).clamp_min(0.0)
        share = number / (self.count + number).clamp_min(1.0)
        self.running_m2 += m2 + number * shift.square() * (1.0 - share)
        self.running_mean += shift * share
        self.count += number
        self.mean.copy_(self.running_mean)
        rstd = (self.variance + _EPSILON).rsqrt()
        self.rstd.copy_(torch.where(self.count > 0.0, rstd, self.rstd))  # There may be nothing yet.

    def forward(self, observations: Tensor) -> Tensor:
        """Normalises [N, *shape] float observations."""
        return torch.clamp((observations - self.mean) * self.rstd, -CLIP, CLIP)
