"""onnxruntime's own quantizer as the oracle for every kind of policy, variant of int8 and awkward weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from onnxruntime.quantization.quant_utils import quantize_data
from torch import nn

from compressors.cpu import AVX2, VNNI
from compressors.scheme import make_compressor
from compressors.state import read_state
from tests.compressors.oracle import float_model, initializers, inputs_of_layers, quantised_by_onnxruntime
from tests.compressors.policies import CASES, randomise

STATIC = ["int8(u8s8)", "int8(reduce_range)", "int8(per_channel,u8s8)", "int8(s8s8)"]
IMAGES = ("nature-cnn", "resnet")
NAMES = ["relu-mlp", "nature-cnn", "resnet", "lstm", "lstm-cell"]
# the oracle keeps pixels unsigned whatever other activations are, and so has another scale for the first bias
PAIRS = [(scheme, name) for scheme in STATIC for name in NAMES if scheme != "int8(s8s8)" or name not in IMAGES]
_INT8 = 3  # TensorProto.INT8


def _weights(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.dim() > 1]


def _as_they_are(module: nn.Module) -> None:
    pass


def _zero_layers(module: nn.Module) -> None:
    """Nothing but zeros in every other layer, which leaves ranges of nothing but the bias or zero behind it."""
    for weight in _weights(module)[::2]:
        weight.data.zero_()


def _zero_channels(module: nn.Module) -> None:
    for weight in _weights(module):
        weight.data[1].zero_()


def _ends_of_the_range(module: nn.Module) -> None:
    """±max|w| in every channel, halves between two codes, and subnormal numbers."""
    for weight in _weights(module):
        flat = weight.data.view(len(weight), -1)
        flat[:, 0], flat[:, 1] = 127.0, -127.0
        flat[:, 2] = torch.arange(len(flat)) + 0.5
        flat[0, 3:] = 1e-40


def _zero_ranges(module: nn.Module) -> None:
    """Every unit is dead, or puts out its bias alone."""
    for weight in _weights(module):
        weight.data.zero_()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.fill_(-1.0)


def _biases_beyond_32_bits(module: nn.Module) -> None:
    for weight in _weights(module)[1:]:
        weight.data *= 1e-9
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.fill_(50.0)


SPOILS = [_as_they_are, _zero_layers, _zero_channels, _ends_of_the_range, _zero_ranges, _biases_beyond_32_bits]
spoiled = pytest.mark.parametrize("spoil", SPOILS, ids=lambda f: f.__name__[1:])


@spoiled
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_static_codes_are_the_oracles(scheme: str, name: str, spoil: Callable[[nn.Module], None]) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    spoil(module)
    plan = case.bind(scheme, module)
    found = initializers(plan.refresh(module, version=1).model)
    wanted = quantised_by_onnxruntime(case, module, plan.encoder)
    for layer in plan.encoder.layers:
        stem, weight = layer.stem, layer.weight
        np.testing.assert_array_equal(found[f"{stem}:codes"], wanted[f"{weight}_quantized"])
        np.testing.assert_array_equal(found[f"{stem}:scale"], wanted[f"{weight}_scale"])
        np.testing.assert_array_equal(found[f"{stem}:zero"], wanted[f"{weight}_zero_point"])
        np.testing.assert_array_equal(found[layer.bias_codes], wanted[f"{layer.bias}_quantized"])
    read = inputs_of_layers(float_model(case, module))
    measured = [layer for layer in plan.encoder.layers if layer.activation in plan.encoder.ranges]
    assert len(measured) >= len(plan.encoder.layers) - 1 >= 2, "all but the layer that reads pixels"
    for layer in measured:
        for part in ("scale", "zero_point"):
            ours = found[f"{layer.activation}:{part.removesuffix('_point')}"]
            np.testing.assert_array_equal(ours, wanted[f"{read[layer.weight]}_{part}"])


@spoiled
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("cpu", "reduced"), [({VNNI}, False), ({AVX2}, True)], ids=["vnni", "avx2"])
def test_dynamic_codes_are_the_oracles(
    cpu: set[str], reduced: bool, name: str, spoil: Callable[[nn.Module], None]
) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    spoil(module)
    plan = make_compressor("int8-dynamic(force)", cpu=cpu).bind(module, case.examples(), output_names=case.outputs)
    found = initializers(plan.refresh(module, version=1).model)
    weights = plan.graph.read(read_state(module, plan.graph.leaves))
    assert len(plan.encoder.layers) >= 3
    for layer in plan.encoder.layers:
        weight = weights[layer.weight].T if layer.transposed else weights[layer.weight]
        _, scale, codes = quantize_data(np.ascontiguousarray(weight), _INT8, True, reduce_range=reduced)
        np.testing.assert_array_equal(found[f"{layer.stem}:codes"], codes)
        assert found[f"{layer.stem}:scale"] == scale
