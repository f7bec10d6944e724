"""Small layers that read observations stay in single precision, unless a scheme says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels
from accel.compressors.errors import SchemeError
from accel.compressors.int8.input_layers import SMALL_SHARE, SMALL_WEIGHTS, small_input_layers
from accel.compressors.pipeline import make_compressor
from tests.compressors.policies import CASES, bound, made, randomise, run_artifact


class TwoInputs(nn.Module):
    """A few numbers and many, each with a layer of its own, summed before the rest."""

    def __init__(self, many: int, width: int = 32) -> None:
        super().__init__()
        self.few, self.many = nn.Linear(4, width), nn.Linear(many, width)
        self.torso, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, observations: Tensor, further: Tensor) -> Tensor:
        return self.head(torch.tanh(self.torso(torch.tanh(self.few(observations) + self.many(further)))))


def _layers(module: nn.Module, examples: Mapping[str, Tensor]) -> frozenset[str]:
    plan = make_compressor("int8").bind(module, examples, output_names=("params",))
    found = small_input_layers(plan.graph)
    assert found.isdisjoint(layer.name for layer in plan.encoder.layers)
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tanh-mlp", {"torso.0"}),
        ("deep-relu-mlp", {"torso.0"}),
        ("nature-cnn", set()),  # pixels are exact as codes
        ("resnet", set()),
        ("lstm", {"torso.0"}),
        ("lstm-cell", {"torso.0"}),
    ],
)
def test_what_reads_floats_of_observations_is_found(name: str, wanted: set[str]) -> None:
    plan = CASES[name].bind("int8", CASES[name].make())
    assert small_input_layers(plan.graph) == wanted


def test_every_input_counts_and_large_layers_do_not() -> None:
    width, most = 32, SMALL_WEIGHTS // 32
    for many, wanted in ((most, {"few", "many"}), (most + 1, {"few"})):
        examples = {"observations": torch.zeros(1, 4), "further": torch.zeros(1, many)}
        assert _layers(randomise(TwoInputs(many, width), seed=0), examples) == wanted
    wide = nn.Sequential(nn.Linear(40, 1024), nn.ReLU(), *(nn.Linear(1024, 1024) for _ in range(4)))
    assert 40 * 1024 > SMALL_WEIGHTS and 40 < SMALL_SHARE * 4 * 1024
    assert _layers(randomise(wide, seed=0), {"observations": torch.zeros(1, 40)}) == {"0"}


def test_a_policy_of_one_layer_is_quantised() -> None:
    module = randomise(nn.Sequential(nn.Linear(6, 3)), seed=0)
    plan = make_compressor("int8").bind(module, {"observations": torch.zeros(1, 6)}, output_names=("params",))
    assert not small_input_layers(plan.graph)
    assert [layer.name for layer in plan.encoder.layers] == ["0"]


def test_a_core_that_reads_observations_is_quantised() -> None:
    """A product of the state has the same name."""

    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core, self.head = nn.LSTMCell(5, 16), nn.Linear(16, 3)

        def forward(self, observations: Tensor, state_0: Tensor, state_1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h, c = self.core(observations, (state_0, state_1))
            return self.head(h), h, c

    examples = {"observations": torch.zeros(1, 5), "state_0": torch.zeros(1, 16), "state_1": torch.zeros(1, 16)}
    names = ("params", "next_state_0", "next_state_1")
    plan = make_compressor("int8").bind(randomise(Core(), seed=0), examples, output_names=names)
    assert not small_input_layers(plan.graph)
    assert [layer.name for layer in plan.encoder.layers] == ["core", "core", "head"]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ["tanh-mlp", "deep-relu-mlp", "lstm"])
@pytest.mark.parametrize("method", ["int8", "int8(w3)", "prune(0.5)+int8", "qat"])
def test_the_default_is_that_layer_in_floats(method: str, name: str) -> None:
    case = CASES[name]
    module, inputs = randomise(case.make(), seed=2), case.inputs(16, seed=5)

    def artifact(option: str):
        head, bracket, rest = method.rpartition("+")[2].partition("(")
        before = method[: len(method) - len(head + bracket + rest)]
        options = ",".join(filter(None, (rest.rstrip(")"), option)))
        scheme = f"{before}{head}({options})" if options else method
        return case.bind(scheme, module).refresh(module, 1)

    default, codes, chosen = artifact(""), artifact("x8"), artifact("x8,torso.0=float")
    assert float_kernels(default).total() == 1 and not float_kernels(codes)
    assert integer_kernels(codes).total() == integer_kernels(default).total() + 1
    for found, wanted in zip(run_artifact(default, inputs), run_artifact(chosen, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_scheme_can_quantise_one_such_layer() -> None:
    case, module = made("tanh-mlp", seed=2)
    named, codes = (case.bind(text, module).refresh(module, 1) for text in ("int8(torso.0=int8)", "int8(x8)"))
    assert named.model == codes.model


@pytest.mark.few(8)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("variant", ["u8s8", "s8s8", "reduce_range"])
def test_observations_have_their_own_width(variant: str, bits: int) -> None:
    """By definition: q = clip(round(x / s) + z) over the 2^bits codes, also far outside the range that was measured."""
    case, module, plan = bound("relu-mlp", f"int8({variant},x{bits})", seed=3)
    assert plan.scheme == f"int8({variant},x{bits})"
    model = onnx.load_from_string(plan.refresh(module, version=1).model)
    (first,) = (node for node in model.graph.node if node.op_type == "QuantizeLinear")
    floats = next(node for node in model.graph.node if node.output[0] == first.input[0]).input[0]
    kind = onnx.TensorProto.INT8 if variant == "s8s8" else onnx.TensorProto.UINT8
    model.graph.output.append(onnx.helper.make_tensor_value_info(first.output[0], kind, None))
    model.graph.output.append(onnx.helper.make_tensor_value_info(floats, onnx.TensorProto.FLOAT, None))
    inputs = case.inputs(64, seed=3)
    inputs["observations"][::4] *= 100.0
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    codes, values = session.run([first.output[0], floats], inputs)
    scale, zero = plan.encoder.activation(plan.encoder.layers[0].activation)
    least = -(2 ** (bits - 1)) if variant == "s8s8" else 0
    greatest = least + 2**bits - 1
    np.testing.assert_array_equal(codes, np.clip(np.rint(values / scale) + zero, least, greatest))
    assert (codes.min(), codes.max()) == (least, greatest)
    assert len(np.unique(codes)) > 2 ** (bits - 1)
    others = [plan.encoder.codes_of(layer.activation).levels for layer in plan.encoder.layers]
    assert others == [2**bits - 1, *[255] * (len(others) - 1)], "hidden activations keep 8 bits"


@pytest.mark.parametrize("text", ["int8(x4)", "qat(w3,x4)"])
def test_a_width_that_no_layer_reads_is_refused(text: str) -> None:
    for name, chosen in (("nature-cnn", text), ("tanh-mlp", f"{text[:-1]},torso.0=float)")):
        with pytest.raises(
            SchemeError, match=r"no integer layer of this policy reads floats of observations alone.*omit x4"
        ):
            CASES[name].bind(chosen, CASES[name].make())


class Gaussian(nn.Module):
    """Means of a linear layer, and a log deviation for each that is a parameter: rows of zeros in the exported head."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Linear(5, 3), nn.Parameter(torch.tensor([-0.43, 0.2, -2.0]))

    def forward(self, observations: Tensor) -> Tensor:
        means = self.mean(torch.clamp(observations, -10.0, 10.0))
        return torch.cat([means, self.log_std.expand_as(means)], 1)


@pytest.mark.parametrize("options", ["x8", "x2", "w2,x4"])
def test_a_parameter_merged_into_a_head_keeps_its_value(options: str) -> None:
    module, observations = randomise(Gaussian(), seed=0), 3.0 * torch.randn(64, 5)
    module.log_std.data = torch.tensor([-0.43, 0.2, -2.0])
    inputs = {"observations": observations.numpy()}
    plan = make_compressor(f"int8({options})").bind(
        module, {"observations": observations}, inputs, output_names=("params",)
    )
    params = run_artifact(plan.refresh(module, 1), inputs)[0]
    np.testing.assert_allclose(params[:, 3:], np.tile([-0.43, 0.2, -2.0], (64, 1)), atol=1e-6)
    with torch.no_grad():
        module.mean.weight.zero_()
    means = run_artifact(plan.refresh(module, 2), inputs)[0][:, :3]
    wanted = np.tile(module.mean.bias.detach().numpy(), (64, 1))
    np.testing.assert_allclose(means, wanted, atol=1e-6, err_msg="a head of zeros is its bias")
