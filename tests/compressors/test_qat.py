"""``qat``: the learner computes on the codes that the next refresh writes, as the int8 graph does."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CalibrationError, SchemeError, UnsupportedLayerError
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import Plan
from accel.compressors.qat import arithmetic
from accel.compressors.qat.arithmetic import Scaled
from accel.compressors.qat.fake_quantiser import FakeQuantiser
from accel.compressors.quantisation.affine import UINT8
from accel.compressors.scheme import parse_scheme
from tests.compressors.oracle import initializers, rounded_plan
from tests.compressors.policies import CASES, MLP, Case, divergence, made, randomise, run_artifact, run_module, student

POLICIES = ["tanh-mlp", "relu-mlp", "deep-relu-mlp", "nature-cnn", "resnet", "lstm"]
ROUNDED = [
    *product(POLICIES, ["reduce_range"]),
    *product(["relu-mlp", "resnet", "lstm"], ["u8s8", "s8s8", "reduce_range,w2"]),
]


def _bound(name: str, scheme: str, seed: int = 1) -> tuple[Case, nn.Module, Plan, FakeQuantiser]:
    case = CASES[name]
    module = randomise(case.make(), seed)
    plan = case.bind(scheme, module)
    return case, module, plan, FakeQuantiser(plan, module)


def _allowed(name: str) -> int:
    """How many rows may differ: the last bit of a float decides on the edge of two codes.

    Of a ReLU policy only the normalised input is a float, and nothing between pixels and codes. tanh and sigmoid have
    other last bits on other CPUs.
    """
    return {"nature-cnn": 0, "resnet": 0, "tanh-mlp": 2, "lstm": 2}.get(name, 1)


def _tensors(inputs: dict[str, np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(array) for array in inputs.values()]


def _apart(
    quantiser: FakeQuantiser, artifact: CompressedPolicy, module: nn.Module, inputs: dict[str, np.ndarray]
) -> np.ndarray:
    """Greatest difference in each row of what the learner and the artifact compute: one wrong code is far more than the
    last bits of floats."""
    pairs = zip(quantiser(module, *_tensors(inputs)), run_artifact(artifact, inputs), strict=True)
    return np.max([np.abs(ours.detach().numpy() - theirs).max(axis=1) for ours, theirs in pairs], axis=0)


@pytest.mark.parametrize(("name", "options"), ROUNDED)
def test_weights_and_biases_have_the_codes_of_the_next_refresh(name: str, options: str) -> None:
    _, module, plan, quantiser = _bound(name, f"qat({options})")
    randomise(module, seed=2)
    module.torso[0].bias.data *= 3.0
    codes = quantiser.start(dict(module.named_parameters())).codes
    numbers = initializers(plan.refresh(module, version=1).model)
    compared = 0
    for layer, rule in zip(plan.encoder.layers, quantiser.rules.layers, strict=True):
        weights = np.concatenate([codes[weight].detach().numpy() for weight in rule.weights], axis=1)
        bias = np.concatenate([codes[bias].detach().numpy() for bias in rule.biases if bias in codes])
        wanted, wanted_bias = numbers[f"{layer.stem}:codes"], numbers[layer.bias_codes]
        if rule.is_lstm:  # the graph has the gates in another order
            wanted, weights = (np.sort(array.reshape(4, -1), axis=0) for array in (wanted, weights))
            wanted_bias, bias = np.sort(wanted_bias), np.sort(bias)
        np.testing.assert_array_equal(weights, wanted[: len(weights)])
        np.testing.assert_array_equal(wanted[len(weights) :], 0)
        np.testing.assert_array_equal(bias, wanted_bias[: len(bias)])
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("options", ["u8s8", "s8s8"])
def test_a_dead_layer_has_the_codes_of_the_artifact(options: str) -> None:
    """What is always zero has an empty range; the ReLU is in its codes all the same."""
    case, module = made("relu-mlp", seed=1)
    module.torso[0].weight.data.zero_()
    module.torso[0].bias.data.fill_(-1.0)
    plan = case.bind(f"qat({options})", module)
    quantiser = FakeQuantiser(plan, module)
    artifact = plan.refresh(module, version=1)
    inputs = case.inputs(16, seed=3)
    ours = quantiser(module, *_tensors(inputs))[0].detach().numpy()
    np.testing.assert_allclose(ours, run_artifact(artifact, inputs)[0], atol=1e-5)
    assert np.abs(ours - run_module(module, inputs)[0]).max() < 0.05


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *product(POLICIES, ["qat", "prune(0.5)+qat(u8s8)"]),
        *product(["relu-mlp", "resnet", "lstm"], ["qat(s8s8)", "qat(reduce_range,w2)"]),
        *product(["relu-mlp", "lstm"], ["qat(u8s8,x3)", "qat(s8s8,w3,x6)", "qat(u8s8,head=float)"]),
    ],
)
def test_the_rounded_forward_is_what_the_artifact_computes(name: str, scheme: str) -> None:
    """Residual sums included: sums of codes are whole numbers on both sides."""
    case, module, plan, quantiser = _bound(name, scheme, seed=2)
    quantiser.prune(module)
    inputs = case.inputs(64, seed=1)
    plan.calibrate(inputs)
    artifact = plan.refresh(module, version=1)
    rows = _apart(quantiser, artifact, module, inputs)
    assert (rows > 1e-5).sum() <= _allowed(name), "but for a float on a code's edge"
    assert np.abs(run_module(module, inputs)[0] - run_artifact(artifact, inputs)[0]).max() > 1e-3, (
        "the whole is another"
    )
    with torch.no_grad():
        module.torso[0].weight.mul_(-1.0)
    assert (_apart(quantiser, artifact, module, inputs) > 1e-3).mean() > 0.5, "weights of another version are others"


@pytest.mark.parametrize("name", ["tanh-mlp", "relu-mlp", "nature-cnn", "resnet", "lstm"])
def test_pruning_takes_from_the_policy_what_the_artifact_lacks(name: str) -> None:
    case, module, plan, quantiser = _bound(name, "prune(0.5)+qat(u8s8)")
    inputs = case.inputs(64, seed=3)
    quantiser.prune(module)
    plan.calibrate(inputs)
    fewer = {f"{layer}.weight" for layer in plan.reductions[0].kept}
    gone = {name: (p == 0).flatten(1).all(1) for name, p in module.named_parameters() if name in fewer}
    assert all(0.4 < rows.float().mean() < 0.6 for rows in gone.values())
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    sum(output.square().mean() for output in quantiser(module, *_tensors(inputs))).backward()
    for name, parameter in module.named_parameters():
        if name in gone:
            assert (parameter.grad[gone[name]] == 0).all() and (parameter.grad[~gone[name]] != 0).any(), name
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01)  # as momentum does
    quantiser.apply_masks(module)
    for name, rows in gone.items():
        parameter = module.get_parameter(name)
        assert (parameter[rows] == 0).all() and not torch.equal(parameter, before[name])
    assert (_apart(quantiser, plan.refresh(module, version=2), module, inputs) > 1e-5).sum() <= _allowed(name)


@pytest.mark.parametrize("options", ["x8", "x4", "x6"])
def test_a_residual_on_observations_has_the_codes_of_the_artifact(options: str) -> None:
    """Also where observations are beyond the range that was measured."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)

    module = randomise(nn.Sequential(Residual(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5)), seed=1)
    observations = torch.randn(256, 24, generator=torch.Generator().manual_seed(0))
    inputs = {"observations": observations.numpy()}
    plan = make_compressor(f"qat({options})").bind(
        module, {"observations": observations}, inputs, output_names=("params",)
    )
    quantiser, artifact = FakeQuantiser(plan, module), plan.refresh(module, 1)
    for factor in (1.0, 3.0):
        beyond = {"observations": inputs["observations"] * np.float32(factor)}
        assert (_apart(quantiser, artifact, module, beyond) > 1e-5).sum() <= 2


