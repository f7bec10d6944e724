"""Quantisation-aware training: the learner rounds to the codes that the next refresh writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compressors.differences import code_differences
from compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from compressors.int8 import Int8
from compressors.qat import FakeQuantiser
from tests.compressors.oracle import initializers
from tests.compressors.policies import CASES, randomise, run_artifact, run_module


def _rounded_forward(plan, module: nn.Module, inputs: dict[str, np.ndarray]) -> tuple[Tensor, ...]:
    quantiser = FakeQuantiser(plan)
    tensors = tuple(torch.from_numpy(array) for array in inputs.values())
    with quantiser.activations(module):
        result = torch.func.functional_call(module, quantiser.weights(module), tensors)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("scheme", ["int8(u8s8)", "int8(reduce_range)", "int8(s8s8)", "int8(per_channel,u8s8)"])
@pytest.mark.parametrize("name", ["tanh-mlp", "relu-mlp", "nature-cnn", "lstm"])
def test_rounded_weights_are_the_codes_of_the_next_refresh(name: str, scheme: str) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    plan = case.bind(scheme, module)
    if name == "lstm" and "per_channel" in scheme:
        with pytest.raises(UnsupportedLayerError, match="share scales"):
            FakeQuantiser(plan)
        return
    quantiser = FakeQuantiser(plan)
    randomise(module, seed=1)
    module.torso[0].bias.data *= 3.0
    rounded = quantiser.weights(module)
    numbers = initializers(plan.refresh(module, version=1).model)
    compared = 0
    for layer in plan.encoder.layers:
        if layer.weight not in rounded:
            continue
        scale = numbers[f"{layer.stem}:scale"]
        shaped = scale.reshape(-1, *[1] * (rounded[layer.weight].dim() - 1)) if scale.ndim else scale
        codes = np.rint(rounded[layer.weight].detach().numpy() / shaped)
        np.testing.assert_array_equal(codes, numbers[f"{layer.stem}:codes"])
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("name", ["tanh-mlp", "relu-mlp", "deep-relu-mlp", "nature-cnn"])
def test_the_rounded_forward_is_what_the_artifact_computes(name: str) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=2)
    plan = case.bind("int8(u8s8)", module)
    inputs = case.inputs(64, seed=1)
    found = _rounded_forward(plan, module, inputs)[0].detach().numpy()
    artifact = run_artifact(plan.refresh(module, version=1), inputs)[0]
    whole = run_module(module, inputs)[0]
    # what falls on the edge between two codes may round either way; the rest is the same
    assert np.sqrt(np.mean((found - artifact) ** 2)) < 0.3 * np.sqrt(np.mean((whole - artifact) ** 2))


def test_the_rounded_forward_of_an_lstm_is_close_to_the_artifact() -> None:
    case = CASES["lstm"]
    module = randomise(case.make(), seed=2)
    plan = case.bind("int8(u8s8)", module)
    inputs = case.inputs(64, seed=1)
    found = _rounded_forward(plan, module, inputs)
    for ours, theirs in zip(found, run_artifact(plan.refresh(module, version=1), inputs), strict=True):
        assert np.sqrt(np.mean((ours.detach().numpy() - theirs) ** 2)) < 0.02


@pytest.mark.parametrize(
    ("name", "rate", "greatest"),
    [("tanh-mlp", 1e-3, 1), ("relu-mlp", 1e-3, 1), ("deep-relu-mlp", 1e-3, 1), ("nature-cnn", 1e-4, 1),
     ("lstm", 0.05, 1), ("resnet", 0.01, 8)],
)  # fmt: skip
@pytest.mark.parametrize("variant", ["u8s8", "reduce_range", "s8s8"])
def test_activations_have_the_codes_of_the_artifact(name: str, variant: str, rate: float, greatest: int) -> None:
    """But for an LSTM's hidden state, and rare flips on the edge between codes, which deep residual nets pass on."""
    case = CASES[name]
    module = randomise(case.make(), seed=1)
    plan = case.bind(f"int8({variant})", module)
    quantiser = FakeQuantiser(plan)
    artifact = plan.refresh(module, version=1)
    found = code_differences(quantiser, artifact, module, case.inputs(64, seed=3))
    assert found.rate <= rate and found.greatest <= greatest and found.compared > 64 * 11
    with torch.no_grad():
        module.torso[0].weight.mul_(-1.0)
    other = code_differences(quantiser, artifact, module, case.inputs(64, seed=3))
    assert other.rate > 0.1, "weights of another version have other codes"


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, f"int8({options})") for name in ("tanh-mlp", "nature-cnn", "lstm") for options in ("u8s8", "reduce_range")]
    + [("tanh-mlp", "int8(per_channel,u8s8)"), ("nature-cnn", "int8(per_channel,u8s8)")],
)
def test_rounded_biases_are_the_codes_of_the_next_refresh(name: str, scheme: str) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    plan = case.bind(scheme, module)
    rounded = FakeQuantiser(plan).weights(module)
    numbers = initializers(plan.refresh(module, version=1).model)
    compared = 0
    for layer in plan.encoder.layers:
        parts = [rounded[n].detach().double().numpy() for n in plan.graph.sources(layer.bias) if n in rounded]
        recurrent = "core" in layer.name
        if recurrent:  # the graph has the sum of both, gates in another order
            parts = [parts[0] + dict(module.named_parameters())["core.bias_hh_l0"].detach().double().numpy()]
        bias = np.concatenate(parts)
        step = numbers[f"{layer.stem}:scale"].astype(np.float64) * float(plan.encoder.activation(layer.activation)[0])
        codes = numbers[layer.bias_codes]
        if codes.size > bias.size:
            codes, step = codes[: bias.size], step[: bias.size] if step.ndim else step
        found = bias / step
        if recurrent:
            found, codes = np.sort(found), np.sort(codes)
        np.testing.assert_allclose(found, codes, rtol=1e-6, atol=0.01)
        compared += 1
    assert compared >= 2


