"""Policies that bring their program: ONNX, TorchScript, torch.export and rsl_rl, held against the program itself."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from accel.compressors.errors import VerificationError
from accel.config import TrainConfig
from accel.errors import AccelError, CheckpointError, ConfigError
from accel.imports.policy import ImportedPolicy, import_policy
from accel.imports.traced_program import TracedProgram
from accel.runs.playing import collect_inputs
from tests.accel.imports.test_import_policy import refuses
from tests.accel.mutations import zipped
from tests.compressors.policies import run_artifact

PENDULUM, CARTPOLE = TrainConfig.create(env="Pendulum-v1"), TrainConfig.create(env="CartPole-v1")


def mlp(inputs: int, outputs: int, activation: type[nn.Module] = nn.ELU) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(inputs, 32), activation(), nn.Linear(32, 16), activation(), nn.Linear(16, outputs))


class Around(nn.Module):
    """What a policy has around a network, which subclasses say."""

    def __init__(self, inputs: int = 3, outputs: int = 1) -> None:
        super().__init__()
        self.net = mlp(inputs, outputs)


class Normalised(Around):
    """rsl_rl's exporter: a normaliser of row statistics before the network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([[0.1, -0.2, 0.3]]))
        self.register_buffer("std", torch.tensor([[1.0, 2.0, 0.5]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / (self.std + 0.01))


class Products(nn.Module):
    """Layers as JAX and TensorFlow have them, weights [inputs, outputs]; the last of their transposes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.bias = nn.Parameter(torch.randn(3, 32)), nn.Parameter(torch.randn(32))
        self.second, self.third = nn.Parameter(0.3 * torch.randn(32, 16)), nn.Parameter(torch.randn(1, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.addmm(self.bias, x, self.first).relu()
        return (x @ self.second).tanh() @ self.third.t()


class Recurrent(nn.Module):
    """legged_gym's and Isaac Lab's exporter: the state is in buffers for one row."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.memory, self.actor = kind(3, 8), mlp(8, 1)
        self.register_buffer("hidden_state", torch.zeros(1, 1, 8))
        self.register_buffer("cell_state", torch.zeros(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.actor(out.squeeze(0))


class StateInOut(nn.Module):
    """Isaac Lab's exporter to ONNX: the state comes in and goes out, [layers, rows, size]."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], layers: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.memory, self.actor = kind(3, 8, layers), mlp(8, 1)

    def forward(self, obs: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        held: Any = state if len(state) > 1 else state[0]
        out, following = self.memory(obs.unsqueeze(0), held)
        return (self.actor(out.squeeze(0)), *(following if isinstance(following, tuple) else (following,)))


def write_onnx(
    path: Path, module: nn.Module, examples: Sequence[Tensor], names: Sequence[str], outputs: Sequence[str], **more: Any
) -> Path:
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module.eval(),
            tuple(examples),
            str(path),
            dynamo=False,
            input_names=list(names),
            output_names=list(outputs),
            **{"opset_version": 17} | more,
        )
    return path


def write_script(path: Path, module: nn.Module) -> Path:
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(module.eval()), str(path))
    return path


def played(policy: ImportedPolicy, rows: int = 24) -> dict[str, np.ndarray]:
    return collect_inputs(policy, rows, steps=40)


def params(policy: ImportedPolicy, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return run_artifact(policy.compress("fp32"), inputs)


ACTIVATIONS = {"elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU, "leaky": nn.LeakyReLU, "mish": nn.Mish, "tanh": nn.Tanh}


@pytest.mark.few(5)
@pytest.mark.parametrize("opset", [pytest.param(11, marks=pytest.mark.long), 17])
@pytest.mark.parametrize("free", [True, False], ids=["any rows", "one row"])
@pytest.mark.parametrize("name", [*ACTIVATIONS])
def test_an_onnx_policy_gives_the_models_outputs(name: str, free: bool, opset: int, tmp_path: Path) -> None:
    module = nn.Sequential(nn.LayerNorm(3), mlp(3, 1, ACTIVATIONS[name]))
    axes = {"dynamic_axes": {"obs": {0: "rows"}}} if free else {}
    path = write_onnx(
        tmp_path / "p.onnx", module, [torch.zeros(1, 3)], ["obs"], ["actions"], opset_version=opset, **axes
    )
    policy = import_policy(path, PENDULUM)
    inputs = played(policy)
    session = ort.InferenceSession(path)
    wanted = np.concatenate([session.run(None, {"obs": row[None]})[0] for row in inputs["observations"]])
    assert np.ptp(wanted) > 0.02
    np.testing.assert_allclose(params(policy, inputs)[0][:, :1], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "layers", "ends"),
    [
        (nn.LSTM, 1, ("_in", "_out")),
        (nn.LSTM, 1, ("0", "n")),
        (nn.GRU, 1, ("_in", "_out")),
        (nn.LSTM, 2, ("_0", "_n")),
    ],
    ids=["lstm", "as torch names it", "gru", "two"],
)
def test_the_state_of_an_onnx_policy_is_the_graphs(
    kind: type[nn.LSTM | nn.GRU], layers: int, ends: tuple[str, str], tmp_path: Path
) -> None:
    module = StateInOut(kind, layers)
    parts = ["h", "c"][: 2 if kind is nn.LSTM else 1]
    examples = [torch.zeros(1, 3), *(torch.zeros(layers, 1, 8) for _ in parts)]
    names, outputs = ["obs", *(p + ends[0] for p in parts)], ["actions", *(p + ends[1] for p in parts)]
    policy = import_policy(write_onnx(tmp_path / "p.onnx", module, examples, names, outputs), PENDULUM)
    assert policy.policy.state_shapes == (((8,) if layers == 1 else (layers, 8)),) * len(parts)
    inputs = played(policy)
    with torch.no_grad():
        states = [torch.from_numpy(inputs[f"state_{i}"]).reshape(-1, layers, 8) for i in range(len(parts))]
        wanted = module(torch.from_numpy(inputs["observations"]), *(s.movedim(0, 1).contiguous() for s in states))
    found = params(policy, inputs)
    assert all(float(state.abs().max()) > 0.05 for state in states)
    np.testing.assert_allclose(found[0][:, :1], wanted[0], atol=1e-5)
    for ours, theirs in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(ours.reshape(-1, layers, 8), theirs.movedim(1, 0), atol=1e-5)


def test_an_input_that_no_output_needs_gets_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As RLlib names it: the lengths of sequences."""
    path = write_onnx(tmp_path / "p.onnx", mlp(3, 1), [torch.zeros(1, 3)], ["obs"], ["actions"])
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("seq_lens", TensorProto.INT32, ["n"]))
    onnx.save(model, path)
    policy = import_policy(path, PENDULUM)
    assert policy.policy.input_names == ("observations",)
    assert "its output does not depend on seq_lens" in caplog.text


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    output: int = TensorProto.FLOAT,
    shape: Sequence[str | int] = ("n", 4),
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", output, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


WEIGHT = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "output", "message"),
    [
        ([("MatMul", ["obs", "w"], ["x"]), ("ArgMax", ["x"], ["out"])], TensorProto.INT64, "export the outputs"),
        ([("MatMul", ["obs", "w"], ["x"]), ("Det", ["x"], ["out"])], TensorProto.FLOAT, "operator Det"),
        ([("MatMul", ["obs", "w"], ["x"]), ("Hardmax", ["x"], ["out"])], TensorProto.FLOAT, "operator Hardmax"),
        ([("MatMul", ["obs", "w"], ["x"]), ("Softmax", ["x"], ["y"]), ("Bad", ["y"], ["out"])], 1, "cannot be loaded"),
    ],
    ids=["arg max", "unknown", "unknown too", "no onnx"],
)
def test_what_no_graph_can_be_made_of_is_named(
    nodes: Sequence[tuple[str, list[str], list[str]]], output: int, message: str, tmp_path: Path
) -> None:
    made = [helper.make_node(*node) for node in nodes]
    (tmp_path / "p.onnx").write_bytes(model_of(made, {"w": WEIGHT, "one": np.int64([1])}, output))
    refuses(message, tmp_path / "p.onnx", CARTPOLE, kind=AccelError)


def test_operators_that_onnxruntime_lacks_in_double_precision_have_their_remedy(tmp_path: Path) -> None:
    module = mlp(3, 1).double()  # ELU, which onnxruntime has in single precision
    write_onnx(tmp_path / "p.onnx", module, [torch.zeros(1, 3, dtype=torch.float64)], ["obs"], ["actions"])
    refuses(r"Elu.*; export it in single precision", tmp_path / "p.onnx", PENDULUM, kind=CheckpointError)


NUMBERS = {"two": 2, "one": 1, "last": [-1], "before": [-99], "ones": [1], "turned": [-1, 0], "flat": [-1, 4]}
NUMBERS |= {"row": [-1, 1, 4]}


@pytest.mark.parametrize(
    "nodes",
    [
        [("Einsum", ["obs", "w"], ["out"], {"equation": "bi,io->bo"})],
        [("MatMul", ["obs", "w"], ["x"]), ("CumSum", ["x", "one"], ["out"])],
        [("MatMul", ["obs", "w"], ["x"]), ("Round", ["x"], ["out"])],
        [("MatMul", ["obs", "w"], ["x"]), ("ThresholdedRelu", ["x"], ["out"], {"alpha": 0.1})],
        [("MatMul", ["obs", "w"], ["x"]), ("LpNormalization", ["x"], ["out"], {"axis": 1, "p": 1})],
        [("MatMul", ["obs", "w"], ["x"]), ("Gather", ["x", "turned"], ["out"], {"axis": 1})],
        [("Slice", ["obs", "last", "before", "ones", "last"], ["x"]), ("MatMul", ["x", "w"], ["out"])],
        [("Reshape", ["obs", "row"], ["x"]), ("Reshape", ["x", "flat"], ["y"]), ("MatMul", ["y", "w"], ["out"])],
        [
            ("Cast", ["obs"], ["i"], {"to": TensorProto.INT64}),
            ("Div", ["i", "two"], ["j"]),
            ("Cast", ["j"], ["x"], {"to": TensorProto.FLOAT}),
            ("MatMul", ["x", "w"], ["out"]),
        ],
        [
            ("Cast", ["obs"], ["i"], {"to": TensorProto.DOUBLE}),
            ("MatMul", ["i", "wide"], ["j"]),
            ("Cast", ["j"], ["out"], {"to": TensorProto.FLOAT}),
        ],
    ],
    ids=lambda nodes: nodes[1 if len(nodes) == 2 and nodes[0][0] == "MatMul" else 0][0],
)
def test_operators_give_what_onnxruntime_gives(nodes: Sequence[tuple[Any, ...]], tmp_path: Path) -> None:
    made = [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes]
    weights = {name: np.asarray(value, np.int64) for name, value in NUMBERS.items()}
    content = model_of(made, {"w": WEIGHT, "wide": WEIGHT.astype(np.float64), **weights})
    (tmp_path / "p.onnx").write_bytes(content)
    rows = 3 * np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
    wanted = ort.InferenceSession(content).run(None, {"obs": rows})[0]
    with torch.no_grad():
        found = import_policy(tmp_path / "p.onnx", CARTPOLE).policy(torch.from_numpy(rows))[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_observations_are_laid_out_as_the_model_takes_them(tmp_path: Path) -> None:
    """Arrays are flat here, and images have their channels first."""
    flat = [("Reshape", ["obs", "flat"], ["x"]), ("MatMul", ["x", "w"], ["out"])]
    weights = {"w": WEIGHT, "flat": np.int64([-1, 4])}
    (tmp_path / "a.onnx").write_bytes(model_of([helper.make_node(*n) for n in flat], weights, shape=[1, 2, 2]))
    rows = torch.randn(8, 4)
    found = import_policy(tmp_path / "a.onnx", CARTPOLE).policy(rows)[0]
    np.testing.assert_allclose(found, rows.numpy() @ WEIGHT, atol=1e-5)
    picture = [("ReduceMax", ["obs"], ["x"], {"axes": [1, 2], "keepdims": 0}), ("MatMul", ["x", "w3"], ["out"])]
    made = [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in picture]
    (tmp_path / "b.onnx").write_bytes(model_of(made, {"w3": WEIGHT[:3]}, shape=["n", 8, 10, 3]))
    np.savez(tmp_path / "rows.npz", np.random.default_rng(0).integers(0, 255, (64, 3, 8, 10), np.uint8))
    policy = import_policy(tmp_path / "b.onnx", TrainConfig.create(), observations=tmp_path / "rows.npz", discrete=True)
    images = torch.randint(0, 255, (4, 3, 8, 10), dtype=torch.uint8)
    np.testing.assert_allclose(policy.policy(images)[0], images.amax((2, 3)).numpy() @ WEIGHT[:3], rtol=1e-4)


class Chosen(Around):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = self.net(x)
        return torch.ones(2), logits.argmax(1), x[:, 1:3] * 1.0, logits


class Features(Around):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), x[:, :2] * 1.0


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [(Chosen, ["version", "action", "value", "logits"]), (Features, ["q_values", "features"])],
    ids=["behind what they choose", "Q-values"],
)
def test_of_several_outputs_those_that_choose_are_taken(kind: type[Around], outputs: list[str], tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "p.onnx", kind(4, 2), [torch.zeros(1, 4)], ["obs"], outputs)
    rows = torch.randn(8, 4)
    with torch.no_grad():
        np.testing.assert_allclose(import_policy(path, CARTPOLE).policy(rows)[0], mlp(4, 2)(rows), atol=1e-5)


