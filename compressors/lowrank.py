"""``lowrank(r)``: low-rank factorisation of weight matrices, with rank ``r`` times their smaller dimension.

    W h + b ≈ U (UᵀW) h + b + (W − U UᵀW) E[h],   U: the leading eigenvectors of W C Wᵀ

C is the covariance of the layer's inputs h on recent real inputs, and the identity before there are any: of all bases
of its rank, U minimises the mean squared error of the layer's outputs. The bias accounts for the mean of the inputs;
for a layer without bias, C are second moments about zero. U is selected when the scheme is bound and by ``reselect``;
in between, a refresh projects the present weight on it. A layer stays unfactorised where two factors would have no
fewer elements than the weight, and an LSTM always. ``lowrank(r,layer=q)`` gives one layer the rank ratio ``q``, and
``lowrank(layer=q)`` factorises no other layer. Source: Eckart and Young 1936 for C = I; principal components of the
outputs, as in Zhang et al. 2015, arXiv:1505.06798, section 2.1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array, FloatArray, State
from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.layer_choices import check_layers, choice_for
from accel.compressors.methods import Reduction
from accel.compressors.module_state import load_state, read_state
from accel.compressors.moments import Moments, some_rows, watch_inputs

_MULTIPLE = 8
_UNFOLDED_IMAGES = 8


@dataclass(frozen=True)
class _Factored:
    """A factorised layer, and the names of its weight and its bias ("": none)."""

    name: str
    weight: str
    bias: str
    rank: int


class FactoredModule(Reduction):
    """A policy with low-rank layers; see ``Reduction``.

    Attributes:
        ranks: layer name to rank, for factorised layers.
    """

    def __init__(
        self,
        ratio: float,
        layers: Sequence[tuple[str, float]],
        module: nn.Module,
        _example_inputs: Mapping[str, Tensor],
        *,
        scheme: str,
    ) -> None:
        """Factorise.

        Args:
            ratio: rank as a share of a weight's smaller dimension, in (0, 1]; at 1 layers are not factorised.
            layers: ratios in (0, 1] by layer, overriding ``ratio``.
            module: the policy. scheme: the method's text.
        Raises:
            UnsupportedLayerError: a layer cannot be factorised, or none would be smaller.
        """
        self._scheme, self._ratio, self._ratios = scheme, ratio, layers
        self.module = copy.deepcopy(module).cpu().eval()
        self._layers = self._replace_layers()
        if not self._layers:
            raise UnsupportedLayerError(
                f"{scheme} finds no layer whose factors would be smaller than its weight; use a smaller rank"
            )
        self.ranks = {layer.name: layer.rank for layer in self._layers}
        self._whole = copy.deepcopy(module).cpu().eval()
        self._moments: dict[str, Moments] = {}
        self._bases: dict[str, FloatArray] = {}
        self._own = {name for layer in self._layers for name in (layer.weight, layer.bias)}
        self.reselect(read_state(module))

    def project(self, state: State) -> State:
        """See ``Reduction.project``."""
        projected: dict[str, Array] = {name: array for name, array in state.items() if name not in self._own}
        for layer in self._layers:
            # torch uses the learner's threads, numpy a thread pool of its own that competes with them
            matrix, basis = torch.from_numpy(_matrix(layer, state)), torch.from_numpy(self._bases[layer.name])
            thin = torch.mm(basis.t(), matrix)
            first, second = thin.numpy(), self._bases[layer.name]
            shape = state[layer.weight].shape
            if len(shape) == 4:
                first, second = first.reshape(layer.rank, *shape[1:]), second[:, :, None, None]
            names = [_inside(layer.name, part) for part in ("0.weight", "1.weight", "1.bias")]
            projected[names[0]], projected[names[1]] = first, second
            if layer.bias:
                bias = torch.from_numpy(state[layer.bias])
                if layer.name in self._moments:
                    mean = self._moments[layer.name].mean[:, 0].float()
                    bias = bias + torch.mv(matrix, mean) - torch.mv(basis, torch.mv(thin, mean))
                projected[names[2]] = bias.numpy()
        return projected

    def reselect(self, state: State) -> None:
        """See ``Reduction.reselect``."""
        for layer in self._layers:
            covariance, known = None, self._moments.get(layer.name)
            if known is not None:
                spread = known.spread(about_zero=not layer.bias)
                covariance = spread + known.ridge(len(spread)) * torch.eye(len(spread), dtype=spread.dtype)
            self._bases[layer.name] = leading_basis(_matrix(layer, state), layer.rank, covariance)

    def observe(self, state: State, inputs: Mapping[str, Array]) -> bool:
        """See ``Reduction.observe``; selects again at the first inputs."""
        first = not self._moments
        load_state(self._whole, state)
        watch_inputs(self._whole, inputs, {layer.name: partial(self._measure, layer.name) for layer in self._layers})
        if first:
            self.reselect(state)
        return first

    def _measure(self, name: str, layer: nn.Module, value: Tensor) -> None:
        rows = some_rows(_rows(layer, value)).double()
        self._moments[name] = Moments.of(rows[:, :, None]).after(self._moments.get(name))

    def _replace_layers(self) -> list[_Factored]:
        made: list[_Factored] = []
        names: list[str] = []
        for name, layer in list(self.module.named_modules()):
            own = dict(layer.named_parameters(recurse=False))
            if isinstance(layer, nn.LSTM | nn.LSTMCell):
                continue
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                if any(p.dim() > 1 for p in own.values()):
                    raise UnsupportedLayerError(
                        f"lowrank supports Linear and Conv2d, not {name!r}, a {type(layer).__name__}; use a scheme "
                        "without lowrank, or another layer"
                    )
                continue
            if "weight" not in own:
                raise UnsupportedLayerError(
                    f"lowrank factorises weights that are parameters, and those of {name!r} are computed "
                    "(torch.nn.utils.parametrize); remove the parametrisation, or use a scheme without lowrank"
                )
            rows = len(own["weight"])
            columns = own["weight"].numel() // rows
            names.append(name)
            ratio = choice_for(name, self._ratios, self._ratio)
            rank = factor_rank(rows, columns, ratio)
            if rank is None and ratio < 1.0 and name in dict(self._ratios):
                raise UnsupportedLayerError(
                    f"{self._scheme}: factors of {name!r} [{rows}, {columns}] would be no smaller than its "
                    "weight; use a smaller rank for it, or omit the layer"
                )
            if rank is not None:
                _check_convolution(self._scheme, name, layer)
                self.module = _replaced(self.module, name, _factorised(layer, rank))
                bias = "" if layer.bias is None else _inside(name, "bias")
                made.append(_Factored(name, _inside(name, "weight"), bias, rank))
        check_layers(self._scheme, dict(self._ratios), names)
        return made


def leading_basis(matrix: FloatArray, rank: int, covariance: Tensor | None = None) -> FloatArray:
    """[outputs, rank] leading eigenvectors of W C Wᵀ for W [outputs, inputs] and C [inputs, inputs] or the identity."""
    weight = torch.from_numpy(matrix).double()
    spread = weight if covariance is None else weight @ covariance
    _, vectors = torch.linalg.eigh(spread @ weight.t())
    leading: FloatArray = vectors.flip(1)[:, :rank].float().contiguous().numpy()
    return leading


def _matrix(layer: _Factored, state: State) -> FloatArray:
    """The layer's weight [outputs, inputs], kernels flat."""
    weight = state[layer.weight]
    return np.asarray(weight.reshape(len(weight), -1), np.float32)


