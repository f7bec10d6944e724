"""Pruning: exact where what is removed is silent, importance from the definition, choices kept until chosen again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch_pruning
from torch import Tensor, nn

from accel.compressors.errors import UnsupportedLayerError
from accel.compressors.module_state import read_state
from accel.compressors.plan import PlanUpdate
from accel.compressors.prune.channels import find_groups
from accel.compressors.prune.importance import magnitude, residual
from accel.compressors.prune.structured import kept_count
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

PRUNABLE = [name for name in CASES if name != "lstm-cell"]


def _silence(module: nn.Module, case: Case, kept: dict[str, np.ndarray]) -> nn.Module:
    """A copy in which nothing reads the channels that were not kept."""
    quiet = copy.deepcopy(module)
    parameters = dict(quiet.named_parameters())
    for group in find_groups(copy.deepcopy(module), case.examples()):
        for cut in group.cuts:
            if not cut.produces and group.name in kept:
                gone = cut.index[~np.isin(cut.channel, kept[group.name])]
                parameters[cut.parameter].data.index_fill_(cut.axis, torch.from_numpy(gone), 0.0)
    return quiet


@pytest.mark.parametrize("name", PRUNABLE)
def test_a_pruned_policy_is_the_whole_one_with_silent_channels(name: str) -> None:
    case, module, plan = bound(name, "prune(0.5)", rows=0)
    for seed in (1, 2):
        randomise(module, seed)
        applied(plan, module, PlanUpdate.reselect)
        kept = plan.reductions[0].kept
        inputs = case.inputs(6, seed)
        artifact = plan.refresh(module, version=seed)
        assert_acts_as(_silence(module, case, kept), artifact, inputs, atol=2e-5, rtol=1e-4)
        with pytest.raises(AssertionError):  # something was removed
            assert_acts_as(module, artifact, inputs, atol=1e-3)


def test_a_policy_without_gradients_has_the_same_groups() -> None:
    case = CASES[PRUNABLE[0]]
    module = case.make()
    frozen = copy.deepcopy(module).requires_grad_(False)
    with torch.no_grad():
        found = find_groups(frozen, case.examples())
    assert found
    assert [group.name for group in found] == [group.name for group in find_groups(module, case.examples())]
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize(
    ("name", "share"), [("relu-mlp", 0.7), ("tanh-mlp", 0.8), ("nature-cnn", 0.8), ("resnet", 0.9), ("lstm", 0.95)]
)
def test_what_is_kept_stands_in_for_what_is_gone(name: str, share: float) -> None:
    """Random weights: hardly any redundancy to predict from; the first refresh after binding with inputs has it all."""
    case, module = made(name)
    inputs = case.inputs(128, seed=1)
    wanted = run_module(module, inputs)[0]
    found = [run_artifact(case.bind("prune(0.5)", module, rows=r).refresh(module, 1), inputs)[0] for r in (0, 128)]
    plain, corrected = (relative_error(array, wanted) for array in found)
    assert corrected < share * plain


@pytest.mark.parametrize("name", ["relu-mlp", "nature-cnn"])
def test_copies_of_channels_are_pruned_without_loss(name: str) -> None:
    """Every channel has a twin: half of them tell everything, and readers must take over what the twins were for."""
    case, module = made(name)
    for layer in module.torso:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            half = len(layer.weight) // 2
            for tensor in (layer.weight, layer.bias):
                tensor.data[half:] = tensor.data[:half]
    inputs = case.inputs(512, seed=1)
    plans = [case.bind("prune(0.5)", module, rows=rows) for rows in (0, 512)]
    errors = [error_of(plan.refresh(module, version=1), module, inputs) for plan in plans]
    assert errors[0] > 0.3 and errors[1] < 0.05


def _twins(case: Case) -> nn.Module:
    """One hidden layer whose second half says what the first half says."""
    module = randomise(type(case.make())(nn.ReLU, depth=1, gaussian=False), seed=0)
    half = len(module.torso[0].weight) // 2
    for tensor in (module.torso[0].weight, module.torso[0].bias):
        tensor.data[half:] = tensor.data[:half]
    return module


def test_a_refresh_predicts_for_the_weights_of_the_moment() -> None:
    """Readers that have moved since anything was measured or chosen."""
    case = CASES["relu-mlp"]
    module = _twins(case)
    inputs = case.inputs(512, seed=1)
    plan = case.bind("prune(0.5)", module, rows=512)
    with torch.no_grad():
        module.head.weight.copy_(torch.randn(module.head.weight.shape, generator=torch.Generator().manual_seed(5)))
    assert error_of(plan.refresh(module, version=1), module, inputs) < 0.03


def test_predictions_follow_features_that_move() -> None:
    """Twins that become three times as loud: what was measured is wrong until it is measured anew."""
    case = CASES["relu-mlp"]
    module = _twins(case)
    inputs = case.inputs(512, seed=1)
    plan = case.bind("prune(0.5)", module, rows=512)
    kept = plan.reductions[0].kept["torso.0"].tolist()
    half = len(module.torso[0].weight) // 2
    with torch.no_grad():
        for tensor in (module.torso[0].weight, module.torso[0].bias):
            tensor[half:] *= 3.0
    assert error_of(plan.refresh(module, version=1), module, inputs) > 0.2
    for _ in range(8):
        plan.refit(module, inputs)
    assert error_of(plan.refresh(module, version=1), module, inputs) < 0.05
    assert plan.reductions[0].kept["torso.0"].tolist() == kept, "nothing was chosen"


def test_features_that_are_not_finite_are_not_measured() -> None:
    case = CASES["relu-mlp"]
    module = _twins(case)
    plan = case.bind("prune(0.5)", module, rows=512)
    before = plan.refresh(module, version=1).model
    bias = module.torso[0].bias
    with torch.no_grad():
        sound, bias[0] = bias.clone(), float("nan")
        plan.refit(module, case.inputs(64))
        bias.copy_(sound)
    assert plan.refresh(module, version=1).model == before


def test_the_mean_output_stays_behind_one_pruned_layer() -> None:
    """With one prunable layer in front, E[W h + b] does not change."""
    case = CASES["relu-mlp"]
    module = randomise(type(case.make())(nn.ReLU, depth=1, gaussian=False), seed=0)
    inputs = case.inputs(128, seed=1)
    found = run_artifact(case.bind("prune(0.5)", module).refresh(module, version=1), inputs)[0]
    np.testing.assert_allclose(found.mean(0), run_module(module, inputs)[0].mean(0), atol=1e-4)


def test_a_reader_without_bias_gets_the_best_prediction_without_a_constant() -> None:
    """Least squares of the outputs on the kept units themselves, whose means are far from zero."""
    case = CASES["relu-mlp"]
    module = randomise(type(case.make())(nn.ReLU, depth=1, gaussian=False), seed=0)
    module.torso[0].bias.data.add_(2.0)
    module.head = nn.Linear(32, 3, bias=False)
    inputs = case.inputs(1024, seed=1)
    plan = case.bind("prune(0.5)", module, rows=0)
    plan.calibrate(inputs)
    found = run_artifact(plan.refresh(module, version=1), inputs)[0]
    kept = plan.reductions[0].kept["torso.0"]
    with torch.no_grad():
        features = module.torso(module.normaliser(torch.from_numpy(inputs["observations"]))).numpy()
    wanted = run_module(module, inputs)[0]
    best = features[:, kept] @ np.linalg.lstsq(features[:, kept], wanted, rcond=None)[0]
    assert relative_error(found, wanted) == pytest.approx(relative_error(best, wanted), rel=0.02)


def test_choices_stay_until_chosen_again() -> None:
    _, module, plan = bound("relu-mlp", "prune(0.5)")
    before = {name: kept.copy() for name, kept in plan.reductions[0].kept.items()}
    randomise(module, seed=1)
    plan.refresh(module, version=1)
    assert all((plan.reductions[0].kept[name] == kept).all() for name, kept in before.items())
    applied(plan, module, PlanUpdate.reselect)
    assert any((plan.reductions[0].kept[name] != kept).any() for name, kept in before.items())
    assert all(len(plan.reductions[0].kept[name]) == len(kept) for name, kept in before.items())


def test_the_loudest_units_are_kept() -> None:
    case, module = made("relu-mlp")
    loud = torch.arange(1, 32, 2)
    with torch.no_grad():
        module.torso[0].weight[loud] *= 10.0
    plan = case.bind("prune(0.5)", module, rows=0)
    assert plan.reductions[0].kept["torso.0"].tolist() == loud.tolist()


def test_residual_importance_chooses_what_lowers_the_readers_error_most() -> None:
    """Against least squares on the samples themselves, one channel at a time, for two readers at once."""
    generator = torch.Generator().manual_seed(3)
    draws = [
        torch.randn(400, 4, generator=generator).double() @ torch.randn(4, 9, generator=generator).double()
        for _ in "ab"
    ]
    samples = [torch.relu(draw + 0.3) - torch.relu(draw + 0.3).mean(0) for draw in draws]
    weights = [torch.randn(rows, 9, generator=generator).double() for rows in (5, 2)]
    readers = [(h.t() @ h / 400, w.t() @ w, 1e-12) for h, w in zip(samples, weights, strict=True)]

    def error(kept: list[int]) -> float:
        total = 0.0
        for h, w in zip(samples, weights, strict=True):
            wanted = h @ w.t()
            total += float(
                (wanted - h[:, kept] @ torch.linalg.lstsq(h[:, kept], wanted).solution).square().mean(0).sum()
            )
        return total

    chosen: list[int] = []
    for _ in range(5):
        chosen.append(min(set(range(9)) - set(chosen), key=lambda channel: error([*chosen, channel])))
    scores = residual(5, readers)
    assert np.argsort(-scores, kind="stable")[:5].tolist() == chosen
    assert (scores > 0).sum() == 5


def _groups_of_torch_pruning(module: nn.Module, case: Case) -> Iterator[tuple[str, np.ndarray]]:
    names = {layer: name for name, layer in module.named_modules()}
    score = torch_pruning.importance.GroupMagnitudeImportance(p=2, group_reduction="mean", normalizer=None, bias=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch_pruning.DependencyGraph().build_dependency(module, tuple(case.examples().values()))
        for group in graph.get_all_groups(root_module_types=[nn.Linear, nn.Conv2d]):
            yield names[group[0].dep.target.module], score(group).detach().numpy()


@pytest.mark.parametrize("name", ["relu-mlp", "nature-cnn", "resnet"])
def test_magnitudes_order_channels_as_torch_pruning_does(name: str) -> None:
    case, module = made(name, seed=4)
    theirs = dict(_groups_of_torch_pruning(copy.deepcopy(module), case))
    groups = find_groups(copy.deepcopy(module), case.examples())
    assert groups
    for group in groups:
        ours = magnitude(group, read_state(module))
        np.testing.assert_allclose(ours / ours.sum(), theirs[group.name] / theirs[group.name].sum(), rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "ratio", "count"),
    [
        (512, 0.5, 256),
        (256, 0.3, 176),
        (64, 0.5, 32),
        (64, 0.9, 16),
        (32, 0.5, 16),
        (16, 0.5, 8),
        (16, 0.99, 8),
        (8, 0.5, 8),
    ],
)
def test_kept_counts_suit_the_kernels(size: int, ratio: float, count: int) -> None:
    assert kept_count(size, ratio) == count


class _Normed(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.torso[1] = nn.LayerNorm(32)


class _Tangled(MLP):
    """A sum over units: removing one changes what stays."""

    def forward(self, observations: Tensor) -> Tensor:
        x = self.torso(self.normaliser(observations))
        return self.head(x - x.exp().mean(1, keepdim=True))


class _OnInputs(nn.Module):
    """A residual block on the observations, which keep their number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.wide, self.head = nn.Linear(48, 48), nn.Linear(48, 64), nn.Linear(64, 3)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(torch.relu(self.wide(torch.relu(observations + self.inner(observations)))))


class _Narrow(MLP):
    def __init__(self) -> None:
        super().__init__(width=8)


REFUSED = {
    "'torso.0' has 64, 'torso.2' has 64; units are kept in multiples of 16, .*share, or": lambda: MLP(width=64),
    "to prune: it has none but heads; .*use a scheme without prune": lambda: nn.Linear(11, 32),
    "not 'torso.1', a LayerNorm": _Normed,
    "without changing the other units": _Tangled,
    "the pruned layers do not fit together": _OnInputs,
    "no layer of this policy to prune": _Narrow,
    "not 'core', a LSTMCell": CASES["lstm-cell"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_policies_that_cannot_be_pruned_are_refused(message: str) -> None:
    made = REFUSED[message]
    case = made if isinstance(made, Case) else Case(made, {"observations": (48 if made is _OnInputs else 11,)})
    with pytest.raises(UnsupportedLayerError, match=message):
        case.bind("prune(0.1)" if "kept in multiples" in message else "prune(0.5)", case.make())
