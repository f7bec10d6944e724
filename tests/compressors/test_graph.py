"""The exported graph follows the module's weights at every refresh, exactly; what cannot be followed is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel.compressors.errors import GraphError, WeightsError
from accel.compressors.graph.policy_graph import export_policy
from accel.compressors.module_state import read_state
from tests.compressors.policies import (
    CASES,
    MLP,
    Case,
    assert_acts_as,
    assert_refresh_is_exact,
    bound,
    randomise,
    run_module,
)


@pytest.mark.parametrize("name", CASES)
def test_refresh_is_exact_for_any_weights_and_batch(name: str) -> None:
    assert_refresh_is_exact(CASES[name])


def test_equal_weights_are_not_merged() -> None:
    """Biases all start at zero; after training they differ."""
    case = CASES["tanh-mlp"]
    module = case.make()
    nn.init.zeros_(module.torso[0].bias)
    nn.init.zeros_(module.torso[2].bias)
    plan = case.bind("fp32", module)
    module.torso[0].bias.data += 1.0
    assert_acts_as(module, plan.refresh(module, version=1), case.inputs(4))


def test_binding_leaves_the_module_alone() -> None:
    case = CASES["tanh-mlp"]
    module = case.make().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    case.bind("fp32", module).refresh(module, version=1)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


class _Baked(MLP):
    """A weight that reaches the graph as a Python number."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations) * float(self.head.bias[0])


class _FixedBatch(MLP):
    """A batch written into the graph."""

    def forward(self, observations: Tensor) -> Tensor:
        rows = int(observations.shape[0])
        return (
            super()
            .forward(observations.reshape(rows, 11)[: 2 if rows == 2 else rows])
            .reshape(2 if rows == 2 else rows, 6)
        )


class _Branching(MLP):
    """A branch on the observations' values."""

    def forward(self, observations: Tensor) -> Tensor:
        if bool((observations.abs() > 1.0).any()):
            observations = observations / observations.abs().max()
        return super().forward(observations)


class _Centred(MLP):
    """Every row depends on the others."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations - observations.mean(0))


class _Untraceable(MLP):
    """An operation without an ONNX counterpart."""

    def forward(self, observations: Tensor) -> Tensor:
        return torch.linalg.svdvals(super().forward(observations))[:, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_Baked, "differs from the policy's"),
        (_FixedBatch, "differs from the policy's|batch"),
        (_Branching, "differs from the policy's.*without branches on their values"),
        (_Centred, "differs from the policy's.*each independent of the others"),
    ],
    ids=["baked weight", "baked batch", "branch", "rows mixed"],
)
def test_what_cannot_be_refreshed_is_refused(make: type[nn.Module], message: str) -> None:
    """Examples are zeros, as a learner has them before the first observation."""
    with pytest.raises(GraphError, match=message):
        export_policy(make(), {"observations": torch.zeros(2 if make is _FixedBatch else 1, 11)}, ["params"])


class _Looking(nn.Module):
    """Takes whole numbers below 11 alone, as rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.table(observations.long()).mean(1))


