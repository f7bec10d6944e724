"""Compiled kernels: onnxruntime's answers to the bit where products are of integers; anything else stays with it."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.compressors.cpu import ARM, VNNI, cpu_features
from accel.compressors.kernels import library
from accel.compressors.kernels.chain import make_chain
from accel.compressors.kernels.graph import read_graph
from accel.compressors.kernels.library import kernels_here, why_none
from accel.compressors.runtime import PolicySession
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import build_network
from tests.compressors.emulated import CPUS, Emulator, every_kernels, kernels_of, needs_emulator
from tests.compressors.policies import CASES, MLP, Case, bound, randomise

Floats = NDArray[np.float32]

EVERY = every_kernels()
CHAINS = ("tanh-mlp", "relu-mlp", "deep-relu-mlp")
# exact on every CPU
INT8 = "int8(reduce_range)"
CODES = "int8(reduce_range,x8)"  # from the observations on


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "elu": nn.ELU, "elu-0.7": partial(nn.ELU, 0.7),
    "silu": nn.SiLU, "gelu": nn.GELU, "gelu-tanh": partial(nn.GELU, "tanh"), "leaky": nn.LeakyReLU,
    "leaky-0.2": partial(nn.LeakyReLU, 0.2), "hardtanh": nn.Hardtanh, "relu6": nn.ReLU6, "softplus": nn.Softplus,
}  # fmt: skip


class Wired(nn.Module):
    """Linear layers with a sum, a product, both halves of a value, values side by side, and norms between them."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.a, self.b, self.c = nn.Linear(11, 37), nn.Linear(37, 37), nn.Linear(37, 74), nn.Linear(85, 37)
        self.norms = nn.ModuleList(nn.LayerNorm(37) for _ in range(2))
        self.head = nn.Linear(37, 6)

    def forward(self, observations: Tensor) -> Tensor:
        h = F.silu(self.norms[0](self.i(observations)))
        h = h + self.a(F.elu(self.a(h)))
        gated = F.glu(self.b(h))
        x = self.c(torch.cat([observations, gated * torch.tanh(self.i(observations)), h], -1))
        return self.head(h + F.gelu(self.norms[1](x)))


class ResidualMLP(nn.Module):
    """x + f(x) between integer layers: a sum of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.a, self.b, self.head = nn.Linear(11, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 6)

    def forward(self, observations: Tensor) -> Tensor:
        h = F.silu(self.i(observations))
        return self.head(h + self.b(F.silu(self.a(h))))


class Scaled(nn.Module):
    """Parts of values, numbers that are in the graph, and actions scaled to their bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.head = nn.Linear(11, 32), nn.Linear(20, 6)
        self.scale = nn.Buffer(torch.linspace(0.5, 2.0, 6))
        self.middle = nn.Buffer(torch.linspace(-1.0, 1.0, 6)[None])

    def forward(self, observations: Tensor) -> Tensor:
        h = torch.relu(self.i(observations))
        gate = torch.sigmoid(0.5 * h[:, :20])
        h = (1.0 - gate) * h[:, 12:] / 3.0
        return torch.tanh(self.head(h)) * self.scale + self.middle


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(MLP, activation) for name, activation in ACTIVATIONS.items()},
    "norm": partial(MLP, lambda: nn.Sequential(nn.LayerNorm(32), nn.ELU())),
    "wired": Wired,
    "residual": ResidualMLP,
    "scaled": Scaled,
}


def recurrent(core: str) -> nn.Module:
    spec = EnvSpec((11,), "float32", ActionSpec("categorical", (6,)))
    return build_network(f"mlp:32x1+{core}:24", spec, normalise_observations=True).acting_module()


