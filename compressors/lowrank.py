"""``lowrank(r)``: low-rank factorisation of weight matrices, with rank ``r`` times their smaller dimension.

    W h + b ≈ U (UᵀW) h + b + (W − U UᵀW) E[h],   U: the leading eigenvectors of W C Wᵀ

C is the covariance of the layer's inputs h on recent real inputs, and the identity before there are any: of all bases
of its rank, U minimises the mean squared error of the layer's outputs. The bias accounts for the mean of the inputs;
for a layer without bias, C are second moments about zero. U is selected when the scheme is bound and by ``reselect``;
in between, a refresh projects the present weight on it. A layer stays unfactorised where two factors would have no
fewer elements than the weight. ``lowrank(r,layer=q)`` gives one layer the rank ratio ``q``, and ``lowrank(layer=q)``
factorises no other layer. Source: Eckart and Young 1936 for C = I; principal components of the outputs, as in Zhang et
al. 2015, arXiv:1505.06798, section 2.1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from accel.compressors.arrays import Array, FloatArray, State
from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.layer_choices import check_layers, choice_for, is_named
from accel.compressors.method_arguments import parse_lowrank
from accel.compressors.methods import BoundReduction, Reduction
from accel.compressors.module_state import load_state, read_state
from accel.compressors.moments import InputMoments
from accel.compressors.scheme import Context, MethodText

_MULTIPLE = 8


@dataclass(frozen=True)
class LowRank(Reduction):
    """Low-rank factors.

    Attributes:
        ratio: rank as a share of a weight's smaller dimension, in (0, 1]; at 1 layers are not factorised.
        layers: ratios in (0, 1] by layer, overriding ``ratio``.
    """

    ratio: float
    layers: tuple[tuple[str, float], ...] = ()

    @property
    def method(self) -> MethodText:
        """``lowrank`` with its ratios."""
        ratio = (f"{self.ratio:g}",) if self.ratio < 1.0 else ()
        return MethodText("lowrank", (*ratio, *(f"{layer}={share:g}" for layer, share in self.layers)))

    def reduce(self, module: nn.Module, example_inputs: Mapping[str, Tensor]) -> BoundReduction:
        """See ``Reduction.reduce``."""
        return FactoredModule(self, module)


@dataclass(frozen=True)
class _Factored:
    """A factorised layer: its weights, concatenated, its biases, and its name in the smaller module."""

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    prefix: str
    rank: int


class FactoredModule(BoundReduction):
    """A policy with low-rank layers; see ``BoundReduction``.

    Attributes:
        ranks: layer name to rank, for factorised layers.
    """

    def __init__(self, options: LowRank, module: nn.Module) -> None:
        self._options = options
        self.module = copy.deepcopy(module).cpu().eval()
        self._layers = self._replace_layers()
        if not self._layers:
            raise UnsupportedLayerError(
                f"{options.scheme} finds no layer whose factors would be smaller than its weight; use a smaller rank"
            )
        self.ranks = {layer.prefix: layer.rank for layer in self._layers}
        self._whole = copy.deepcopy(module).cpu().eval()
        self._inputs = InputMoments(layer.prefix for layer in self._layers)
        self._bases: dict[str, FloatArray] = {}
        self._own = {name for layer in self._layers for name in (*layer.weights, *layer.biases)}
        self.reselect(read_state(module))

    def project(self, state: State) -> State:
        """See ``BoundReduction.project``."""
        projected: dict[str, Array] = {name: array for name, array in state.items() if name not in self._own}
        for layer in self._layers:
            # torch uses the learner's threads, numpy a thread pool of its own that competes with them
            matrix, basis = torch.from_numpy(_matrix(layer, state)), torch.from_numpy(self._bases[layer.prefix])
            thin = torch.mm(basis.t(), matrix)
            first, second = thin.numpy(), self._bases[layer.prefix]
            shape = state[layer.weights[0]].shape
            if len(shape) == 4:
                first, second = first.reshape(layer.rank, *shape[1:]), second[:, :, None, None]
            names = [_inside(layer.prefix, part) for part in ("0.weight", "1.weight", "1.bias")]
            projected[names[0]], projected[names[1]] = first, second
            if layer.biases:
                bias = torch.stack([torch.from_numpy(state[name]) for name in layer.biases]).sum(0)
                mean = self._inputs.mean(layer.prefix)
                if mean is not None:
                    bias = bias + torch.mv(matrix, mean) - torch.mv(basis, torch.mv(thin, mean))
                projected[names[2]] = bias.numpy()
        return projected

    def reselect(self, state: State) -> None:
        """See ``BoundReduction.reselect``."""
        for layer in self._layers:
            covariance = self._inputs.covariance(layer.prefix, about_zero=not layer.biases)
            self._bases[layer.prefix] = leading_basis(_matrix(layer, state), layer.rank, covariance)

    def observe(self, state: State, inputs: Mapping[str, Array]) -> bool:
        """See ``BoundReduction.observe``; selects again at the first inputs."""
        first = not self._inputs.seen
        load_state(self._whole, state)
        self._inputs.observe(self._whole, inputs)
        if first:
            self.reselect(state)
        return first

    def _replace_layers(self) -> list[_Factored]:
        made: list[_Factored] = []
        names: list[str] = []
        for name, layer in list(self.module.named_modules()):
            weights: tuple[str, ...]
            biases: tuple[str, ...]
            if isinstance(layer, nn.Linear | nn.Conv2d):
                weights, biases = ("weight",), ("bias",) if layer.bias is not None else ()
            elif isinstance(layer, nn.LSTM | nn.LSTMCell):
                _check_lstm(name, layer)
                suffix = "_l0" if isinstance(layer, nn.LSTM) else ""
                weights = (f"weight_ih{suffix}", f"weight_hh{suffix}")
                biases = (f"bias_ih{suffix}", f"bias_hh{suffix}") if layer.bias else ()
            elif any(p.dim() > 1 for p in layer.parameters(recurse=False)):
                raise UnsupportedLayerError(
                    f"lowrank supports Linear, Conv2d, nn.LSTM, nn.LSTMCell, not {name!r}, a {type(layer).__name__}; "
                    "use a scheme without lowrank, or another layer"
                )
            else:
                continue
            tensors = dict(layer.named_parameters(recurse=False))
            if any(weight not in tensors for weight in weights):
                raise UnsupportedLayerError(
                    f"lowrank factorises weights that are parameters, and those of {name!r} are computed "
                    "(torch.nn.utils.parametrize); remove the parametrisation, or use a scheme without lowrank"
                )
            rows = tensors[weights[0]].shape[0]
            columns = sum(tensors[w].numel() // rows for w in weights)
            names.append(name)
            ratio = choice_for(name, self._options.layers, self._options.ratio)
            rank = factor_rank(rows, columns, ratio)
            if rank is None and ratio < 1.0 and is_named(name, dict(self._options.layers)):
                raise UnsupportedLayerError(
                    f"{self._options.scheme}: factors of {name!r} [{rows}, {columns}] would be no smaller than its "
                    "weight; use a smaller rank for it, or omit the layer"
                )
            if rank is not None:
                _check_convolution(self._options.scheme, name, layer)
                self.module = _replaced(self.module, name, _factorised(layer, rank))
                full = [tuple(_inside(name, n) for n in names) for names in (weights, biases)]
                made.append(_Factored(full[0], full[1], name, rank))
        check_layers(self._options.scheme, dict(self._options.layers), names)
        return made


def leading_basis(matrix: FloatArray, rank: int, covariance: Tensor | None = None) -> FloatArray:
    """[outputs, rank] leading eigenvectors of W C Wᵀ for W [outputs, inputs] and C [inputs, inputs] or the identity."""
    weight = torch.from_numpy(matrix).double()
    spread = weight if covariance is None else weight @ covariance
    _, vectors = torch.linalg.eigh(spread @ weight.t())
    leading: FloatArray = vectors.flip(1)[:, :rank].float().contiguous().numpy()
    return leading


def make_lowrank(arguments: tuple[str, ...], context: Context) -> LowRank:
    """The ``lowrank`` method; see ``parse_lowrank``."""
    return LowRank(*parse_lowrank(arguments))


def _matrix(layer: _Factored, state: State) -> FloatArray:
    """The layer's weights, concatenated: [outputs, inputs of all]."""
    parts = [state[name].reshape(len(state[name]), -1) for name in layer.weights]
    matrix: FloatArray = (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).astype(np.float32, copy=False)
    return matrix


