"""Least-squares compensation for pruned channels: the layers that read them predict them from the kept channels.

    W h + b ≈ (W_K + W_R P) h_K + (b + W_R (E[h_R] − P E[h_K]));   P = C_RK (C_KK + λ I)⁻¹

K are the kept and R the removed inputs of a layer, C their covariance on recent real inputs; P is the best linear
prediction. For a layer without bias, C are second moments about zero, and the prediction has no constant. P is outdated
some tens of optimiser steps after it was fitted; ``observe`` fits it again, with less weight on older inputs. Each
position of a flattened image is a sample with its own mean. The zero padding of convolutions is ignored. Source:
least-squares reconstruction of channel pruning, He et al. 2017, arXiv:1707.06168, section 3.1, here in closed form from
the reading layer's inputs alone.

A run fits P every 16 optimiser steps, in the learner's thread, and in layers of more than 1024 units, where that takes
seconds, with selections and calibrations only. On HalfCheetah a fit 800 optimiser steps old is 0.3 to 0.6 nats from the
policy, a fresh one 0.06 to 0.13, and pruning without compensation 4 to 36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array, FloatArray, State
from accel.compressors.moments import Moments, some_rows, watch_inputs
from accel.compressors.prune.channels import ChannelGroup, IndexArray

FOLD_PER_REFRESH = 2**22
"""W_R P is computed at each refresh, for the present weights, up to this number of multiplications; in wider layers
only when P is fitted or channels are selected."""
_BIASES = {"weight": "bias", "weight_ih_l0": "bias_ih_l0"}


@dataclass(frozen=True)
class _Prediction:
    """Predicts removed channels from kept ones: P [removed, kept] and E[h_R] − P E[h_K] [removed, S]."""

    kept: IndexArray
    removed: IndexArray
    matrix: Tensor
    constant: Tensor

    @classmethod
    def solve(cls, moments: Moments, kept: IndexArray, *, about_zero: bool) -> _Prediction:
        """The least-squares prediction; without a constant if ``about_zero``, as the layer has no bias to add it to."""
        removed = np.setdiff1d(np.arange(len(moments.mean)), kept)
        k, r = torch.from_numpy(kept), torch.from_numpy(removed)
        among = moments.spread(about_zero=about_zero)[k].double()
        regular = among[:, k] + moments.ridge(len(kept)) * torch.eye(len(kept), dtype=among.dtype)
        matrix = torch.linalg.solve(regular, among[:, r]).t().float().contiguous()
        return cls(kept, removed, matrix, moments.mean[r] - matrix @ moments.mean[k])


@dataclass
class _Reader:
    """A group's channels among a layer's inputs.

    Attributes:
        group: the group's name.
        places: [channels, S] indices along the weight's input axis; S > 1 after a flattened image.
        moments: None before anything was observed.
        prediction: None before anything was observed.
        columns: [kept, S] indices of the kept places among the kept columns; None: all, in order.
        folded: in wide layers, the result of ``fold`` for the weights at the last fit or selection.
    """

    group: str
    places: IndexArray
    moments: Moments | None = None
    prediction: _Prediction | None = None
    columns: IndexArray | None = None
    folded: tuple[FloatArray, FloatArray] | None = None

    def observe(self, inputs: Tensor) -> None:
        """Update the moments with values [N, input axis], unless some are not finite: moments would stay so."""
        newer = Moments.of(inputs[:, torch.from_numpy(self.places)].float())
        if bool(torch.isfinite(newer.covariance).all()):
            self.moments = newer.after(self.moments)

    def predict(self, kept: IndexArray, columns: IndexArray, *, has_bias: bool) -> None:
        """Fit the prediction from the channels ``kept``, where ``columns`` of the weight are kept, ascending."""
        if self.moments is not None:
            self.prediction = _Prediction.solve(self.moments, kept, about_zero=not has_bias)
        places = np.searchsorted(columns, self.places[kept])
        self.columns = None if np.array_equal(places.ravel(), np.arange(len(columns))) else places

    def fold(self, rows: Array, columns: int) -> tuple[FloatArray, FloatArray]:
        """The terms to add to a weight's kept rows [O, input axis, *taps] at its ``columns`` kept columns, and to its
        bias [O]."""
        if self.prediction is None:
            return np.zeros((len(rows), columns, *rows.shape[2:]), np.float32), np.zeros(len(rows), np.float32)
        found = self.prediction
        taps = int(np.prod(rows.shape[2:]))
        places = torch.from_numpy(self.places[found.removed].ravel())
        gone = torch.from_numpy(rows).index_select(1, places).view(len(rows), len(found.removed), -1)
        if gone.shape[2] == 1:
            folded = gone[:, :, 0] @ found.matrix
        else:
            folded = torch.einsum("orp,rk->okp", gone, found.matrix)
        change: FloatArray = folded.reshape(len(rows), -1, *rows.shape[2:]).numpy()
        if self.columns is not None:
            own, change = change, np.zeros((len(rows), columns, *rows.shape[2:]), dtype=np.float32)
            change[:, self.columns.ravel()] = own
        # all taps of a kernel have the same mean
        constants: FloatArray = (gone.flatten(1) @ found.constant.repeat_interleave(taps, dim=1).flatten()).numpy()
        return change, constants

    def fold_cost(self, rows: int, taps: int) -> int:
        """Number of multiplications of ``fold``."""
        return 0 if self.prediction is None else rows * taps * self.places.shape[1] * self.prediction.matrix.numel()


class Compensation:
    """Compensates in the weights and biases of the layers that read pruned channels."""

    def __init__(self, groups: Sequence[ChannelGroup]) -> None:
        self._readers: dict[str, list[_Reader]] = {}
        for group in groups:
            for cut in group.cuts:
                if not cut.produces:
                    order = np.lexsort((cut.index, cut.channel))
                    places = cut.index[order].reshape(group.size, -1)
                    self._readers.setdefault(cut.parameter, []).append(_Reader(group.name, places))

    @property
    def seen(self) -> bool:
        """Whether anything was observed."""
        return all(reader.moments is not None for readers in self._readers.values() for reader in readers)

    def observe(self, policy: nn.Module, inputs: Mapping[str, Array]) -> None:
        """Measure on the policy's present weights; see ``watch_inputs``."""
        watch_inputs(policy, inputs, {name.rpartition(".")[0]: partial(self._take, name) for name in self._readers})

    def readers_of(self, group: str, state: State) -> list[tuple[Tensor, Tensor, float]]:
        """For each layer that reads a group: the covariance of its inputs and WᵀW, [channels, channels] each, and λ.

        Empty before anything was observed.
        """
        found = []
        for parameter, readers in self._readers.items():
            for reader in readers:
                if reader.group == group and reader.moments is not None:
                    weight = torch.from_numpy(state[parameter][:, reader.places])
                    columns = weight.movedim(1, -1).flatten(0, -2)
                    moments = reader.moments
                    lam = moments.ridge(len(moments.mean))
                    spread = moments.spread(about_zero=_bias_of(parameter) not in state)
                    found.append((spread, columns.t() @ columns, lam))
        return found

    def solve(
        self, state: State, kept: Mapping[str, IndexArray], indices: Mapping[str, Mapping[int, IndexArray]]
    ) -> None:
        """Fit the predictions, after ``observe`` or a new selection.

        Args:
            state: the full policy's parameters.
            kept: the kept channels by group.
            indices: parameter to axis to the kept indices.
        """
        for parameter, readers in self._readers.items():
            rows = _kept_rows(state[parameter], indices[parameter])
            for reader in readers:
                has_bias = _bias_of(parameter) in state
                reader.predict(kept[reader.group], indices[parameter][1], has_bias=has_bias)
                is_wide = reader.fold_cost(len(rows), int(np.prod(rows.shape[2:]))) > FOLD_PER_REFRESH
                reader.folded = reader.fold(rows, len(indices[parameter][1])) if is_wide else None

    def corrections(self, state: State, indices: Mapping[str, Mapping[int, IndexArray]]) -> dict[str, FloatArray]:
        """Parameter to the term to add to its kept rows and columns; empty before anything was observed."""
        corrections: dict[str, FloatArray] = {}
        for parameter, readers in self._readers.items():
            if all(reader.prediction is None for reader in readers):
                continue
            axes = indices[parameter]
            parts = [r.folded or r.fold(_kept_rows(state[parameter], axes), len(axes[1])) for r in readers]
            changes, constants = zip(*parts, strict=True)
            corrections[parameter] = reduce(np.add, changes)
            if _bias_of(parameter) in state:
                corrections[_bias_of(parameter)] = reduce(np.add, constants)
        return corrections

    def _take(self, parameter: str, layer: nn.Module, value: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            value = value.movedim(1, -1)
        rows = some_rows(value.reshape(-1, value.shape[-1]))
        for reader in self._readers[parameter]:
            reader.observe(rows)


def _bias_of(weight: str) -> str:
    """The name of the bias that belongs to a weight."""
    owner, _, attribute = weight.rpartition(".")
    return f"{owner}.{_BIASES[attribute]}".removeprefix(".")


def _kept_rows(weight: Array, indices: Mapping[int, IndexArray]) -> Array:
    return np.take(weight, indices[0], axis=0) if 0 in indices else weight