def test_a_policy_of_one_layer_trains_with_its_rounding() -> None:
    module, observations = randomise(nn.Linear(6, 3), seed=0), torch.randn(64, 6)
    inputs = {"observations": observations.numpy()}
    plan = make_compressor("qat").bind(module, {"observations": observations}, inputs, output_names=("params",))
    ours = FakeQuantiser(plan, module)(module, observations)[0].detach().numpy()
    np.testing.assert_allclose(ours, run_artifact(plan.refresh(module, 1), inputs)[0], atol=1e-5)


def test_a_sum_of_codes_is_the_kernels_for_every_pair() -> None:
    """All 65 536 pairs at random scales; the plain sum of values is not."""
    rng = np.random.default_rng(0)
    a, b = (axis.ravel().astype(np.uint8) for axis in np.meshgrid(np.arange(256), np.arange(256)))
    plainly_wrong = 0
    for _ in range(20):
        scales = np.exp(rng.uniform(-5, -1, 3)).astype(np.float32)
        zeros = rng.integers(0, 256, 3).astype(np.uint8)
        wanted = _session_sum(a, b, scales, zeros)
        of_a, of_b, how = (Scaled.of(s, int(z), UINT8) for s, z in zip(scales, zeros, strict=True))
        codes = [torch.from_numpy(x.astype(np.float32)) - z.zero for x, z in ((a, of_a), (b, of_b))]
        total = codes[0] * of_a.scale + codes[1] * of_b.scale
        found = arithmetic.add(total, *codes, of_a, of_b, how).numpy() + how.zero
        np.testing.assert_array_equal(found, wanted)
        plainly_wrong += int((arithmetic.quantise(total, how).numpy() + how.zero != wanted).sum())
    assert plainly_wrong > 0