class Convolved(nn.Module):
    """Windows that are no squares, and channels that fill no vector."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, (3, 2), stride=(2, 1)), nn.Conv2d(5, 33, 2)
        self.hidden, self.head = nn.Linear(33 * 5 * 9, 9), nn.Linear(9, 3)

    def forward(self, observations: Tensor) -> Tensor:
        x = torch.relu(self.b(torch.relu(self.a(observations.float() / 255.0))))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


CONVOLVED = {"convolved": Case(Convolved, {"observations": (3, 13, 11)}), "nature-cnn": CASES["nature-cnn"]}

RECURRENT = {
    core: Case(
        partial(recurrent, core),
        {"observations": (11,), **dict.fromkeys(states, (24,))},
        ("params", *(f"next_{state}" for state in states)),
    )
    for core, states in {"lstm": ("state_0", "state_1"), "gru": ("state_0",)}.items()
} | {"h, c of nn.LSTM": CASES["lstm"]}


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if not kernels_here():
        pytest.skip(f"no kernels: {why_none()}")


@functools.cache
def artifact_of(case: str, scheme: str, seed: int = 0) -> CompressedPolicy:
    kind = {**CASES, **CONVOLVED}.get(case) or Case(NETWORKS[case], {"observations": (11,)})
    module = randomise(kind.make(), seed)
    return kind.bind(scheme, module).refresh(module, version=1)


def runs(artifact: CompressedPolicy, kernels: library.Kernels | None = None) -> bool:
    return not isinstance(make_chain(artifact, kernels), str)


def on_onnxruntime(artifact: CompressedPolicy, *inputs: Floats) -> Floats:
    """The outputs side by side."""
    session = PolicySession(artifact, batch=len(inputs[0]), runtime="onnxruntime")
    assert session.runtime == "onnxruntime"
    for array, values in zip(session.inputs.values(), inputs, strict=True):
        array[...] = values
    session.run()
    return np.concatenate([*session.outputs.values()], axis=1, dtype=np.float32)


def on_kernels(artifact: CompressedPolicy, *inputs: Floats, suffix: str) -> Floats:
    """The outputs side by side."""
    kernel = make_chain(artifact, kernels_of(suffix))
    outputs = [np.full(spec.with_batch(len(inputs[0])), 7.0, np.float32) for spec in artifact.outputs]
    kernel.bind([*inputs, *outputs])()
    return np.concatenate(outputs, axis=1)


def assert_agree(artifact: CompressedPolicy, found: Floats, *inputs: Floats) -> None:
    """Equal but for rounding: of a few codes by one where these are made of sums of floats, or of tanh."""
    wanted = on_onnxruntime(artifact, *inputs)
    if "int8" in artifact.scheme:
        assert np.isclose(found, wanted, rtol=1e-5, atol=1e-5).mean() > 0.8
        np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.05)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.few(92)
@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize(
    ("case", "scheme"),
    [
        *itertools.product(CHAINS, ["fp32", "fp16", INT8, "int8(reduce_range,x4)"]),
        *itertools.product(NETWORKS, ["fp32", INT8]),
    ],
)
def test_a_chain_computes_what_onnxruntime_does(case: str, scheme: str, suffix: str) -> None:
    artifact = artifact_of(case, scheme)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 20):
        x = np.random.default_rng(rows).standard_normal((rows, 11), np.float32)
        assert_agree(artifact, on_kernels(artifact, x, suffix=suffix), x)


@pytest.mark.slow
@pytest.mark.few(26)
@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("scheme", ["fp32", "fp16", INT8, CODES])
@pytest.mark.parametrize("core", RECURRENT)
def test_recurrent_steps_compute_what_onnxruntime_does(core: str, scheme: str, suffix: str) -> None:
    case = RECURRENT[core]
    module = randomise(case.make(), 0)
    artifact = case.bind(scheme, module).refresh(module, version=1)
    for rows in (1, 3, 8, 20):
        inputs = [array.astype(np.float32) for array in case.inputs(rows, seed=rows).values()]
        assert_agree(artifact, on_kernels(artifact, *inputs, suffix=suffix), *inputs)


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("case", CONVOLVED)
def test_convolutions_agree_to_the_bit(case: str, suffix: str) -> None:
    artifact = artifact_of(case, INT8)
    for rows in (1, 2, 5):
        x = CONVOLVED[case].inputs(rows, seed=rows)["observations"]
        found = on_kernels(artifact, x, suffix=suffix)
        np.testing.assert_array_equal(found, on_onnxruntime(artifact, x))
        assert len({row.tobytes() for row in found}) == rows


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("scheme", ["fp32", INT8, CODES])
@pytest.mark.parametrize("case", CHAINS)
def test_numbers_that_are_not_finite_or_huge_become_what_onnxruntime_makes_of_them(
    case: str, scheme: str, suffix: str
) -> None:
    artifact = artifact_of(case, scheme)
    x = np.zeros((6, 11), np.float32)
    x[0, 3], x[1, 2], x[2, 1], x[3], x[4], x[5] = np.nan, np.inf, -np.inf, 1e30, -1e30, np.nan
    found, wanted = on_kernels(artifact, x, suffix=suffix), on_onnxruntime(artifact, x)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_allclose(found, wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_accurate_to_a_millionth(name: str, suffix: str) -> None:
    function, layer = ACTIVATIONS[name](), nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(8))
        layer.bias.zero_()
    policy = nn.Sequential(layer, function)
    artifact = Case(nn.Module, {"observations": (8,)}).bind("fp32", policy).refresh(policy, 1)
    powers = 10.0 ** np.linspace(-30, 30, 2000)
    x = np.concatenate([np.linspace(-100, 100, 20000), np.linspace(-6, 6, 20000), powers, -powers]).astype(np.float32)
    found = on_kernels(artifact, x.reshape(-1, 8), suffix=suffix).reshape(-1)
    wanted = function(torch.from_numpy(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=1e-6)
    # near zero, where x is all that counts, the error is relative
    small = np.abs(x) < 1e-3
    np.testing.assert_allclose(found[small], wanted[small], rtol=1e-6, atol=1e-36)
    assert np.isnan(on_kernels(artifact, np.full((1, 8), np.nan, np.float32), suffix=suffix)).all()


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("scheme", ["int8(s8s8)", "int8(s8s8,x8)"])
def test_signed_codes_and_weights_of_eight_bits_run_where_they_are_summed_exactly(scheme: str, suffix: str) -> None:
    artifact = artifact_of("relu-mlp", scheme)
    if kernels_of(suffix).greatest < 127:
        assert not runs(artifact, kernels_of(suffix))
        return
    x = np.random.default_rng(0).standard_normal((20, 11), np.float32)
    assert_agree(artifact, on_kernels(artifact, x, suffix=suffix), x)


@st.composite
def integer_chains(draw: st.DrawFn) -> CompressedPolicy:
    """Layers of integer products in every form that onnxruntime has: codes or floats made, one scale or several."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 70), min_size=2, max_size=4))
    tensors = {"least": np.float32(-3), "greatest": np.float32(3), "s0": np.float32(0.05), "z0": np.uint8(60)}
    nodes = [
        helper.make_node("Clip", ["x", "least", "greatest"], ["clipped"]),
        helper.make_node("QuantizeLinear", ["clipped", "s0", "z0"], ["c0"]),
    ]
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        is_last, transposed = i == len(sizes) - 2, draw(st.booleans())
        scales = (n,) if draw(st.booleans()) else ()
        tensors |= {
            f"w{i}": rng.integers(-64, 65, (n, k) if transposed else (k, n)).astype(np.int8),
            f"ws{i}": rng.uniform(1e-3, 1e-2, scales).astype(np.float32),
            f"wz{i}": np.zeros(scales, np.int8),
            f"b{i}": rng.integers(-3000, 3000, n).astype(np.int32),
            f"s{i + 1}": np.float32(rng.uniform(0.005, 0.1)),
            f"z{i + 1}": np.uint8(rng.integers(0, 256)),
        }
        bias = f"b{i}" if draw(st.booleans()) else ""
        inputs = [f"c{i}", f"s{i}", f"z{i}", f"w{i}", f"ws{i}", f"wz{i}", bias]
        code = [f"s{i + 1}", f"z{i + 1}"]
        if is_last:
            made, following = "y", []
        elif draw(st.booleans()):  # codes at once
            inputs, made, following = [*inputs, *code], f"c{i + 1}", []
        else:
            made = f"f{i}"
            following = [
                helper.make_node("Relu", [made], [f"r{i}"]),
                helper.make_node("QuantizeLinear", [f"r{i}", *code], [f"c{i + 1}"]),
            ]
        nodes += [helper.make_node("QGemm", inputs, [made], domain="com.microsoft", transB=int(transposed)), *following]
    return artifact_from(nodes, tensors, sizes[0], sizes[-1])


