"""Static int8: outputs equal to integer arithmetic, kernels really used. Codes are compared in test_oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, operators
from accel.compressors.errors import CalibrationError, UnsupportedLayerError
from accel.compressors.pipeline import make_compressor
from tests.compressors.policies import CASES, Case, made, refreshed, run_artifact, run_module
from tests.compressors.spoiled import SPOILS, ends_of_the_range

KERNELS = {
    "tanh-mlp": {"QGemm": 3},
    "relu-mlp": {"QGemm": 3},
    "deep-relu-mlp": {"QGemm": 5},
    "nature-cnn": {"QLinearConv": 3, "QGemm": 2},
    "resnet": {"QLinearConv": 10, "QLinearAdd": 4, "QGemm": 2},
    "lstm-cell": {"QGemm": 4},
    "lstm": {"QGemm": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_runs_in_integer_kernels(name: str) -> None:
    _, _, artifact = refreshed(name, "int8(u8s8,x8)")
    assert integer_kernels(artifact) == KERNELS[name]
    assert not float_kernels(artifact)


def test_pixels_reach_the_first_convolution_as_they_are_and_pooling_runs_channels_last() -> None:
    found = {name: operators(refreshed(name, "int8(u8s8,x8)")[2]) for name in ("nature-cnn", "resnet")}
    assert set(found["nature-cnn"]) == {"QLinearConv", "Flatten", "QGemm"}
    assert found["resnet"]["NhwcMaxPool"] == 2 and "MaxPool" not in found["resnet"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("scheme", "most"), [("int8(s8s8)", 66_311), ("int8(reduce_range)", 131_586)])
def test_sums_that_can_exceed_32_bits_are_refused(scheme: str, most: int, bias: bool) -> None:
    most = most // 2 if bias else most
    for inputs in (most, most + 1):
        case = Case(nn.Module, {"observations": (inputs,)})
        policy = nn.Sequential(nn.Linear(inputs, 2, bias), nn.ReLU(), nn.Linear(2, 2))
        if inputs == most:
            case.bind(scheme, policy, rows=0)
            continue
        with pytest.raises(UnsupportedLayerError, match=rf"layer '0' sums {inputs:,} products, .* {most:,} .*0=float"):
            case.bind(scheme, policy, rows=0)
        case.bind(f"{scheme[:-1]},0=float)", policy, rows=0)


@pytest.mark.parametrize("variant", ["u8s8", "s8s8"])
@pytest.mark.parametrize("spoil", [s for s in SPOILS if s is not ends_of_the_range], ids=lambda f: f.__name__)
def test_outputs_stay_close_for_awkward_weights(spoil: Callable[[nn.Module], None], variant: str) -> None:
    case, module = made("relu-mlp")
    spoil(module)
    inputs = case.inputs(16)
    found = run_artifact(case.bind(f"int8({variant},x8)", module).refresh(module, version=1), inputs)[0]
    wanted = run_module(module, inputs)[0]
    assert np.abs(found - wanted).max() < 0.05 * (np.abs(wanted).max() + 1e-3)


@pytest.mark.parametrize(("scale", "width"), [(1e-4, 256), (1e-5, 256), (1e-6, 256), (1e-9, 33_000)])
def test_a_bias_beside_tiny_weights_leaves_room_for_the_sum(scale: float, width: int) -> None:
    """At 32 bits a sum that passes its end wraps around, and the output's sign changes."""
    module = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter, factor in zip(module.parameters(), (1.0, 0.0, scale, 0.0), strict=True):
            parameter.copy_(factor * torch.rand(parameter.shape, generator=generator))
        module[2].bias.copy_(torch.tensor([10.0, 0.0, -10.0]))
    x = torch.rand(256, 4, generator=generator)
    plan = make_compressor("int8").bind(module, {"x": x[:2]}, {"x": x.numpy()}, output_names=["out"])
    (found,) = run_artifact(plan.refresh(module, version=0), {"x": x.numpy()})
    np.testing.assert_allclose(found[:, [0, 2]], module(x).detach().numpy()[:, [0, 2]], rtol=0.01)


def test_without_calibration_refreshing_says_what_to_do() -> None:
    case = CASES["tanh-mlp"]
    module = case.make()
    plan = case.bind("int8", module, rows=0)
    with pytest.raises(CalibrationError, match="publish fp32 until then"):
        plan.refresh(module, version=1)
    plan.calibrate(case.inputs(32))
    plan.refresh(module, version=1)


class _Gated(nn.Module):
    """A recurrence without an integer kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(11, 8)
        self.memory = nn.GRU(8, 8)

    def forward(self, observations: Tensor, state_0: Tensor) -> tuple[Tensor, Tensor]:
        _, h = self.memory(self.encoder(observations)[None], state_0[None])
        return h[0] * 2.0, h[0]


class _Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose2d(2, 4, 3)

    def forward(self, observations: Tensor) -> Tensor:
        return self.upsample(observations.float()).mean((2, 3))


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        (Case(_Gated, {"observations": (11,), "state_0": (8,)}, ("params", "next")), "memory"),
        (Case(_Transposed, {"observations": (2, 6, 6)}), "upsample"),
    ],
    ids=["gru", "transposed convolution"],
)
def test_a_layer_without_integer_kernel_is_named(case: Case, layer: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=f"'{layer}' cannot be quantised.*use fp16 or fp32"):
        case.bind("int8(u8s8,x8)", case.make())
    case.bind("fp32", case.make())