def _session_sum(a: np.ndarray, b: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    numbers = {f"s{i}": np.array(scale) for i, scale in enumerate(scales)} | {
        f"z{i}": np.array(zero) for i, zero in enumerate(zeros)
    }
    node = helper.make_node("QLinearAdd", ["a", "s0", "z0", "b", "s1", "z1", "s2", "z2"], ["c"], domain="com.microsoft")
    values = {name: helper.make_tensor_value_info(name, TensorProto.UINT8, [None]) for name in "abc"}
    graph = helper.make_graph(
        [node], "sum", [values["a"], values["b"]], [values["c"]],
        [numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"a": a, "b": b})[0].astype(np.int64)


def test_gradients_are_those_of_the_definition() -> None:
    """A layer that reads and puts out codes: y = s_y clip(round(a s_x s_w / s_y)) of a = Σ q_x q_w + q_b, the
    derivative of every rounding 1 inside its range and 0 outside, multiplied out by hand."""
    _, module, _, quantiser = _bound("relu-mlp", "qat(s8s8,x8)")
    layer = quantiser.rules.layers[0]
    x = torch.randn(16, 11, generator=torch.Generator().manual_seed(5)) * 2.0
    x[0, 0], x[1, 1] = 1e4, -1e4
    x.requires_grad_()
    linear, direction = module.torso[0], torch.randn(16, 32, generator=torch.Generator().manual_seed(6))
    rounded = quantiser.start(dict(module.named_parameters()))
    y = rounded.call("torso.0", linear, x)
    (y * direction).sum().backward()

    reads, makes = quantiser.rules.coding(layer.activation), quantiser.rules.coding(layer.made)
    w_scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    q_x = (x.detach() / reads.scale).round().clamp(reads.least, reads.greatest)
    w_hat = (linear.weight.detach() / w_scale).round() * w_scale
    before = q_x * reads.scale @ w_hat.t() + linear.bias.detach()
    through = direction * ((before > 0) & (before < makes.greatest * makes.scale))
    inside = (x.detach() >= reads.least * reads.scale) & (x.detach() <= reads.greatest * reads.scale)
    assert not inside.all() and (through == 0).any()
    torch.testing.assert_close(x.grad, (through @ w_hat) * inside, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(linear.weight.grad, through.t() @ (q_x * reads.scale), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(linear.bias.grad, through.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet", "lstm"])
def test_gradients_are_close_to_those_of_the_whole_policy(name: str) -> None:
    """Through residual sums and over time: rounding is small, so a wrong path would show."""
    case, module, _, quantiser = _bound(name, "qat(u8s8)")
    inputs = _tensors(case.inputs(64, seed=1))
    direction = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    gradients = []
    for call in (quantiser, nn.Module.__call__):
        module.zero_grad()
        result = call(module, *inputs)
        (direction * (result[0] if isinstance(result, tuple) else result)).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.95
    assert gradients[0].norm() == pytest.approx(gradients[1].norm().item(), rel=0.1)


def test_an_lstm_over_time_is_its_steps_and_forgets_where_it_is_told() -> None:
    case, module, _, quantiser = _bound("lstm", "qat(u8s8)")
    x = torch.randn(5, 8, 32, generator=torch.Generator().manual_seed(0)).tanh()
    state = tuple(_tensors(case.inputs(8))[1:])
    keep = torch.ones(5, 8, 1)
    keep[2, :3] = 0.0
    rounded = quantiser.start(dict(module.named_parameters()))
    rows, (hidden, cell) = rounded.lstm("core", x, keep, state)
    h, c = state
    for t in range(5):
        one, (h, c) = rounded.call("core", module.core, x[t : t + 1], ((h * keep[t])[None], (c * keep[t])[None]))
        h, c = h[0], c[0]
        torch.testing.assert_close(rows[t], one[0])
    torch.testing.assert_close(hidden, h)
    torch.testing.assert_close(cell, c)


def test_the_module_is_as_before_after_a_rounded_pass() -> None:
    case, module, _, quantiser = _bound("resnet", "qat(u8s8)")
    inputs = case.inputs(8)
    before = run_module(module, inputs)[0]
    quantiser(module, *_tensors(inputs))
    np.testing.assert_array_equal(before, run_module(module, inputs)[0])
    assert not any("forward" in vars(part) for part in module.modules())


@pytest.mark.parametrize("scheme", ["qat(reduce_range)", "prune(0.5)+qat(u8s8)"])
def test_training_through_the_rounding_trains_the_artifact(scheme: str) -> None:
    """The learner's loss is the artifact's, and both fall."""
    case = CASES["relu-mlp"]
    inputs = case.inputs(512, seed=3)
    x = torch.from_numpy(inputs["observations"])
    target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), x[:, 3:].mean(1)], dim=1)
    module = randomise(case.make(), seed=0)
    plan = case.bind(scheme, module)
    quantiser = FakeQuantiser(plan, module)
    quantiser.prune(module)
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = {}
    for step in range(301):
        if step % 50 == 0:
            plan.refresh(module, version=step)
            plan.calibrate(inputs)
        (output,) = quantiser(module, x)
        loss = (output - target).square().mean()
        if step in (0, 300):
            acted = run_artifact(plan.refresh(module, version=step), inputs)[0]
            losses[step] = float(np.mean((acted - target.numpy()) ** 2))
            assert losses[step] == pytest.approx(float(loss.detach()), rel=1e-3)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        quantiser.apply_masks(module)
    assert losses[300] < 0.4 * losses[0]


class _Adding(nn.Module):
    """Sums in the middle of its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Conv2d(2, 16, 3, 2), nn.ReLU())
        self.again = nn.Conv2d(16, 16, 3, 1, 1)
        self.head = nn.Linear(16 * 81, 5)

    def forward(self, observations: Tensor) -> Tensor:
        x = self.torso(observations.float() / 255.0)
        return self.head(torch.flatten(torch.relu(x + self.again(x)), 1))


class _Twice(MLP):
    """Calls one layer twice."""

    def forward(self, observations: Tensor) -> Tensor:
        x = torch.relu(self.torso[0](self.normaliser(observations)))
        return self.head(torch.relu(self.torso[2](torch.relu(self.torso[2](x)))))


class _Scaled(nn.Linear):
    """A layer of its own kind."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class _Own(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.torso[2] = _Scaled(32, 32)


@pytest.mark.parametrize(
    ("make", "like", "message"),
    [
        (_Adding, "resnet", "computes on after an addition in 8 bits.*residual block.*use int8"),
        (_Twice, "relu-mlp", r"'torso.2' is called more than once.*qat\(torso.2=float\), or int8"),
        (_Own, "relu-mlp", r"'torso.2' is a _Scaled.*qat\(torso.2=float\), or use int8"),
        (CASES["lstm-cell"].make, "lstm-cell", r"'core' is a LSTMCell.*build it from torch's Linear, Conv or LSTM"),
    ],
)
def test_what_cannot_be_rounded_is_named_with_what_would_work(make: object, like: str, message: str) -> None:
    case = CASES[like]
    module = make()
    plan = case.bind("qat(u8s8)", module, rows=32)
    with pytest.raises(UnsupportedLayerError, match=message):
        FakeQuantiser(plan, module)


@pytest.mark.parametrize("text", ["qat", "prune(0.5)+qat", "qat(u8s8,torso.0=float)"])
def test_the_scheme_parses_prints_and_makes_the_int8_graph(text: str) -> None:
    assert str(parse_scheme(text)) == text and make_compressor(text).scheme == text
    case, module = made("relu-mlp")
    plans = case.bind(text, module), rounded_plan(case, text.replace("qat", "int8"), module)
    ours, theirs = (plan.refresh(module, version=1) for plan in plans)
    assert ours.scheme == text and ours.model == theirs.model


@pytest.mark.parametrize("scheme", ["fp32", "int4", "distill(16x2)+int8", "lowrank(0.5)+int8"])
def test_other_plans_are_refused(scheme: str) -> None:
    case = CASES["tanh-mlp"]
    module = case.make()
    compressor = make_compressor(scheme, student_factory=student, divergence=divergence)
    plan = compressor.bind(module, case.examples(), case.inputs(64), output_names=case.outputs)
    with pytest.raises(SchemeError, match="quantisation-aware training"):
        FakeQuantiser(plan, module)


def test_an_uncalibrated_plan_is_refused() -> None:
    case = CASES["relu-mlp"]
    module = case.make()
    quantiser = FakeQuantiser(case.bind("qat(u8s8)", module, rows=0), module)
    with pytest.raises(CalibrationError, match="no ranges yet"):
        quantiser(module, *_tensors(case.inputs(2)))