def test_gradients_pass_through_the_rounding() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    plan = case.bind("int8(u8s8)", module)
    quantiser = FakeQuantiser(plan)
    rounded = quantiser.weights(module)
    direction = torch.randn(module.head.weight.shape, generator=torch.Generator().manual_seed(0))
    (rounded["head.weight"] * direction).sum().backward()
    torch.testing.assert_close(module.head.weight.grad, direction)


def test_what_saturates_gets_no_gradient() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    plan = case.bind("int8(u8s8)", module)
    x = torch.tensor([[0.0] * 10 + [1e4]], requires_grad=True)
    with FakeQuantiser(plan).activations(module):
        module.torso(x).sum().backward()
    assert x.grad[0, 10] == 0.0 and x.grad[0, :10].abs().sum() > 0.0


def test_hooks_leave_with_the_context() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    plan = case.bind("int8(u8s8)", module)
    inputs = case.inputs(8)
    before = run_module(module, inputs)[0]
    _rounded_forward(plan, module, inputs)
    np.testing.assert_array_equal(before, run_module(module, inputs)[0])


def test_training_through_the_rounding_trains_the_artifact() -> None:
    """The learner's loss is the artifact's, up to rounding on the edge between two codes, and both fall."""
    case = CASES["relu-mlp"]
    inputs = case.inputs(512, seed=3)
    x = torch.from_numpy(inputs["observations"])
    target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), x[:, 3:].mean(1)], dim=1)
    module = randomise(case.make(), seed=0)
    plan = case.bind("int8(reduce_range)", module)
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = {}
    for step in range(301):
        if step % 50 == 0:
            plan.refresh(module, version=step)
            plan.calibrate(inputs)
        (output,) = _rounded_forward(plan, module, inputs)
        loss = (output - target).square().mean()
        if step in (0, 300):
            acted = run_artifact(plan.refresh(module, version=step), inputs)[0]
            losses[step] = float(np.mean((acted - target.numpy()) ** 2))
            assert losses[step] == pytest.approx(float(loss.detach()), rel=0.02)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[300] < 0.3 * losses[0]


@pytest.mark.parametrize("scheme", ["fp32", "int8-dynamic", "prune(0.5)+int8"])
def test_other_schemes_are_refused(scheme: str) -> None:
    case = CASES["relu-mlp"]
    with pytest.raises(SchemeError, match="follows int8 plans"):
        FakeQuantiser(case.bind(scheme, case.make()))


def test_an_uncalibrated_plan_is_refused() -> None:
    case = CASES["relu-mlp"]
    module = case.make()
    plan = Int8(variant="u8s8").bind(module, case.examples(), output_names=case.outputs)
    with pytest.raises(CalibrationError, match="no ranges yet"), FakeQuantiser(plan).activations(module):
        pass