class _Rooted(MLP):
    """Is a number for positive observations alone."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations.sqrt())


@pytest.mark.parametrize("make", [_Looking, _Rooted])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=["bytes", "floats"])
def test_policies_of_certain_values_are_exported(make: type[nn.Module], dtype: torch.dtype) -> None:
    module = randomise(make(), seed=0)
    observations = torch.arange(5 * 11).reshape(5, 11).remainder(11).to(dtype)
    graph = export_policy(module, {"observations": torch.zeros(1, 11, dtype=dtype)}, ["params"])
    found = graph.subgraph(["params"])({"observations": observations.numpy(), **graph.read(read_state(module))})
    np.testing.assert_allclose(found["params"], run_module(module, {"o": observations.numpy()})[0], atol=1e-5)


@pytest.mark.parametrize("actions", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (1, 1)])
def test_a_log_deviation_of_any_shape_is_exported(shape: tuple[int, ...], actions: int) -> None:
    """One for each action, or one for all of them; but for a scalar, actors compute no shapes."""
    shape = tuple(min(size, actions) for size in shape)

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.torso, self.mean = nn.Linear(11, 16), nn.Linear(16, actions)
            self.log_std = nn.Parameter(torch.zeros(shape))

        def forward(self, observations: Tensor) -> Tensor:
            means = self.mean(torch.tanh(self.torso(observations)))
            return torch.cat([means, self.log_std.expand_as(means)], 1)

    module = randomise(Gaussian(), seed=0)
    module.log_std.data = torch.randn(shape)
    inputs = {"observations": torch.randn(5, 11)}
    graph = export_policy(module, inputs, ["params"])
    assert not shape or [node.op_type for node in graph.nodes] == ["Gemm", "Tanh", "Gemm"]
    found = graph.subgraph(["params"])(
        {"observations": inputs["observations"].numpy(), **graph.read(read_state(module))}
    )
    np.testing.assert_allclose(found["params"], module(inputs["observations"]).detach().numpy(), atol=1e-6)


class _Pooled(nn.Module):
    """Pooling to a size that does not divide its input's."""

    def __init__(self) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, observations: Tensor) -> Tensor:
        return self.torso(observations.float())


@pytest.mark.parametrize(
    ("case", "where"),
    [
        (Case(_Pooled, {"observations": (2, 44, 44)}), r"layer 'torso\.1' \(AdaptiveAvgPool2d\) cannot"),
        (Case(_Untraceable, {"observations": (11,)}), "the forward of _Untraceable cannot"),
    ],
    ids=["layer", "forward"],
)
def test_what_cannot_be_exported_is_named_with_a_remedy_and_nothing_else_printed(
    case: Case, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GraphError, match=where) as caught:
        case.bind("fp32", case.make())
    message = str(caught.value)
    assert "\n" not in message and "operations that ONNX has, or keep the policy in torch, uncompressed" in message
    assert capfd.readouterr() == ("", "")


class _Attentive(nn.Module):
    """Attention over the observation's numbers, which torch computes by one operator of its own where it can."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(1, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, observations: Tensor) -> Tensor:
        x = self.embedding(observations[:, :, None])
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_attention_is_exported_in_parts() -> None:
    case = Case(_Attentive, {"observations": (11,)})
    module = case.make().eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        plan = case.bind("fp32", module)
    assert_acts_as(module, plan.refresh(randomise(module, seed=1), version=1), case.inputs(5))
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.RMSNorm(11),
        lambda: nn.RMSNorm((11,), eps=0.1, elementwise_affine=False),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(11, 5)),
    ],
    ids=["RMSNorm", "RMSNorm without weight", "spectral norm"],
)
def test_what_onnx_has_no_operator_for_is_exported_in_parts(make: Callable[[], nn.Module]) -> None:
    """Beside what the module computes without the export."""
    module = nn.Sequential(nn.Linear(11, 11), make()).eval()
    case = Case(nn.Module, {"observations": (11,)})
    assert_acts_as(module, case.bind("fp32", module).refresh(module, version=1), case.inputs(5))


def test_wrong_number_of_output_names_is_refused() -> None:
    case = CASES["lstm"]
    with pytest.raises(GraphError, match="returns 3 tensors"):
        export_policy(case.make(), case.examples(), ["params"])


def test_another_module_is_refused_by_name() -> None:
    case = CASES["tanh-mlp"]
    plan = case.bind("fp32", case.make())
    with pytest.raises(WeightsError, match="log_std"):
        plan.refresh(MLP(gaussian=False), version=1)


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(scheme: str, value: float) -> None:
    _, module, plan = bound("tanh-mlp", scheme)
    for tensor in (module.torso[0].weight, module.torso[2].bias):
        kept = tensor.data[3].clone()
        tensor.data[3] = value
        with pytest.raises(WeightsError, match="torso"):
            plan.refresh(module, version=1)
        tensor.data[3] = kept
    plan.refresh(module, version=2)
