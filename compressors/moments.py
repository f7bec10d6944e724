"""Running means and covariances of the inputs of a policy's layers; newer inputs have more weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array

# weight of the older moments when new inputs are observed
KEEP = 0.5
# ridge: this share of the mean variance, times inputs / samples
RIDGE = 0.1
MAXIMAL_ROWS, MAXIMAL_IMAGES, MAXIMAL_SAMPLES = 2048, 64, 8192
_TINY = 1e-6


@dataclass(frozen=True)
class Moments:
    """Running moments of a layer's inputs.

    Attributes:
        samples: weight of the rows observed.
        mean: [channels, S], one for each position.
        covariance: [channels, channels] about the means.
    """

    samples: float
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """Of [N, channels, S]."""
        mean = values.mean(0)
        centred = (values - mean).transpose(1, 2).reshape(-1, values.shape[1])
        return cls(len(values), mean, centred.t() @ centred / len(centred))

    def after(self, older: Moments | None) -> Moments:
        """Both combined, the older ones with ``KEEP`` times their weight."""
        if older is None:
            return self
        samples = KEEP * older.samples + self.samples
        share = self.samples / samples
        shift = self.mean - older.mean
        between = share * (1.0 - share) / shift.shape[1] * (shift @ shift.t())
        within = older.covariance.lerp(self.covariance, share)
        return Moments(samples, older.mean + share * shift, within + between)

    def spread(self, *, about_zero: bool) -> Tensor:
        """[channels, channels] covariance, or second moments about zero."""
        return self.covariance + self.mean @ self.mean.t() / self.mean.shape[1] if about_zero else self.covariance

    def ridge(self, kept: int) -> float:
        """λ, against overfitting to few samples."""
        places = self.mean.shape[1]
        return _TINY + RIDGE * float(self.covariance.diagonal().mean()) * kept / (self.samples * places)


def watch_inputs(
    policy: nn.Module, inputs: Mapping[str, Array], watchers: Mapping[str, Callable[[nn.Module, Tensor], None]]
) -> None:
    """Call a policy, and with what some of its layers read their watchers.

    Args:
        policy: with its present weights.
        inputs: [N, *shape] by name, in the order of its arguments; so many rows as moments need.
        watchers: by the layer's name; called with the layer and its first argument.
    """
    with ExitStack() as stack, torch.no_grad():
        for name, watcher in watchers.items():
            stack.enter_context(policy.get_submodule(name).register_forward_pre_hook(partial(_show, watcher)))
        rows = MAXIMAL_IMAGES if any(array.ndim == 4 for array in inputs.values()) else MAXIMAL_ROWS
        policy(*(torch.from_numpy(np.ascontiguousarray(array[:rows])) for array in inputs.values()))


def some_rows(rows: Tensor) -> Tensor:
    """At most twice ``MAXIMAL_SAMPLES`` of the rows, at even distances."""
    return rows[:: max(1, len(rows) // MAXIMAL_SAMPLES)]


def _show(watcher: Callable[[nn.Module, Tensor], None], layer: nn.Module, arguments: tuple[object, ...]) -> None:
    if isinstance(arguments[0], Tensor):
        watcher(layer, arguments[0])