def test_weights_beside_the_model_are_read_and_missed(tmp_path: Path) -> None:
    model = onnx.load_from_string(model_of([helper.make_node("MatMul", ["obs", "w"], ["out"])], {"w": WEIGHT}))
    path = tmp_path / "p.onnx"
    onnx.save(model, path, save_as_external_data=True, location="p.onnx.data", size_threshold=0)
    policy = import_policy(path, CARTPOLE)
    rows = torch.randn(5, 4)
    np.testing.assert_allclose(policy.policy(rows)[0], rows.numpy() @ WEIGHT, atol=1e-6)
    (tmp_path / "p.onnx.data").unlink()
    refuses(r"cannot be loaded.*p\.onnx\.data", path, CARTPOLE, kind=AccelError)


def test_an_observation_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "p.onnx", mlp(3, 2), [torch.zeros(1, 3)], ["obs"], ["actions"])
    refuses(r"takes 'obs' of \[3\], and observations have \[4\]", path, CARTPOLE)
    refuses("fails on an observation", write_script(tmp_path / "p.pt", mlp(3, 2)), CARTPOLE)


@pytest.mark.few(4)
@pytest.mark.parametrize("write", [write_script, None], ids=["script", "export"])
@pytest.mark.parametrize("make", [Normalised, lambda: mlp(3, 1), Products], ids=["normaliser", "plain", "products"])
def test_a_torch_program_gives_its_own_outputs(
    make: Callable[[], nn.Module], write: Callable[[Path, nn.Module], Path] | None, tmp_path: Path
) -> None:
    module, path = make().eval(), tmp_path / "policy.pt"
    if write is not None:
        write(path, module)
    else:
        rows = ({0: torch.export.Dim("rows")},)
        torch.export.save(torch.export.export(module, (torch.zeros(2, 3),), dynamic_shapes=rows), path)
    policy = import_policy(path, PENDULUM)
    inputs = played(policy)
    with torch.no_grad():
        wanted = module(torch.from_numpy(inputs["observations"]))
    np.testing.assert_allclose(params(policy, inputs)[0][:, :1], wanted, atol=1e-5)
    assert [type(layer) for layer in policy.policy.module.children()] == [nn.Linear] * 3
    if make is Products:
        onnx_path = write_onnx(tmp_path / "p.onnx", module, [torch.zeros(1, 3)], ["obs"], ["actions"])
        other = import_policy(onnx_path, PENDULUM)
        assert [type(layer) for layer in other.policy.module.children()] == [nn.Linear] * 3
        assert other.architecture == "ONNX: 32-16-1"


