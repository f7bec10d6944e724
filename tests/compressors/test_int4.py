"""4-bit weights: the oracle's own codes, corner cases, what the kernels really compute, changes counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime.capi._pybind_state import quantize_matmul_4bits
from torch import nn

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, weight_only_layers
from accel.compressors.errors import WeightsError
from accel.compressors.int4 import NibbleWriter, padded_size
from tests.compressors.policies import CASES, Case, bound, refreshed, run_artifact

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


def _block_codes(weight: Floats, block: int) -> tuple[Codes, Floats]:
    outputs, inputs = weight.shape
    codes = np.zeros((outputs, -(-inputs // block), block // 2), dtype=np.uint8)
    writer = NibbleWriter([padded_size(weight.shape, block)])
    return codes, writer.write_blocks("layer", weight, block, codes)


def _channel_codes(kernel: Floats) -> tuple[NDArray[np.int8], Floats]:
    packed = np.zeros((kernel.size + 1) // 2, dtype=np.uint8)
    scales = NibbleWriter([kernel.size]).write_channels("layer", kernel, packed)
    flat = _nibbles(packed).reshape(-1)[: kernel.size].astype(np.int8)
    return np.where(flat > 7, flat - 16, flat).astype(np.int8).reshape(kernel.shape), scales


def _nibbles(codes: Codes) -> Codes:
    return np.stack([codes & 15, codes >> 4], axis=-1)


def _of_onnxruntime(weight: Floats, block: int) -> tuple[Codes, Floats]:
    outputs, inputs = weight.shape
    blocks = -(-inputs // block)
    codes = np.zeros((outputs, blocks, block // 2), dtype=np.uint8)
    scales = np.zeros(outputs * blocks, dtype=np.float32)
    zeros = np.zeros(outputs * ((blocks + 1) // 2), dtype=np.uint8)
    quantize_matmul_4bits(codes, weight.T.copy(), scales, zeros, block, outputs, inputs, True)
    return codes, scales


def _compare_with_oracle(weight: Floats, block: int) -> bool:
    """Whether scales and codes are the same, but for the padding, which the kernel does not read."""
    (codes, scales), (wanted, wanted_scales) = _block_codes(weight, block), _of_onnxruntime(weight, block)
    outputs, inputs = weight.shape
    ours, theirs = (_nibbles(c).reshape(outputs, -1)[:, :inputs] for c in (codes, wanted))
    return bool((ours == theirs).all() and (scales == wanted_scales).all())


@given(st.integers(1, 150), st.integers(1, 5), st.sampled_from([16, 32, 64, 128]), st.integers(0, 99), st.booleans())
def test_codes_are_those_of_onnxruntimes_quantiser(
    inputs: int, outputs: int, block: int, seed: int, halves: bool
) -> None:
    """Weights in quarters put many quotients halfway between two codes."""
    weight = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    assert _compare_with_oracle(np.round(4 * weight) / np.float32(4) if halves else weight, block)


@pytest.mark.parametrize("extreme", [7.0, -7.0, 1e-30, 1e30, 0.0], ids=str)
def test_corner_cases_are_those_of_onnxruntimes_quantiser(extreme: float) -> None:
    """Blocks whose extreme is positive, negative, tiny, huge, of both signs, or nothing but zero."""
    weight = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 64)).astype(np.float32) * np.float32(extreme)
    weight[0, 5] = extreme
    weight[1, 5:7] = extreme, -extreme
    weight[2] = 0.0
    assert _compare_with_oracle(weight, 32)


def test_the_comparison_with_the_oracle_can_fail() -> None:
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    codes, _ = _block_codes(weight, 32)
    weight[1, 3] += 0.5
    assert (codes != _of_onnxruntime(weight, 32)[0]).any()


def test_a_block_of_nothing_but_zeros_or_subnormals_is_zero() -> None:
    weight = np.zeros((2, 40), dtype=np.float32)
    weight[1] = 1e-40
    codes, scales = _block_codes(weight, 32)
    assert (codes == 0x88).all() and (scales == 0).all()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_kernel_codes_are_the_definition(outputs: int, inputs: int, seed: int) -> None:
    """Sizes odd and even, a channel of zeros, and ±7 at the extremes."""
    kernel = np.random.default_rng(seed).standard_normal((outputs, inputs, 3, 1)).astype(np.float32)
    kernel[outputs // 2] = 0.0
    codes, scales = _channel_codes(kernel)
    for channel, code, scale in zip(kernel, codes, scales, strict=True):
        greatest = np.abs(channel).max()
        wanted = greatest / np.float32(7) if greatest else np.float32(1)
        assert scale == wanted and (code == np.rint(channel / wanted)).all()
        assert np.abs(code).max() == (7 if greatest else 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("name", ["relu-mlp", "nature-cnn"])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    _, module, plan = bound(name, "int4")
    module.torso[0].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"torso\.0.*not finite"):
        plan.refresh(module, version=1)


def test_outputs_are_those_of_integer_arithmetic() -> None:
    """The definition: activations in 8 bits with a scale for each row and block, whole products, then the scales."""
    module = nn.Linear(64, 24, bias=False)
    case = Case(lambda: module, {"observations": (64,)})
    inputs = case.inputs(16)
    found = run_artifact(case.bind("int4", module).refresh(module, version=1), inputs)[0]
    codes, scales = _block_codes(module.weight.detach().numpy(), 32)
    signed = _nibbles(codes).reshape(24, 2, 32).astype(np.float64) - 8.0
    blocks = inputs["observations"].reshape(16, 2, 32).astype(np.float64)
    step = np.abs(blocks).max(axis=2, keepdims=True) / 127.0
    real = signed * scales.reshape(24, 2, 1)
    rounded = np.einsum("nbk,mbk->nm", np.rint(blocks / step) * step, real)
    exact = np.einsum("nbk,mbk->nm", blocks, real)
    np.testing.assert_allclose(found, rounded, atol=2e-5)
    assert np.abs(found - exact).max() > 1e-3, "activations are in 8 bits, not whole"


@pytest.mark.parametrize(("name", "linear"), [("tanh-mlp", 3), ("lstm", 3), ("nature-cnn", 2)])
def test_linear_layers_multiply_integers_and_convolutions_do_not(name: str, linear: int) -> None:
    _, _, artifact = refreshed(name, "int4")
    assert integer_kernels(artifact) == {"MatMulNBits": linear}
    convolutions = ("torso.0", "torso.2", "torso.4") if name == "nature-cnn" else ()
    assert weight_only_layers(artifact) == convolutions
    assert float_kernels(artifact).total() == len(convolutions)


def test_weight_only_layers_are_named() -> None:
    module = CASES["nature-cnn"].make()
    named = {
        scheme: weight_only_layers(CASES["nature-cnn"].bind(scheme, module).refresh(module, version=1))
        for scheme in ("fp32", "fp16", "int8", "int8(torso.0=int4,head=float)")
    }
    every = ("torso.0", "torso.2", "torso.4", "torso.7", "head")
    assert named == {"fp32": (), "fp16": every, "int8": (), "int8(torso.0=int4,head=float)": ("torso.0",)}
