"""The acting module exported to ONNX gives in onnxruntime what it gives in torch, state and normaliser included."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import PolicyNetwork, build_network
from accel.networks.policy import ActingModule

BOX = ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3)
DISCRETE = ActionSpec("categorical", (6,))
VECTOR = EnvSpec((5,), "float32", BOX)
IMAGE = EnvSpec((4, 40, 44), "uint8", DISCRETE)
NETWORKS = [
    ("mlp:16x2", VECTOR),
    ("mlp:16x2", EnvSpec((5,), "float32", ActionSpec("multi_categorical", (2, 3)))),
    ("mlp:16x2+lstm:8", VECTOR),
    ("mlp:16x2+transformer:8x2", VECTOR),
    ("nature-cnn:0.25", IMAGE),
    ("nature-cnn:0.25+lstm:8", IMAGE),
    ("impala-resnet:0.25", IMAGE),
]


def _network(text: str, spec: EnvSpec) -> PolicyNetwork:
    network = build_network(text, spec, normalise_observations=spec.observation_dtype == "float32", seed=0)
    if network.normaliser is not None:
        network.normaliser.update(torch.randn(50, *spec.observation_shape) * 3.0 + 2.0)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    return network


def _export(module: ActingModule, spec: EnvSpec) -> onnx.ModelProto:
    """With a dynamic batch."""
    example = torch.zeros(2, *spec.observation_shape, dtype=getattr(torch, spec.observation_dtype))
    state = tuple(torch.zeros(2, *shape) for shape in module.state_shapes)
    names = [*module.input_names, *module.output_names]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of itself, and of tracing nn.LSTM's own checks
        torch.onnx.export(
            module, (example, *state), buffer, dynamo=False, dynamic_axes={name: {0: "batch"} for name in names},
            input_names=list(module.input_names), output_names=list(module.output_names),
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())


@pytest.mark.parametrize(("text", "spec"), NETWORKS, ids=[f"{t}-{s.action.kind}" for t, s in NETWORKS])
def test_onnxruntime_acts_as_torch_does_over_several_steps(text: str, spec: EnvSpec) -> None:
    module = _network(text, spec).acting_module()
    session = onnxruntime.InferenceSession(
        _export(module, spec).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert [i.name for i in session.get_inputs()] == list(module.input_names)
    assert [o.name for o in session.get_outputs()] == list(module.output_names)
    rng = np.random.default_rng(0)
    state = [np.zeros((3, *shape), np.float32) for shape in module.state_shapes]
    for _ in range(3):
        observations = rng.uniform(0, 255, (3, *spec.observation_shape)).astype(spec.observation_dtype)
        arrays = [observations, *state]
        with torch.no_grad():
            expected = module(*(torch.from_numpy(a) for a in arrays))
        outputs = session.run(None, dict(zip(module.input_names, arrays, strict=True)))
        for ours, theirs in zip(expected, outputs, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-5)
        state = outputs[1:]


def test_normaliser_constants_are_initializers_that_can_be_replaced() -> None:
    network = _network("mlp:16x2", VECTOR)
    module = network.acting_module()
    model = _export(module, VECTOR)
    network.normaliser.update(torch.randn(50, 5) - 7.0)
    for initializer in model.graph.initializer:
        if initializer.name in ("normaliser.mean", "normaliser.rstd"):
            value = network.state_dict()[initializer.name]
            initializer.CopyFrom(onnx.numpy_helper.from_array(value.numpy(), initializer.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    observations = torch.randn(4, 5) - 3.0
    with torch.no_grad():
        (expected,) = module(observations)
    np.testing.assert_allclose(session.run(None, {"observations": observations.numpy()})[0], expected, atol=1e-5)
    assert [node.op_type for node in model.graph.node if node.op_type != "Constant"][:3] == ["Sub", "Mul", "Clip"]


def test_graphs_hold_the_policy_alone_in_few_nodes() -> None:
    operators = {text: [n.op_type for n in _export(_network(text, spec).acting_module(), spec).graph.node]
                 for text, spec in NETWORKS if spec.action is not NETWORKS[1][1].action}  # fmt: skip
    computing = {text: [op for op in found if op != "Constant"] for text, found in operators.items()}
    mlp = ["Sub", "Mul", "Clip", "Gemm", "Tanh", "Gemm", "Tanh", "Gemm", "Shape", "Expand", "Concat"]
    assert computing["mlp:16x2"] == mlp
    assert computing["mlp:16x2+lstm:8"].count("LSTM") == 1
    assert computing["nature-cnn:0.25"][:3] == ["Cast", "Mul", "Conv"]
    assert computing["nature-cnn:0.25"].count("Gemm") == 2
    assert computing["impala-resnet:0.25"].count("Conv") == 15


def test_uint8_images_enter_the_graph_as_they_are() -> None:
    graph = _export(_network("nature-cnn:0.25", IMAGE).acting_module(), IMAGE).graph
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
