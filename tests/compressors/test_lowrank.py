"""Low rank: exact where weights are, optimal when the basis is chosen, projected in between."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.module_state import read_state
from accel.compressors.plan import Plan, PlanUpdate
from tests.compressors.policies import (
    CASES,
    MLP,
    Case,
    applied,
    assert_acts_as,
    bound,
    error_of,
    made,
    randomise,
    relative_error,
    run_artifact,
    run_module,
)


def _make_low_rank(module: nn.Module, rank: int, seed: int) -> None:
    """Weights that are products of two random thin factors; each layer's weights side by side share the left one."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        weights = [p for name, p in layer.named_parameters(recurse=False) if p.dim() > 1]
        if weights:
            left = torch.randn(weights[0].shape[0], rank, generator=generator)
            for weight in weights:
                right = torch.randn(rank, weight[0].numel(), generator=generator)
                weight.data = (left @ right / (rank * weight[0].numel()) ** 0.5).reshape(weight.shape)


@pytest.mark.parametrize("name", CASES)
def test_weights_of_low_rank_lose_nothing(name: str) -> None:
    case, module, plan = bound(name, "lowrank(0.25)")
    assert plan.reductions[0].ranks
    for seed in (1, 2):
        _make_low_rank(module, 4, seed)
        applied(plan, module, PlanUpdate.reselect)
        inputs = case.inputs(5, seed)
        greatest = max(1.0, *(float(np.abs(wanted).max()) for wanted in run_module(module, inputs)))
        assert_acts_as(module, plan.refresh(module, version=seed), inputs, atol=1e-4 * greatest)


@pytest.mark.parametrize("name", ["relu-mlp", "nature-cnn"])
def test_real_inputs_help_every_kind_of_layer(name: str) -> None:
    case, module = made(name)
    inputs = case.inputs(128, seed=1)
    wanted = run_module(module, inputs)[0]
    found = [run_artifact(case.bind("lowrank(0.25)", module, rows=r).refresh(module, 1), inputs)[0] for r in (0, 128)]
    assert relative_error(found[1], wanted) < 0.95 * relative_error(found[0], wanted)


def test_bases_chosen_with_a_calibration_suit_what_it_saw() -> None:
    """A plan that comes back after a while has seen other inputs than the policy meets by now."""
    case, module = made("relu-mlp")
    early, late = case.inputs(256, seed=1), case.inputs(256, seed=2)
    early["observations"][:, 4:] = 0.0
    late["observations"][:, :-4] = 0.0
    late["observations"] *= 3.0
    errors = []
    for together in (False, True):
        plan = case.bind("lowrank(0.25)", module)
        plan.calibrate(early)
        update = plan.begin_update(module)
        if not together:
            update.reselect()
        update.calibrate(late, reselect=together)
        update.commit()
        errors.append(error_of(plan.refresh(module, version=1), module, late))
    assert errors[1] < 0.8 * errors[0]


def bases(plan: Plan, module: nn.Module) -> dict[str, np.ndarray]:
    """The second factors of the layers that have two, by name; the first ones follow the weights."""
    state = read_state(module)
    projected = plan.reductions[0].project(state)
    return {name: projected[name].copy() for name in projected.keys() - state.keys() if name.endswith("1.weight")}


def test_a_refresh_keeps_the_basis_and_selecting_again_improves_it() -> None:
    case, module = made("relu-mlp")
    _make_low_rank(module, 4, seed=1)
    plan = case.bind("lowrank(0.25)", module)
    before = bases(plan, module)
    _make_low_rank(module, 4, seed=2)
    inputs = case.inputs(64)
    stale = error_of(plan.refresh(module, version=1), module, inputs)
    after = bases(plan, module)
    assert before.keys() == after.keys() and all((after[name] == basis).all() for name, basis in before.items())
    applied(plan, module, PlanUpdate.reselect)
    fresh = error_of(plan.refresh(module, version=2), module, inputs)
    assert stale > 0.1 and fresh < 1e-3


