"""Policies over sets and sequences: dense layers on rows of rows are layers like others, in every format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from accel.compressors.checks.executed_kernels import float_kernels, integer_kernels, operators
from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.qat.fake_quantiser import FakeQuantiser
from tests.compressors.policies import (
    Case,
    assert_refresh_is_exact,
    error_of,
    randomise,
    relative_error,
    run_artifact,
    run_module,
)

torch.set_num_threads(1)

_ROWS, _FEATURES = 6, 5


class _Rows(nn.Module):
    """Observations of some rows, flat as environments give them."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations.reshape(-1, _ROWS, _FEATURES)


class _Mean(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.mean(1)


def deep_sets() -> nn.Module:
    each = (nn.Linear(_FEATURES, 32), nn.ReLU(), nn.Linear(32, 24), nn.Tanh())
    return nn.Sequential(_Rows(), *each, _Mean(), nn.Linear(24, 3))


class _Gated(nn.Module):
    """A block with normalisation before it and a GLU, beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 40), nn.Linear(20, 16)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.down(nn.functional.glu(self.up(self.norm(rows))))


def gated() -> nn.Module:
    return nn.Sequential(_Rows(), nn.Linear(_FEATURES, 16), _Gated(), _Gated(), nn.Flatten(), nn.Linear(96, 3))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(_Rows(), nn.Linear(_FEATURES, 16), encoder, _Mean(), nn.Linear(16, 3))


def rows_first() -> nn.Module:
    """The same with rows before the batch, as torch's modules have it by default."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
    return nn.Sequential(_RowsFirst(), nn.Linear(_FEATURES, 16), layer, _First(), nn.Linear(16, 3))


class _RowsFirst(nn.Module):
    def forward(self, observations: Tensor) -> Tensor:
        return observations.reshape(-1, _ROWS, _FEATURES).transpose(0, 1)


class _First(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows[0]


CASES = {make.__name__: Case(make, {"observations": (30,)}) for make in (deep_sets, gated, transformer, rows_first)}
# dense layers, and products of two activations, which stay in floats
LAYERS = {"deep_sets": (3, 0), "gated": (6, 0), "transformer": (10, 4), "rows_first": (6, 2)}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_refresh_is_exact_for_any_weights_and_batch(name: str) -> None:
    assert_refresh_is_exact(CASES[name])


def test_every_dense_layer_is_integers(name: str) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    artifact = case.bind("int8(x8)", module, rows=256).refresh(module, version=1)
    dense, between = LAYERS[name]
    assert integer_kernels(artifact)["QGemm"] == dense
    assert float_kernels(artifact) == ({"MatMul": between} if between else {})
    inputs = case.inputs(64, seed=1)
    assert error_of(artifact, module, inputs) < 0.06
    (other,) = run_artifact(artifact, case.inputs(64, seed=2))
    assert relative_error(other, run_module(module, inputs)[0]) > 0.3


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
def test_the_actor_computes_no_sizes(scheme: str, name: str) -> None:
    module = CASES[name].make()
    found = operators(CASES[name].bind(scheme, module).refresh(module, version=1))
    assert not found.keys() & {"Shape", "Slice", "Concat", "Expand", "ConstantOfShape", "Cast"}


@pytest.mark.parametrize(("scheme", "limit"), [("fp16", 4e-3), ("int4", 0.55)])
def test_other_formats_stay_close(scheme: str, limit: float) -> None:
    case = CASES["deep_sets"]
    module = randomise(case.make(), seed=0)
    artifact = case.bind(scheme, module).refresh(module, version=1)
    inputs = case.inputs(32, seed=1)
    assert error_of(artifact, module, inputs) < limit


def test_a_finished_policy_is_fitted() -> None:
    case = CASES["deep_sets"]
    module = randomise(case.make(), seed=0)
    inputs = case.inputs(256, seed=1)
    plan = case.bind("int8(x8)", module, rows=0)
    assert error_of(plan.fit(module, inputs, version=1), module, inputs) < 0.03


def test_training_rounds_as_the_artifact_does() -> None:
    case = CASES["deep_sets"]
    module = randomise(case.make(), seed=0)
    plan = case.bind("qat(x8)", module)
    inputs = case.inputs(32, seed=2)
    (rounded,) = FakeQuantiser(plan, module)(module, torch.from_numpy(inputs["observations"]))
    (found,) = run_artifact(plan.refresh(module, version=1), inputs)
    assert relative_error(found, rounded.detach().numpy()) < 1e-5


def test_attention_in_training_is_named_with_what_would_work() -> None:
    case = CASES["transformer"]
    module = case.make()
    plan = case.bind("qat", module, rows=32)
    with pytest.raises(UnsupportedLayerError, match=r"is a MultiheadAttention.*or use int8"):
        FakeQuantiser(plan, module)


class _Positions(nn.Module):
    """What is learned and added to rows, and a row of its own in front of them: no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.token = nn.Parameter(torch.zeros(_ROWS, 16)), nn.Parameter(torch.zeros(1, 1, 16))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat((self.token.expand(rows.shape[0], -1, -1), rows + self.places), 1)


@pytest.mark.parametrize("scheme", ["int8(x8)", "int4"])
def test_learned_positions_stay_in_floats(scheme: str) -> None:
    parts = (nn.Linear(_FEATURES, 16), _Positions(), nn.Linear(16, 16), nn.ReLU(), nn.Flatten(), nn.Linear(112, 3))
    case = Case(lambda: nn.Sequential(_Rows(), *parts), {"observations": (30,)})
    module = randomise(case.make(), seed=0)
    artifact = case.bind(scheme, module).refresh(module, version=1)
    assert not float_kernels(artifact)
    inputs = case.inputs(32, seed=1)
    assert error_of(artifact, module, inputs) < (0.06 if "int8" in scheme else 0.55)
