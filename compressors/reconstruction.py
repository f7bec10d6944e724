"""What removed channels would have told the layers behind them, predicted from the channels that are kept.

    W h + b ≈ (W_K + W_R P) h_K + (b + W_R (E[h_R] − P E[h_K]));   P = C_RK (C_KK + λ I)⁻¹

K are the kept and R the removed inputs of a layer, C their covariance on recent real inputs: the best linear
prediction. A flattened image counts each place as a sample with a mean of its own. A convolution's zero padding is not
accounted for. Source: least-squares reconstruction of channel pruning, He et al. 2017, arXiv:1707.06168, section 3.1,
here in closed form from the reading layer's inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from compressors.base import Array, FloatArray, State
from compressors.channels import ChannelGroup, IndexArray
from compressors.moments import KEEP, MAXIMAL_SAMPLES, RIDGE

_TINY = 1e-6
_BIASES = {"weight": "bias", "weight_ih_l0": "bias_ih_l0", "weight_hh_l0": "bias_hh_l0"}


@dataclass
class _Reader:
    """A group's channels among a layer's inputs, and their statistics.

    Attributes:
        group: the group's name.
        places: [channels, S] places along the weight's input axis; S > 1 behind a flattened image.
        samples: weight of the observations so far.
        total: [channels, S] weighted sum.
        products: [channels, channels] weighted sum of products, over all places.
        prediction: [removed, kept] P, None before anything was observed.
        constant: [removed, S] E[h_R] − P E[h_K].
        kept: the channels that P predicts from.
        removed: the others.
    """

    group: str
    places: IndexArray
    samples: float = 0.0
    total: Tensor | None = None
    products: Tensor | None = None
    prediction: Tensor | None = None
    constant: Tensor | None = None
    kept: IndexArray | None = None
    removed: IndexArray | None = None

    def observe(self, inputs: Tensor) -> None:
        """Take in [N, input axis] values."""
        values = inputs[:, torch.from_numpy(self.places)].double()
        total = values.sum(0)
        flat = values.transpose(1, 2).reshape(-1, len(self.places))
        products = flat.t() @ flat
        if self.total is not None and self.products is not None:
            total, products = total + KEEP * self.total, products + KEEP * self.products
        self.samples = KEEP * self.samples + len(values)
        self.total, self.products = total, products

    def solve(self, kept: IndexArray) -> None:
        """Predict the removed channels from the kept ones."""
        if self.total is None or self.products is None:
            return
        mean = self.total / self.samples
        places = mean.shape[1]
        covariance = self.products / (self.samples * places) - mean @ mean.t() / places
        self.kept, self.removed = kept, np.setdiff1d(np.arange(len(self.places)), kept)
        k, r = torch.from_numpy(kept), torch.from_numpy(self.removed)
        among = covariance[k][:, k]
        ridge = _TINY + RIDGE * float(among.diagonal().mean()) * len(kept) / (self.samples * places)
        eye = torch.eye(len(kept), dtype=among.dtype)
        prediction = torch.linalg.solve(among + ridge * eye, covariance[k][:, r]).t()
        self.constant = (mean[r] - prediction @ mean[k]).float()
        self.prediction = prediction.float().contiguous()


class Reconstruction:
    """Corrects weights and biases of the layers that read prunable channels.

    Attributes:
        corrections: parameter to what is added to its kept rows and columns; empty before inputs were observed.
    """

    def __init__(self, groups: Sequence[ChannelGroup]) -> None:
        self.corrections: dict[str, FloatArray] = {}
        self._readers: dict[str, list[_Reader]] = {}
        for group in groups:
            for cut in group.cuts:
                if not cut.produces:
                    order = np.lexsort((cut.index, cut.channel))
                    places = cut.index[order].reshape(group.size, -1)
                    self._readers.setdefault(cut.parameter, []).append(_Reader(group.name, places))

    def observe(self, policy: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Measure on a policy with the weights of the moment; inputs are its arguments, [N, *shape] each."""
        with ExitStack() as stack, torch.no_grad():
            for parameter in self._readers:
                owner = policy.get_submodule(parameter.rpartition(".")[0])
                stack.enter_context(owner.register_forward_pre_hook(self._watch(parameter)))
            policy(*inputs)

    def fold(
        self, state: State, kept: Mapping[str, IndexArray], indices: Mapping[str, Mapping[int, IndexArray]]
    ) -> None:
        """Work the corrections out for the weights of the moment; they are added as they are until the next time.

        Args:
            state: the whole policy's numbers.
            kept: the channels that are kept, by group.
            indices: parameter to axis to the places that are kept.
        """
        self.corrections = {}
        for parameter, readers in self._readers.items():
            for reader in readers:
                reader.solve(kept[reader.group])
            solved = [reader for reader in readers if reader.prediction is not None]
            if solved:
                self._fold(parameter, state[parameter], solved, indices[parameter])

    def _fold(
        self, parameter: str, weight: Array, readers: Sequence[_Reader], indices: Mapping[int, IndexArray]
    ) -> None:
        rows = weight[indices[0]] if 0 in indices else weight
        change: FloatArray = np.zeros(rows.shape, dtype=np.float32)
        constants: FloatArray = np.zeros(len(rows), dtype=np.float32)
        for reader in readers:
            if reader.prediction is None or reader.constant is None or reader.kept is None:
                continue
            gone = torch.from_numpy(rows[:, reader.places[reader.removed]]).flatten(2)
            taps = int(np.prod(weight.shape[2:]))
            gone = gone.reshape(len(rows), -1, reader.places.shape[1] * taps)
            folded = torch.einsum("orp,rk->okp", gone, reader.prediction)
            shape = (len(rows), len(reader.kept), reader.places.shape[1], *weight.shape[2:])
            change[:, reader.places[reader.kept]] = folded.reshape(shape).numpy()
            # a kernel's taps all see the same mean
            constants += torch.einsum("orp,rp->o", gone, reader.constant.repeat_interleave(taps, dim=1)).numpy()
        self.corrections[parameter] = change[:, indices[1]]
        owner, _, attribute = parameter.rpartition(".")
        self.corrections[f"{owner}.{_BIASES[attribute]}".removeprefix(".")] = constants

    def _watch(self, parameter: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        recurrent = parameter.endswith("weight_hh_l0")

        def hook(layer: nn.Module, arguments: tuple[object, ...]) -> None:
            value = arguments[1][0] if recurrent else arguments[0]  # type: ignore[index]
            if not isinstance(value, Tensor):
                return
            if isinstance(layer, nn.Conv2d):
                value = value.movedim(1, -1)
            rows = value.reshape(-1, value.shape[-1])
            for reader in self._readers[parameter]:
                reader.observe(rows[:: max(1, len(rows) // MAXIMAL_SAMPLES)])

        return hook