@pytest.mark.parametrize("scheme", ["prune(0.5)+lowrank(0.5)", "prune(0.5)+lowrank(0.5)+int8(u8s8)"])
def test_factors_follow_pruned_channels(scheme: str) -> None:
    case = CASES["relu-mlp"]
    wide = type(case.make())
    module = randomise(wide(nn.ReLU, width=64, gaussian=False), seed=0)
    plan = case.bind(scheme, module)
    randomise(module, seed=1)
    pruned = case.bind("prune(0.5)", module)
    inputs = case.inputs(64)
    applied(plan, module, PlanUpdate.reselect)
    for _ in range(12):
        plan.calibrate(case.inputs(128, seed=1))
    applied(plan, module, PlanUpdate.reselect)
    found, wanted = (run_artifact(p.refresh(module, version=1), inputs)[0] for p in (plan, pruned))
    assert relative_error(found, wanted) < 0.9
    assert plan.reductions[0].kept.keys() == pruned.reductions[0].kept.keys()


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRUCell(11, 24)

    def forward(self, observations: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.memory(observations, state)
        return h * 2.0, h


def test_what_cannot_be_factored_is_refused() -> None:
    case = Case(_Gated, {"observations": (11,), "state": (24,)}, ("params", "next"))
    with pytest.raises(UnsupportedLayerError, match="not 'memory', a GRUCell; use a scheme without lowrank"):
        case.bind("lowrank(0.5)", case.make())
    normed = Case(
        lambda: nn.Sequential(weight_norm(nn.Linear(11, 64)), nn.ReLU(), nn.Linear(64, 3)), {"observations": (11,)}
    )
    with pytest.raises(UnsupportedLayerError, match="those of '0' are computed"):
        normed.bind("lowrank(0.5)", normed.make())
    tiny = Case(lambda: MLP(width=8), {"observations": (11,)})
    with pytest.raises(UnsupportedLayerError, match="no layer whose factors would be smaller"):
        tiny.bind("lowrank(0.5)", tiny.make())


class _Filtered(nn.Module):
    """A convolution of any kind behind one of the plain kind."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.torso = nn.Sequential(nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, **options), nn.ReLU())
        self.head = nn.Linear(64, 3)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.head(self.torso(observations.float()).mean((2, 3)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"groups": 2}, "groups=2"),
        ({"padding": "same"}, "padding='same'"),
        ({"padding": 1, "padding_mode": "circular"}, "padding_mode='circular'"),
    ],
    ids=["groups", "padding in words", "padding mode"],
)
def test_a_convolution_that_factors_cannot_compute_is_named_with_a_remedy(
    options: dict[str, object], said: str
) -> None:
    case = Case(lambda: _Filtered(**options), {"observations": (2, 12, 12)})
    with pytest.raises(UnsupportedLayerError, match=rf"'torso\.2'.*{said}.*exclude it with torso\.2=1"):
        case.bind("lowrank(0.25)", case.make())
    module = randomise(case.make(), seed=0)
    whole = case.bind("lowrank(0.25,torso.2=1,head=1,torso.0=0.5)", module)
    _make_low_rank(module.torso[0], 4, seed=1)
    applied(whole, module, PlanUpdate.reselect)
    inputs = case.inputs(5)
    greatest = float(np.abs(run_module(module, inputs)[0]).max())
    assert_acts_as(module, whole.refresh(module, version=1), inputs, atol=1e-4 * greatest)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_layer_keeps_the_most_of_what_it_puts_out_without_a_bias_too(bias: bool) -> None:
    """Inputs far from zero: the optimum is the singular value decomposition of the outputs, less their mean where a
    bias can make up for that."""
    case = Case(lambda: nn.Linear(32, 24, bias=bias), {"observations": (32,)})
    module = randomise(case.make(), seed=0)
    inputs = case.inputs(512, seed=1)
    inputs["observations"] += 3.0 * np.sin(np.arange(32)).astype(np.float32)
    plan = case.bind("lowrank(0.25)", module, rows=0)
    plan.calibrate(inputs)
    found = run_artifact(plan.refresh(module, version=1), inputs)[0]
    wanted = run_module(module, inputs)[0]
    tail = np.linalg.svd(wanted - wanted.mean(0) if bias else wanted, compute_uv=False)[8:]
    assert np.linalg.norm(found - wanted) == pytest.approx(np.linalg.norm(tail), rel=0.01)