def _rows(layer: nn.Module, x: Tensor) -> Tensor:
    """[samples, inputs]: the vectors that a layer's weight matrix multiplies; of convolutions those of some images."""
    if not isinstance(layer, nn.Conv2d):
        return x.reshape(-1, x.shape[-1])
    patches = nn.functional.unfold(
        x[:_UNFOLDED_IMAGES],
        layer.kernel_size,
        layer.dilation,
        layer.padding,  # type: ignore[arg-type]
        layer.stride,
    )
    return patches.transpose(1, 2).flatten(0, 1)


def factor_rank(rows: int, columns: int, ratio: float) -> int | None:
    """The rank of a weight [rows, columns]; None if two factors would have no fewer elements, or the ratio is 1."""
    rank = max(_MULTIPLE, _MULTIPLE * round(min(rows, columns) * ratio / _MULTIPLE))
    return rank if ratio < 1.0 and rank * (rows + columns) < rows * columns else None


def _check_convolution(scheme: str, name: str, layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d) and (
        layer.groups > 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        raise UnsupportedLayerError(
            f"{scheme} supports convolutions of one group with numeric zero padding, not {name!r} (groups="
            f"{layer.groups}, padding={layer.padding!r}, padding_mode={layer.padding_mode!r}); exclude it with "
            f"{name}=1, use a scheme without lowrank, or another layer"
        )


def _inside(module: str, name: str) -> str:
    """The full name of a module's member; the module "" is the policy itself."""
    return f"{module}.{name}" if module else name


def _factorised(layer: nn.Linear | nn.Conv2d, rank: int) -> nn.Module:
    """To ``rank`` features or channels, as the layer does it, then to the outputs."""
    has_bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        thin = nn.Linear(layer.in_features, rank, bias=False)
        return nn.Sequential(thin, nn.Linear(rank, layer.out_features, bias=has_bias))
    first = nn.Conv2d(
        layer.in_channels,
        rank,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        layer.dilation,  # type: ignore[arg-type]
        bias=False,
    )
    return nn.Sequential(first, nn.Conv2d(rank, layer.out_channels, 1, bias=has_bias))


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The module with one layer replaced; the layer itself if it is the whole module."""
    if not name:
        return layer
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, layer)
    return module