def factor_rank(rows: int, columns: int, ratio: float) -> int | None:
    """The rank of a weight [rows, columns]; None if two factors would have no fewer elements, or the ratio is 1."""
    rank = max(_MULTIPLE, _MULTIPLE * round(min(rows, columns) * ratio / _MULTIPLE))
    return rank if ratio < 1.0 and rank * (rows + columns) < rows * columns else None


def _check_lstm(name: str, layer: nn.LSTM | nn.LSTMCell) -> None:
    if isinstance(layer, nn.LSTM) and (layer.num_layers > 1 or layer.bidirectional or layer.proj_size):
        raise UnsupportedLayerError(
            f"lowrank supports LSTMs of one layer and direction without projection, not {name!r}; use a scheme without "
            "lowrank, or another layer"
        )


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


def _factorised(layer: nn.Module, rank: int) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return factored_linear(layer, rank)
    if isinstance(layer, nn.Conv2d):
        return factored_convolution(layer, rank)
    if isinstance(layer, nn.LSTM):
        return FactoredLSTM(layer.input_size, layer.hidden_size, rank, bias=bool(layer.bias))
    if isinstance(layer, nn.LSTMCell):
        return FactoredLSTMCell(layer.input_size, layer.hidden_size, rank, bias=bool(layer.bias))
    raise UnsupportedLayerError(f"lowrank cannot replace a {type(layer).__name__}")


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The module with one layer replaced; the layer itself if it is the whole module."""
    if not name:
        return layer
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, layer)
    return module


def factored_linear(layer: nn.Linear, rank: int) -> nn.Sequential:
    """Linear to ``rank`` features, then to the outputs."""
    first = nn.Linear(layer.in_features, rank, bias=False)
    return nn.Sequential(first, nn.Linear(rank, layer.out_features, bias=layer.bias is not None))


def factored_convolution(layer: nn.Conv2d, rank: int) -> nn.Sequential:
    """The layer's convolution to ``rank`` channels, then 1 × 1 to the outputs."""
    first = nn.Conv2d(
        layer.in_channels,
        rank,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        layer.dilation,  # type: ignore[arg-type]
        bias=False,
    )
    return nn.Sequential(first, nn.Conv2d(rank, layer.out_channels, 1, bias=layer.bias is not None))


class FactoredLSTMCell(nn.ModuleList):
    """``nn.LSTMCell`` whose four gates come from one product in two factors; gate order i, f, g, o."""

    def __init__(self, input_size: int, hidden_size: int, rank: int, bias: bool) -> None:
        first = nn.Linear(input_size + hidden_size, rank, bias=False)
        super().__init__([first, nn.Linear(rank, 4 * hidden_size, bias=bias)])

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[N, I] and (h, c) [N, H] to the next (h, c)."""
        h, c = state
        first, second = self
        gates: Tensor = second(first(torch.cat([x, h], dim=1)))
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class FactoredLSTM(FactoredLSTMCell):
    """``nn.LSTM`` of one layer over one step, whose gates come from one product in two factors."""

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[1, N, I] and (h, c) [1, N, H] to the output [1, N, H] and the next (h, c) [1, N, H]."""
        h, c = super().forward(x[0], (state[0][0], state[1][0]))
        return h[None], (h[None], c[None])
