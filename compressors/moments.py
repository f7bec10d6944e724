"""Running means and covariances of the inputs of a policy's layers; newer inputs have more weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array
from accel.compressors.module_state import to_tensors

# weight of the older moments when new inputs are observed
KEEP = 0.5
# ridge: this share of the mean variance, times inputs / samples
RIDGE = 0.1
MAXIMAL_ROWS, MAXIMAL_IMAGES, MAXIMAL_SAMPLES = 2048, 64, 8192
_UNFOLDED_IMAGES = 8


class InputMoments:
    """Moments of the inputs of some layers: Linear [in], Conv2d [in · kernel] (unfolded; one group, zero padding),
    LSTM [in + hidden].

    Attributes:
        seen: whether anything was observed.
    """

    def __init__(self, layers: Iterable[str]) -> None:
        self.seen = False
        self._layers = tuple(layers)
        self._means: dict[str, Tensor] = {}
        self._samples: dict[str, float] = {}
        self._totals: dict[str, Tensor] = {}
        self._products: dict[str, Tensor] = {}

    def observe(self, policy: nn.Module, inputs: Mapping[str, Array]) -> None:
        """Measure on the policy's present weights; inputs [N, *shape] by name, in the order of its arguments."""
        with ExitStack() as stack, torch.no_grad():
            for name in self._layers:
                stack.enter_context(policy.get_submodule(name).register_forward_pre_hook(self._watch(name)))
            policy(*to_tensors(inputs, MAXIMAL_ROWS, MAXIMAL_IMAGES))
        self.seen = True

    def mean(self, layer: str) -> Tensor | None:
        """[inputs] float32 mean, None before anything was observed."""
        return self._means.get(layer)

    def covariance(self, layer: str, *, about_zero: bool = False) -> Tensor | None:
        """[inputs, inputs] float64 covariance plus a ridge against few samples; None before anything was observed.
        Second moments about zero instead if ``about_zero``, with the same ridge."""
        if layer not in self._totals:
            return None
        samples = self._samples[layer]
        mean = self._totals[layer] / samples
        covariance = self._products[layer] / samples - torch.outer(mean, mean)
        size = len(mean)
        ridge = RIDGE * covariance.diagonal().mean() * size / samples
        if about_zero:
            covariance = covariance + torch.outer(mean, mean)
        regular: Tensor = covariance + ridge * torch.eye(size, dtype=covariance.dtype)
        return regular

    def _watch(self, name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[object, ...]) -> None:
            rows = _rows(layer, arguments)
            rows = rows[:: max(1, len(rows) // MAXIMAL_SAMPLES)].double()
            total, products = rows.sum(0), rows.t() @ rows
            self._samples[name] = len(rows) + KEEP * self._samples.get(name, 0.0)
            self._totals[name] = total + KEEP * self._totals.get(name, torch.zeros_like(total))
            self._means[name] = (self._totals[name] / self._samples[name]).float()
            self._products[name] = products + KEEP * self._products.get(name, torch.zeros_like(products))

        return hook


def _rows(layer: nn.Module, arguments: tuple[object, ...]) -> Tensor:
    """[samples, inputs]: the vectors that a layer's weight matrix multiplies."""
    x = arguments[0]
    if not isinstance(x, Tensor):
        raise TypeError(f"a {type(layer).__name__} was called with a {type(x).__name__} instead of a tensor")
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(
            x[:_UNFOLDED_IMAGES],
            layer.kernel_size,
            layer.dilation,
            layer.padding,  # type: ignore[arg-type]
            layer.stride,
        )
        return patches.transpose(1, 2).flatten(0, 1)
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        hidden: Tensor = arguments[1][0]  # type: ignore[index]
        return torch.cat([x.reshape(-1, x.shape[-1]), hidden.reshape(-1, hidden.shape[-1])], dim=1)
    return x.reshape(-1, x.shape[-1])
