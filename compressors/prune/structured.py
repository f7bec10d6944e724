"""``prune(r)``: structured pruning of the least important units and channels, a share ``r`` of every layer but heads.

``prune(r,layer=q)`` removes the share ``q`` of one layer, and ``prune(layer=q)`` prunes no other layer.

Channels are selected when the scheme is bound, at the first real inputs and by ``reselect``: always the same number, so
the graph stays the same. A refresh gathers the kept rows and columns. After the first real inputs it also adds the
least-squares compensation for pruned channels, which ``refit`` and ``calibrate`` fit again. The state of a recurrent
policy is never pruned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from accel.compressors.arrays import Array, State
from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.layer_choices import check_layers, choice_for
from accel.compressors.methods import Reduction
from accel.compressors.module_state import load_state, read_state
from accel.compressors.prune.channels import ChannelGroup, IndexArray, find_groups
from accel.compressors.prune.compensation import Compensation
from accel.compressors.prune.importance import magnitude, residual

_CHECK_SEED = 7
_REFIT_UNITS = 1024


class PrunedModule(Reduction):
    """A pruned policy; see ``Reduction``.

    Attributes:
        kept: for each group's name the channels kept, ascending.
    """

    def __init__(
        self,
        ratio: float,
        layers: Sequence[tuple[str, float]],
        module: nn.Module,
        example_inputs: Mapping[str, Tensor],
        *,
        scheme: str,
    ) -> None:
        """Prune.

        Args:
            ratio: share of units and channels to remove, in [0, 1).
            layers: shares in [0, 1) by layer, overriding ``ratio``.
            module: the policy. example_inputs: as for ``Compressor.bind``.
            scheme: the method's text.
        Raises:
            UnsupportedLayerError: a layer cannot be pruned, or nothing would be removed.
        """
        self._scheme = scheme
        whole = copy.deepcopy(module).cpu().eval()
        examples = {name: value.detach().cpu() for name, value in example_inputs.items()}
        groups = find_groups(whole, examples)
        check_layers(scheme, dict(layers), [group.name for group in groups])
        counts = {g.name: kept_count(g.size, choice_for(g.name, layers, ratio)) for g in groups}
        for group in groups:
            if dict(layers).get(group.name) and counts[group.name] == group.size:
                raise UnsupportedLayerError(
                    f"{scheme}: {group.name!r} has {group.size} units, which are kept in multiples of 16, or "
                    "of 8 below 64, so none is removed; remove a greater share, or omit the layer"
                )
        self._groups = [group for group in groups if counts[group.name] < group.size]
        if not self._groups:
            sizes = ", ".join(sorted(f"{group.name!r} has {group.size}" for group in groups)) or "it has none but heads"
            raise UnsupportedLayerError(
                f"{scheme} finds no layer of this policy to prune: {sizes}; units are kept in multiples of 16, "
                "or of 8 below 64, heads and layers of fewer than 16 are not pruned; remove a greater share, or use a "
                "scheme without prune"
            )
        self._counts = counts
        self.kept: dict[str, IndexArray] = {}
        self._indices: dict[str, dict[int, IndexArray]] = {}
        self._compensation = Compensation(self._groups)
        state = read_state(whole)
        self.reselect(state)
        self.module = _slice_module(whole, self._indices)
        self._check(whole, examples)
        self._whole = whole

    def project(self, state: State) -> State:
        """See ``Reduction.project``."""
        corrections = self._compensation.corrections(state, self._indices)
        projected: dict[str, Array] = {}
        for name, array in state.items():
            for axis, index in sorted(self._indices.get(name, {}).items()):
                # rows first, as they are contiguous; torch gathers columns nearly twice as fast as numpy
                array = torch.from_numpy(array).index_select(axis, torch.from_numpy(index)).numpy()
            projected[name] = np.add(array, corrections[name]) if name in corrections else array
        return projected

    def zero_filled(self, projected: State, state: State) -> State:
        """See ``Reduction.zero_filled``."""
        filled: dict[str, Array] = {}
        for name, array in state.items():
            axes, filled[name] = self._indices.get(name, {}), np.zeros_like(array)
            kept = np.ix_(*(axes.get(axis, np.arange(size)) for axis, size in enumerate(array.shape)))
            filled[name][kept] = projected[name]
        return filled

    def reselect(self, state: State) -> None:
        """See ``Reduction.reselect``."""
        masks: dict[tuple[str, int], NDArray[np.bool_]] = {}
        for group in self._groups:
            scores = self._scores(group, state)
            keep = np.zeros(group.size, dtype=bool)
            keep[np.argsort(-scores, kind="stable")[: self._counts[group.name]]] = True
            self.kept[group.name] = np.flatnonzero(keep)
            for cut in group.cuts:
                mask = masks.setdefault((cut.parameter, cut.axis), np.ones(state[cut.parameter].shape[cut.axis], bool))
                mask[cut.index] &= keep[cut.channel]
        self._indices = {}
        for (parameter, axis), mask in masks.items():
            self._indices.setdefault(parameter, {})[axis] = np.flatnonzero(mask)
        self._compensation.solve(state, self.kept, self._indices)

    def observe(self, state: State, inputs: Mapping[str, Array]) -> bool:
        """See ``Reduction.observe``."""
        first = not self._compensation.seen
        load_state(self._whole, state)
        self._compensation.observe(self._whole, inputs)
        if first:
            self.reselect(state)
            return True
        self._compensation.solve(state, self.kept, self._indices)
        return False

    def refit(self, state: State, inputs: Mapping[str, Array]) -> None:
        """See ``Reduction.refit``; skipped with layers of more than 1024 units, which take seconds."""
        if max(group.size for group in self._groups) <= _REFIT_UNITS:
            self.observe(state, inputs)

    def _scores(self, group: ChannelGroup, state: State) -> NDArray[np.float64]:
        """Residual variance, which needs real inputs; magnitude until there are any."""
        readers = self._compensation.readers_of(group.name, state)
        return residual(self._counts[group.name], readers) if readers else magnitude(group, state)

    def _check(self, whole: nn.Module, examples: Mapping[str, Tensor]) -> None:
        """Check that the pruned policy equals the policy whose readers of removed channels have zero weights."""
        generator = torch.Generator().manual_seed(_CHECK_SEED)
        parameters = dict(whole.named_parameters())
        removed = [(cut, ~np.isin(cut.channel, self.kept[g.name])) for g in self._groups for cut in g.cuts]
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(parameter[0].numel(), 4) ** 0.5)
            for cut, gone in removed:
                if not cut.produces:
                    parameters[cut.parameter].index_fill_(cut.axis, torch.from_numpy(cut.index[gone]), 0.0)
            noise = [(torch.randn(v.shape, generator=generator), v.dtype) for v in examples.values()]
            inputs = [(64 * x + 128).clamp(0, 255).byte() if dtype == torch.uint8 else x for x, dtype in noise]
            try:
                load_state(self.module, self.project(read_state(whole)))
                wanted, found = whole(*inputs), self.module(*inputs)
            except RuntimeError as error:  # torch's
                raise UnsupportedLayerError(
                    f"{self._scheme} cannot remove units of {', '.join(self.kept)}: the pruned layers do not "
                    f"fit together ({str(error).splitlines()[0]}); use a scheme without prune"
                ) from error
        wanted, found = ((r,) if isinstance(r, Tensor) else r for r in (wanted, found))
        for theirs, ours in zip(wanted, found, strict=True):
            if theirs.shape != ours.shape or not torch.allclose(theirs, ours, atol=1e-3, rtol=1e-3):
                raise UnsupportedLayerError(
                    f"{self._scheme} cannot remove units of {', '.join(self.kept)} without changing the other "
                    "units of this policy; use a scheme without prune"
                )


def kept_count(size: int, ratio: float) -> int:
    """How many channels of a layer are kept: a multiple of 16, or of 8 below 64, for fast kernels; all below 16."""
    if size < 16 or ratio == 0.0:
        return size
    multiple = 16 if size >= 64 else 8
    return min(size, max(multiple, multiple * round(size * (1.0 - ratio) / multiple)))


def _slice_module(whole: nn.Module, indices: Mapping[str, Mapping[int, IndexArray]]) -> nn.Module:
    """A copy with smaller parameters, whose layers have the new sizes."""
    smaller = copy.deepcopy(whole)
    for name, axes in indices.items():
        owner_name, _, attribute = name.rpartition(".")
        owner = smaller.get_submodule(owner_name)
        tensor = getattr(owner, attribute).detach()
        for axis, index in axes.items():
            tensor = tensor.index_select(axis, torch.from_numpy(index))
        setattr(owner, attribute, nn.Parameter(tensor))
    for layer in smaller.modules():
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, nn.Conv2d):
            layer.out_channels, layer.in_channels = (int(size) for size in layer.weight.shape[:2])
        elif isinstance(layer, nn.LSTM):
            layer.input_size = int(layer.get_parameter("weight_ih_l0").shape[1])
    return smaller