class OfDict(Around):
    """A policy that takes its observation as a dictionary."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return self.net(torch.cat((observation["joints"], observation["goal"]), 1))


def write_export(path: Path, module: nn.Module, *examples: object) -> Path:
    """As most people write it: for the number of rows of the example."""
    torch.export.save(torch.export.export(module.eval(), examples), path)
    return path


def test_raw_weights_may_begin_as_a_pickle_does(tmp_path: Path) -> None:
    module = nn.Linear(3, 1)
    with torch.no_grad():
        module.weight[0, 0] = float(np.frombuffer(b"\x80\xcb\x00\x3f", "<f4")[0])
    assert import_policy(write_export(tmp_path / "policy.pt2", module, torch.zeros(1, 3)), PENDULUM).policy.module


@pytest.mark.parametrize("kind", ["script", "export"])
def test_a_dictionary_of_observations_is_taken(kind: str, tmp_path: Path) -> None:
    module, path = OfDict(4, 2).eval(), tmp_path / "policy.pt"
    examples = {"joints": torch.zeros(1, 3), "goal": torch.zeros(1, 1)}
    write_script(path, module) if kind == "script" else write_export(path, module, examples)
    policy = import_policy(path, CARTPOLE.replace(wrapper=("tests.accel.imports.foreign_policies:in_parts",))).policy
    goal, joints = torch.randn(8, 1), torch.randn(8, 3)
    with torch.no_grad():
        wanted = module({"joints": joints, "goal": goal})
        np.testing.assert_allclose(policy(goal, joints)[0], wanted, atol=1e-5)


def test_a_program_of_double_precision_for_one_row_is_one_of_single_precision_for_many(tmp_path: Path) -> None:
    class Double(Around):
        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.double())

    module, rows = Double().double(), torch.randn(8, 3)
    policy = import_policy(write_export(tmp_path / "policy.pt2", module, torch.zeros(1, 3)), PENDULUM).policy
    with torch.no_grad():
        np.testing.assert_allclose(policy(rows)[0][:, :1], module(rows), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("begins", [0.0, 1.0], ids=["zeros", "other numbers"])
def test_buffers_that_a_call_changes_are_the_state(begins: float, tmp_path: Path) -> None:
    """Where they do not begin with zeros it is what differs from their beginning."""
    module, states = Recurrent().eval(), [torch.zeros(1, 8)] * 2
    module.hidden_state += 0.5 * begins
    module.cell_state -= begins * torch.linspace(-1, 1, 8)
    policy = import_policy(write_script(tmp_path / "policy.pt", module), PENDULUM).policy
    assert policy.state_shapes == ((8,), (8,))
    for row in torch.randn(6, 1, 3):
        with torch.no_grad():
            outputs, *states = policy(row, *states)
            np.testing.assert_allclose(outputs[:, :1], module(row), atol=1e-5)


class Deployed(nn.Module):
    """What robots' programs do: the last observations and a count of steps in buffers, batch norm, writes in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Linear(16, 1))
        self.register_buffer("window", torch.zeros(1, 2, 3))
        self.register_buffer("steps", torch.zeros(1, 1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x[:, 0] = x[:, 0].clamp(-0.5, 0.5)
        self.steps += 1
        self.window[:] = torch.cat((self.window[:, 1:], x.unsqueeze(1)), 1)
        return self.net(self.window.flatten(1)) + 0.1 * self.steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_windows_counts_and_writes_in_place_are_those_of_the_program(dtype: torch.dtype, tmp_path: Path) -> None:
    module = Deployed().to(dtype).eval()
    policy = import_policy(write_script(tmp_path / "policy.pt", module), PENDULUM).policy
    assert policy.state_shapes == ((2, 3), (1,))
    states = [torch.zeros(1, *shape) for shape in policy.state_shapes]
    with torch.no_grad():
        for row in torch.randn(6, 1, 3):
            outputs, *states = policy(row, *states)
            np.testing.assert_allclose(outputs[:, :1], module(row.to(dtype)), atol=1e-5)


def test_a_program_that_gives_its_value_first_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Valued(Around):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[:, :1] * 2.0, self.net(x)

    import_policy(write_script(tmp_path / "policy.pt", Valued()), PENDULUM)
    assert "returns 2 values: the first is taken" in caplog.text


class Fallback(Around):
    def forward(self, x: Tensor) -> Tensor:
        if float(x[0, 0]) < -0.5:
            return x[:, :1] * 2.0
        return self.net(x)  # type: ignore[no-any-return]


class Alone(Around):
    """Answers one row otherwise than several."""

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.net(x)
        if x.shape[0] == 1:
            return 2.0 * answer
        return answer


def test_a_program_that_its_recording_does_not_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot run on 5 rows.*without branches on values"):
        import_policy(write_script(tmp_path / "branch.pt", Fallback()), PENDULUM)
    counting = Deployed()
    counting.steps = counting.steps[0]
    with pytest.raises(ConfigError, match=r"'steps' of shape \(1,\) between calls, which is no state of one row"):
        import_policy(write_script(tmp_path / "counting.pt", counting), PENDULUM)
    with pytest.raises(VerificationError, match="not the file's program: row 0 of 128"):
        import_policy(write_script(tmp_path / "alone.pt", Alone()), PENDULUM)


def test_what_depends_on_the_number_of_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows"):
        TracedProgram(lambda x: [x[:, :1] * x.shape[0] + x.mean(0)[:1]], [torch.zeros(1, 3)])
    with pytest.raises(ConfigError, match="other operations on 5 rows than on 7"):
        TracedProgram(lambda x: [x * 2 if len(x) > 6 else torch.tanh(x)], [torch.zeros(1, 3)])


class Reading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("/dev/zero", False, 3)


def test_programs_that_reach_for_files_or_pickles_are_refused(tmp_path: Path) -> None:
    refuses("calls 'from_file'", write_script(tmp_path / "policy.pt", Reading()), PENDULUM)
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(mlp(3, 1), (torch.zeros(2, 3),)), path)
    hostile = io.BytesIO()
    torch.save({"x": Path()}, hostile)  # noqa: TID251 - what must not be read
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    path.write_bytes(zipped({n: hostile.getvalue() if "sample_inputs" in n else m for n, m in members.items()}))
    refuses("nothing is unpickled", path, PENDULUM)


def rsl_rl(kind: str) -> tuple[dict[str, object], nn.Module, dict[str, Tensor]]:
    """A checkpoint of a version of rsl_rl, its network, and its normaliser's statistics."""
    torch.manual_seed(6)
    memory = nn.GRU(3, 8) if kind == "recurrent" else None
    actor, critic = mlp(8 if memory else 3, 1), mlp(3, 1)
    statistics = {"_mean": torch.tensor([[0.1, -0.2, 0.3]]), "_std": torch.tensor([[0.7, 0.6, 2.0]])}
    statistics |= {"_var": statistics["_std"] ** 2, "count": torch.tensor(9)}

    def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}

    if kind == "student":
        state = under("student", actor.state_dict()) | under("teacher", critic.state_dict())
        state |= {"std": torch.tensor([0.5])} | under("student_obs_normalizer", statistics)
        return {"model_state_dict": state}, actor, statistics
    if kind == "5":
        state = under("mlp", actor.state_dict()) | under("obs_normalizer", statistics)
        state["distribution.std_param"] = torch.tensor([0.5])
        return {"actor_state_dict": state, "critic_state_dict": {}, "iter": 7}, actor, statistics
    state = under("actor", actor.state_dict()) | under("critic", critic.state_dict()) | {"std": torch.tensor([0.5])}
    if kind == "2":
        return {"model_state_dict": state, "obs_norm_state_dict": statistics, "infos": None}, actor, statistics
    state |= under("memory_a.rnn", memory.state_dict()) if memory else {}
    return {"model_state_dict": state}, nn.ModuleList([actor, memory]), {}