@st.composite
def programs(draw: st.DrawFn) -> CompressedPolicy:
    """Any values from any values before: products, norms, activations, sums, values side by side, parts of one."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    features = draw(st.integers(1, 40))
    values, nodes, tensors = [("x", features)], [], {}

    def add(operator: str, inputs: list[str], widths: list[int], **attributes: float) -> None:
        names = [f"v{len(values) + index}" for index in range(len(widths))]
        nodes.append(helper.make_node(operator, inputs, names, **attributes))
        values.extend(zip(names, widths, strict=True))

    def parameter(*shape: int) -> str:
        tensors[name := f"t{len(tensors)}"] = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
        return name

    def dense(name: str, width: int, outputs: int) -> None:
        add("Gemm", [name, parameter(outputs, width), parameter(outputs)], [outputs], transB=1)

    dense(*values[0], draw(st.integers(1, 40)))
    for _ in range(draw(st.integers(1, 12))):
        name, width = draw(st.sampled_from(values))
        others = [other for other, its in values if its == width]
        match draw(
            st.sampled_from(["dense", "norm", "activation", "Add", "Sub", "Mul", "number", "join", "cut", "slice"])
        ):
            case "dense":
                dense(name, width, draw(st.integers(1, 40)))
            case "norm":
                add("LayerNormalization", [name, parameter(width), parameter(width)], [width], axis=-1, epsilon=0.1)
            case "activation":
                add(draw(st.sampled_from(["Tanh", "Elu", "Softplus", "Relu"])), [name], [width])
            case "Add" | "Sub" | "Mul" as operator:
                add(operator, [name, draw(st.sampled_from(others))], [width])
            case "number":
                shape = draw(st.sampled_from([(), (1,), (1, 1), (width,), (1, width)]))
                tensors[number := f"t{len(tensors)}"] = rng.uniform(0.5, 2.0, shape).astype(np.float32)
                operands = draw(st.permutations([name, number]))
                operator = draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
                add(operator if operands[0] == name else "Sub", operands, [width])
            case "slice":
                first = draw(st.integers(0, width - 1))
                behind = draw(
                    st.sampled_from([width, 2**63 - 1, *range(first + 1, width), *range(first - width + 1, 0)])
                )
                names = [f"t{len(tensors) + index}" for index in range(4)]
                tensors.update(zip(names, np.array([[first], [behind], [1], [1]], np.int64), strict=True))
                add("Slice", [name, *names], [len(range(width)[first:behind])])
            case "join":
                other, its = draw(st.sampled_from(values))
                add("Concat", [name, other, name], [2 * width + its], axis=1)
            case "cut":
                widths = [width // 2, width - width // 2]
                tensors[sizes := f"t{len(tensors)}"] = np.array(widths, np.int64)
                if min(widths):
                    add("Split", [name, sizes], widths, axis=-1)
    nodes[-1].output[-1] = "y"
    return artifact_from(nodes, tensors, features, values[-1][1])


@pytest.mark.parametrize("suffix", EVERY)
@given(artifact=programs(), rows=st.integers(1, 9), seed=st.integers(0, 999))
def test_any_wiring_computes_what_onnxruntime_does(
    suffix: str, artifact: CompressedPolicy, rows: int, seed: int
) -> None:
    features = artifact.inputs[0].shape[1] or 0
    x = np.random.default_rng(seed).standard_normal((rows, features)).astype(np.float32)
    wanted = on_onnxruntime(artifact, x)
    scale = 1.0 + np.abs(wanted).max()
    np.testing.assert_allclose(on_kernels(artifact, x, suffix=suffix) / scale, wanted / scale, rtol=1e-4, atol=1e-4)


def artifact_from(
    nodes: list[onnx.NodeProto], tensors: dict[str, np.generic | NDArray[np.generic]], features: int, outputs: int
) -> CompressedPolicy:
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    x, y = TensorSpec("x", "float32", (None, features)), TensorSpec("y", "float32", (None, outputs))
    return CompressedPolicy("test", 1, (x,), (y,), {}, (), model)


@pytest.mark.parametrize("suffix", EVERY)
@given(artifact=integer_chains(), rows=st.integers(1, 19), seed=st.integers(0, 999))
def test_integer_layers_agree_to_the_bit(suffix: str, artifact: CompressedPolicy, rows: int, seed: int) -> None:
    features = artifact.inputs[0].shape[1] or 0
    x = (2.0 * np.random.default_rng(seed).standard_normal((rows, features))).astype(np.float32)
    np.testing.assert_array_equal(on_kernels(artifact, x, suffix=suffix), on_onnxruntime(artifact, x))


def test_a_session_runs_a_chain_natively_and_anything_else_on_onnxruntime() -> None:
    runtimes = {}
    for case, scheme in [
        *((case, scheme) for case in CHAINS for scheme in ("fp32", INT8, f"prune(0.25)+{INT8}", "lowrank(0.5)")),
        *((case, "fp32") for case in CASES if case not in CHAINS),
        ("tanh-mlp", "int4"),
        *((case, INT8) for case in ("nature-cnn", "resnet")),
    ]:
        session = PolicySession(artifact_of(case, scheme), batch=2)
        runtimes.setdefault(session.runtime, []).append(f"{case} {scheme}")
        session.run()
    assert runtimes["onnxruntime"] == ["nature-cnn fp32", "resnet fp32", "tanh-mlp int4", f"resnet {INT8}"]
    assert runtimes["native"][12:] == ["lstm-cell fp32", "lstm fp32", f"nature-cnn {INT8}"]


def test_weights_that_would_saturate_are_left_to_onnxruntime() -> None:
    if not {VNNI, ARM} & cpu_features():
        pytest.skip("needs VNNI")
    artifact = artifact_of("tanh-mlp", "int8")
    for kernels in kernels_here():
        assert runs(artifact, kernels) == (kernels.suffix != "avx2")


# of CPUID: FMA and AVX; AVX2; the five parts of AVX-512; AVX-VNNI; of XGETBV: 256 and 512 bits
FIRST, B2, B512, C512, VEX, YMM, ZMM = 1 << 12 | 1 << 28, 1 << 5, 0xC0030000, 1 << 11, 1 << 4, 6, 0xE6


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86")
@pytest.mark.parametrize(
    ("cpuid", "kept", "wanted"),
    [
        ((FIRST, B2, 0, 0), YMM, ["avx2"]),
        ((FIRST, B2, 0, VEX), YMM, ["avx_vnni", "avx2"]),
        ((FIRST, B2 | B512, C512, 0), ZMM, ["avx512", "avx2"]),
        ((FIRST, B2 | B512, C512, VEX), ZMM, ["avx512", "avx_vnni", "avx2"]),
        ((FIRST, B2 | B512, C512, VEX), YMM, ["avx_vnni", "avx2"]),
        ((FIRST, B2 | B512, 0, 0), ZMM, ["avx2"]),
        *(((FIRST, B2 | B512 ^ 1 << bit, C512, 0), ZMM, ["avx2"]) for bit in (16, 17, 30, 31)),
        ((FIRST, B2, 0, VEX), 2, []),
        ((FIRST, 0, 0, VEX), YMM, []),
        ((1 << 28, B2, 0, VEX), YMM, []),
        ((1 << 12, B2, 0, VEX), YMM, []),
    ],
)
def test_kernels_are_chosen_by_what_the_cpu_says(cpuid: tuple[int, ...], kept: int, wanted: list[str]) -> None:
    compiled = kernels_here()[0].library
    bits = compiled.runs(*map(ctypes.c_uint32, (*cpuid, kept)))
    assert [kernels.suffix for bit, kernels in enumerate(library.KERNELS) if bits >> bit & 1] == wanted


def test_this_cpu_has_the_kernels_that_linux_says_it_can_run() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(set(line.split()) for line in lines if line.startswith(("flags", "Features")))
    needed = {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma"}, "avx_vnni": {"avx_vnni"},
        "avx2": {"avx2", "fma"}, "dot_products": {"asimddp"}, "neon": {"asimd"},
    }  # fmt: skip
    wanted = [kernels.suffix for kernels in library.KERNELS if needed[kernels.suffix] <= flags]
    assert [kernels.suffix for kernels in kernels_here()] == wanted


@needs_emulator
def test_an_arm_without_dot_products_runs_the_kernels_that_need_none() -> None:
    runs = {suffix: Emulator(suffix).runs for suffix in CPUS}
    bits = {kernels.suffix: 1 << bit for bit, kernels in enumerate(library.KERNELS)}
    assert runs == {"dot_products": bits["dot_products"] | bits["neon"], "neon": bits["neon"]}


@needs_emulator
@pytest.mark.parametrize("suffix", CPUS)
@pytest.mark.parametrize("case", ["elu", "gelu", "softplus", "residual"])
def test_kernels_for_arm_equal_those_of_this_cpu_to_the_bit(case: str, suffix: str) -> None:
    for scheme in ("fp32", INT8):
        artifact, x = artifact_of(case, scheme), np.random.default_rng(0).standard_normal((20, 11), np.float32)
        own = on_kernels(artifact, x, suffix=kernels_here()[0].suffix)
        np.testing.assert_array_equal(on_kernels(artifact, x, suffix=suffix), own)


def test_versions_differ_and_batches_share_the_weights() -> None:
    case, module, plan = bound("relu-mlp", CODES)
    x = case.inputs(5)["observations"].astype(np.float32)
    answers = []
    for version in range(3):
        artifact = plan.refresh(randomise(module, seed=version), version)
        session = PolicySession(artifact, batch=2)
        wider = session.with_batch(5)
        assert session.runtime == wider.runtime == "native" and wider.inputs["observations"].shape == (5, 11)
        wider.inputs["observations"][...] = x
        session.inputs["observations"][...] = x[3:]
        wider.run()
        session.run()
        np.testing.assert_array_equal(wider.outputs["params"], on_onnxruntime(artifact, x))
        np.testing.assert_array_equal(wider.outputs["params"][3:], session.outputs["params"])
        answers.append(wider.outputs["params"].copy())
    assert not np.array_equal(answers[0], answers[1]) and not np.array_equal(answers[1], answers[2])


def test_a_kernel_outlives_what_it_was_made_from() -> None:
    artifact = artifact_of("tanh-mlp", INT8)
    x, y = np.ones((1, 11), np.float32), np.zeros((1, 6), np.float32)
    kernel = make_chain(artifact)
    run = kernel.bind((x, y))
    wanted = on_onnxruntime(artifact, x)
    del artifact, kernel
    for _ in range(100):
        np.zeros(2**16)
        run()
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (TensorSpec("observations", "float32", (None, 12)),)},
        {"inputs": (TensorSpec("other", "float32", (None, 11)),)},
        {"inputs": (TensorSpec("observations", "uint8", (None, 11)),)},
        {"inputs": (TensorSpec("observations", "float32", (1, 11)),)},
        {"inputs": (TensorSpec("observations", "float32", (None, 11, 1)),)},
        {"inputs": (TensorSpec("observations", "float32", ()),)},
        {"outputs": (TensorSpec("params", "float32", (1, 6)),)},
        {"outputs": (TensorSpec("params", "float32", (6,)),)},
        {"outputs": (TensorSpec("params", "float32", (None, 5)),)},
        {"outputs": (TensorSpec("other", "float32", (None, 6)),)},
        {"model": b""},
        {"model": b"\x3a\x02\xff\xff"},
    ],
)
def test_a_header_that_is_not_the_models_gets_no_kernel(changes: dict[str, object]) -> None:
    artifact = artifact_of("tanh-mlp", "fp32")
    assert runs(artifact)
    assert not runs(dataclasses.replace(artifact, **changes))  # type: ignore[arg-type]


def test_only_the_constants_of_an_activation_make_it_one() -> None:
    for name, constant in (("gelu", 2**0.5), ("gelu", 0.5), ("gelu-tanh", 0.044715), ("gelu-tanh", 1.0)):
        artifact = artifact_of(name, "fp32")
        model = onnx.load_from_string(artifact.model)
        constants = [t for t in model.graph.initializer if np.isclose(numpy_helper.to_array(t).sum(), constant)]
        assert constants and runs(artifact)
        for tensor in constants:
            tensor.CopyFrom(numpy_helper.from_array(np.float32(1.01) * numpy_helper.to_array(tensor), tensor.name))
        assert not runs(dataclasses.replace(artifact, model=model.SerializeToString()))


def node(model: onnx.ModelProto, operator: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == operator)


def tensor(model: onnx.ModelProto, operator: str, place: int) -> onnx.TensorProto:
    """What a node reads in that place."""
    return next(t for t in model.graph.initializer if t.name == node(model, operator).input[place])


def put(into: onnx.TensorProto, array: NDArray[np.generic]) -> None:
    into.CopyFrom(numpy_helper.from_array(array, into.name))


def _transpose(model: onnx.ModelProto) -> None:
    dims = tensor(model, "Gemm", 1).dims
    dims[0], dims[1] = dims[1], dims[0]


def _without_raw_bytes(model: onnx.ModelProto) -> None:
    into = tensor(model, "Sub", 1)
    into.CopyFrom(helper.make_tensor(into.name, onnx.TensorProto.FLOAT, [11], [0.0] * 11))


def _activation(model: onnx.ModelProto) -> onnx.AttributeProto:
    return next(a for a in node(model, "FusedGemm").attribute if a.name == "activation")


CHANGES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "a factor": lambda m: node(m, "FusedGemm").attribute.append(helper.make_attribute("alpha", 2.0)),
    "an activation": lambda m: setattr(_activation(m), "s", b"LeakyRelu"),
    "a weight that is an input": lambda m: node(m, "Gemm").input.__setitem__(1, m.graph.input[0].name),
    "an operator": lambda m: m.graph.node.append(helper.make_node("Softmax", [m.graph.output[0].name], ["more"])),
    "a shape": _transpose,
    "double precision": lambda m: put(tensor(m, "Gemm", 2), np.zeros(6)),
    "no raw bytes": _without_raw_bytes,
    "a mean of two dimensions": lambda m: put(tensor(m, "Sub", 1), np.zeros((11, 1), np.float32)),
    "a bias of two dimensions": lambda m: put(tensor(m, "Gemm", 2), np.zeros((6, 1), np.float32)),
    "a name twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "a domain": lambda m: setattr(node(m, "FusedGemm"), "domain", ""),
    "a node without inputs": lambda m: m.graph.node.insert(0, helper.make_node("Cast", [], ["nothing"])),
    "an input less": lambda m: node(m, "FusedGemm").input.__delitem__(slice(1, None)),
    "an input's type": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", onnx.TensorProto.DOUBLE),
    "an output's rows": lambda m: setattr(m.graph.output[0].type.tensor_type.shape.dim[0], "dim_value", 3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_the_kernels_do_not_know_gets_none(change: Callable[[onnx.ModelProto], object]) -> None:
    artifact = artifact_of("tanh-mlp", "fp32")
    model = onnx.load_from_string(artifact.model)
    assert runs(dataclasses.replace(artifact, model=model.SerializeToString()))
    change(model)
    assert not runs(dataclasses.replace(artifact, model=model.SerializeToString()))


SIZES = st.none() | st.integers(1, 12)


@given(data=st.data())
def test_damaged_artifacts_are_refused_or_run_within_their_arrays(data: st.DataObject) -> None:
    kinds = [*(("relu-mlp", scheme) for scheme in (INT8, CODES, "fp32", "fp16")), ("convolved", INT8)]
    artifact = artifact_of(*data.draw(st.sampled_from(kinds)))
    dtype, shape = artifact.inputs[0].dtype, artifact.inputs[0].with_batch(1)[1:]
    model = bytearray(artifact.model)
    for _ in range(data.draw(st.integers(0, 4))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(model), len(model) // 2, len(model) - 1]))
    shapes = [spec.shape for spec in (*artifact.inputs, *artifact.outputs)]
    if data.draw(st.booleans()):
        shapes[data.draw(st.integers(0, 1))] = tuple(data.draw(st.lists(SIZES, max_size=3)))
    damaged = dataclasses.replace(
        artifact,
        inputs=(TensorSpec("observations", dtype, shapes[0]),),
        outputs=(TensorSpec("params", "float32", shapes[1]),),
        model=bytes(model[:cut]),
    )
    kernel = make_chain(damaged)
    if isinstance(kernel, str):
        return
    rows = data.draw(st.integers(1, 9))
    guarded = np.full(rows * 3 + 64, 7.0, np.float32)
    x, y = np.ones((rows, *shape), dtype), guarded[32:-32].reshape(rows, 3)
    kernel.bind((x, y))()
    assert (guarded[:32] == 7.0).all() and (guarded[-32:] == 7.0).all() and (x == 1.0).all()
    session = PolicySession(damaged, batch=rows)
    assert session.runtime == "native" and session.outputs["params"].shape == (rows, 3)
    session.run()


def test_arrays_of_other_shapes_are_refused() -> None:
    kernel = make_chain(artifact_of("relu-mlp", "fp32"))
    good = np.zeros((2, 11), np.float32), np.zeros((2, 3), np.float32)
    kernel.bind(good)()
    wrong = [
        (good[0][:1], good[1]),
        (good[0][:, :10], good[1]),
        (good[0], np.zeros((2, 4), np.float32)),
        (good[0].astype(np.float64), good[1]),
        (np.zeros((2, 22), np.float32)[:, ::2], good[1]),
    ]
    for x, y in wrong:
        with pytest.raises(ValueError, match=r"are not rows of \[\(11,\), \(3,\)\] as contiguous float32"):
            kernel.bind((x, y))


def test_the_reader_agrees_with_onnx() -> None:
    for case, scheme in (("tanh-mlp", INT8), ("lstm", "fp32"), ("nature-cnn", "fp16"), ("nature-cnn", INT8)):
        model = artifact_of(case, scheme).model
        graph, wanted = read_graph(model), onnx.load_from_string(model).graph
        named = [(node.domain, node.op_type, tuple(node.input), tuple(node.output)) for node in wanted.node]
        assert [tuple(node[:4]) for node in graph.nodes] == named
        for ours, declared in ((graph.inputs, wanted.input), (graph.outputs, wanted.output)):
            types = [value.type.tensor_type for value in declared]
            shapes = [tuple(d.dim_value or None for d in kind.shape.dim) for kind in types]
            assert [value.name for value in ours] == [value.name for value in declared]
            assert [tuple(value[1:]) for value in ours] == [*zip((k.elem_type for k in types), shapes, strict=True)]
        assert graph.places.keys() == {tensor.name for tensor in wanted.initializer}
        for tensor in wanted.initializer:
            np.testing.assert_array_equal(graph.array(model, tensor.name), numpy_helper.to_array(tensor))
        for node, theirs in zip(graph.nodes, wanted.node, strict=True):
            values = {a.name: helper.get_attribute_value(a) for a in theirs.attribute}
            for name, value in node.attributes.items():
                if value is not None:
                    theirs_value = values[name].decode() if isinstance(values[name], bytes) else values[name]
                    theirs_value = tuple(theirs_value) if isinstance(theirs_value, list) else theirs_value
                    assert value == pytest.approx(theirs_value) if isinstance(value, float) else value == theirs_value


def test_a_graph_is_recognised_by_everything_but_its_numbers() -> None:
    _, module, plan = bound("tanh-mlp", INT8)
    first, second = (plan.refresh(randomise(module, seed), 1).model for seed in (0, 1))
    graph = read_graph(first)
    assert first != second and graph.is_of(second)
    renamed = first.replace(b"QGemm", b"QGemn", 1)
    assert len(renamed) == len(first) and not graph.is_of(renamed) and not graph.is_of(first[:-1])


def test_a_library_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = artifact_of("tanh-mlp", "fp32")
    library.load_or_why.cache_clear()
    try:
        monkeypatch.setattr(library, "checksum", lambda directory: 0)
        assert kernels_here() == () and "from other sources" in why_none()
        assert PolicySession(artifact, batch=1).runtime == "onnxruntime"
        monkeypatch.setattr(library, "PATH", library.PATH.with_name("absent.so"))
        library.load_or_why.cache_clear()
        assert "no C compiler or it failed" in why_none()
        broken = tmp_path / "broken.so"
        broken.write_text("no library")
        monkeypatch.setattr(library, "PATH", broken)
        library.load_or_why.cache_clear()
        assert "does not load" in why_none() and "broken.so" in why_none()
        library.load_or_why.cache_clear()
        monkeypatch.setattr(library.platform, "machine", lambda: "riscv64")
        assert why_none() == "there are none for riscv64"
    finally:
        library.load_or_why.cache_clear()