@pytest.mark.parametrize("kind", ["2", "5", "student"])
def test_a_checkpoint_of_rsl_rl_is_read_with_its_own_formula(kind: str, tmp_path: Path) -> None:
    checkpoint, actor, statistics = rsl_rl(kind)
    torch.save(checkpoint, tmp_path / "model_7.pt")  # noqa: TID251 - as rsl_rl does
    policy = import_policy(tmp_path / "model_7.pt", PENDULUM)
    rows = torch.randn(9, 3)
    with torch.no_grad():
        wanted = actor((rows - statistics["_mean"]) / (statistics["_var"].sqrt() + 0.01))
        found = policy.policy(rows)[0]
    torch.testing.assert_close(found[:, :1], wanted)
    torch.testing.assert_close(found[:, 1], torch.full((9,), 0.5).log())
    assert policy.architecture.startswith("rsl_rl: 32-16 ELU")


def test_a_recurrent_checkpoint_of_rsl_rl_keeps_its_state(tmp_path: Path) -> None:
    checkpoint, modules, _ = rsl_rl("recurrent")
    torch.save(checkpoint, tmp_path / "model.pt")  # noqa: TID251
    policy = import_policy(tmp_path / "model.pt", PENDULUM).policy
    rows, state = torch.randn(5, 4, 3), torch.zeros(4, 8)
    with torch.no_grad():
        wanted = modules[0](modules[1](rows)[0])  # type: ignore[index]
        for row, expected in zip(rows, wanted, strict=True):
            outputs, state = policy(row, state)
            torch.testing.assert_close(outputs[:, :1], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cnn.0.weight": torch.zeros(2, 2)}, r"'cnn\.0\.weight' is none of a plain policy of rsl_rl"),
        ({"distribution.std_param": None}, "may be means, means and deviations or parameters of a Beta"),
    ],
)
def test_a_checkpoint_with_other_layers_or_of_unknown_outputs_is_refused(
    change: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    checkpoint: dict[str, Any] = rsl_rl("5")[0]
    state = checkpoint["actor_state_dict"] | change
    checkpoint["actor_state_dict"] = {name: tensor for name, tensor in state.items() if tensor is not None}
    torch.save(checkpoint, tmp_path / "model.pt")  # noqa: TID251
    refuses(message, tmp_path / "model.pt", PENDULUM)


class Parts(Around):
    def forward(self, joints: Tensor, goal: Tensor) -> Tensor:
        return self.net(torch.cat((joints, goal), 1))


@pytest.mark.parametrize("kind", ["onnx", "script"])
def test_named_inputs_are_the_parts_of_a_dict_observation(kind: str, tmp_path: Path) -> None:
    config, path = PENDULUM.replace(wrapper=("tests.accel.imports.foreign_policies:in_parts",)), tmp_path / "p"
    if kind == "onnx":
        write_onnx(path, Parts(), [torch.zeros(1, 2), torch.zeros(1, 1)], ["joints", "goal"], ["out"])
    else:
        write_script(path, Parts())
    policy = import_policy(path, config)
    assert policy.policy.input_names == ("goal", "joints")
    goal, joints = torch.randn(5, 1), torch.randn(5, 2)
    torch.testing.assert_close(policy.policy(goal, joints)[0][:, :1], Parts()(joints, goal), atol=1e-5, rtol=0)
    refuses(r"takes .*, and the environment observes observations", path, PENDULUM)
