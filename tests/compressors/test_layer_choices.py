"""Choices layer by layer: what each method does to the named layer, and to no other."""

from __future__ import annotations

import pytest
import torch

from accel.compressors.checks.executed_kernels import integer_kernels, operators
from accel.compressors.errors import SchemeError, UnsupportedLayerError
from accel.compressors.layer_choices import choice_for
from tests.compressors.policies import CASES, randomise, relative_error, run_artifact, run_module

_SEED = 3


def _policy(case: str) -> torch.nn.Module:
    return randomise(CASES[case].make(), _SEED)


def test_the_longest_name_decides() -> None:
    choices = [("torso", 1), ("torso.1", 2), ("torso.10", 3)]
    found = [choice_for(layer, choices, 0) for layer in ("head", "torso.0", "torso.1", "torso.1.0", "torso.10", "tor")]
    assert found == [0, 1, 2, 2, 3, 0]


@pytest.mark.parametrize(
    ("case", "named", "choice"),
    [
        ("tanh-mlp", "torso.0", "float"),
        ("tanh-mlp", "head", "float"),
        ("deep-relu-mlp", "torso.2", "int4"),
        ("nature-cnn", "torso.2", "float"),
        ("nature-cnn", "torso.7", "int4"),
        ("resnet", "torso.2.a", "float"),
        ("lstm", "core", "float"),
        ("lstm-cell", "head", "float"),
    ],
)
def test_a_spared_layer_alone_leaves_integer_arithmetic(case: str, named: str, choice: str) -> None:
    module, inputs = _policy(case), CASES[case].inputs(64, seed=5)
    whole = CASES[case].bind("int8(x8)", module).refresh(module, 1)
    spared_plan = CASES[case].bind(f"int8(x8,{named}={choice})", module)
    spared = spared_plan.refresh(module, 1)
    before, after = (integer_kernels(a) for a in (whole, spared))
    assert after.total() - after["MatMulNBits"] == before.total() - 1
    assert after["MatMulNBits"] == (choice == "int4")
    wanted = run_module(module, inputs)[0]
    errors = [relative_error(run_artifact(artifact, inputs)[0], wanted) for artifact in (whole, spared)]
    assert errors[1] < (1.5 * errors[0] if choice == "float" else 0.5)
    randomise(module, _SEED + 1)
    spared_plan.calibrate(CASES[case].inputs(128, seed=1))
    refreshed = spared_plan.refresh(module, 2)
    assert relative_error(run_artifact(refreshed, inputs)[0], run_module(module, inputs)[0]) < 0.5


def test_a_float_layer_keeps_its_activation_in_one_node() -> None:
    module = _policy("tanh-mlp")
    found = operators(CASES["tanh-mlp"].bind("int8(torso=float)", module).refresh(module, 1))
    assert found["FusedGemm"] == 2 and found["QGemm"] == 1


def test_shares_by_layer_remove_that_much_of_each() -> None:
    module = _policy("deep-relu-mlp")  # 4 layers of 32
    plan = CASES["deep-relu-mlp"].bind("prune(0.5,torso.0=0.75,torso.4=0)", module)
    shapes = {name: tuple(p.shape) for name, p in plan.reductions[0].module.named_parameters()}
    widths = [shapes[f"torso.{i}.weight"][0] for i in (0, 2, 4, 6)]
    assert widths == [8, 16, 32, 16]


def test_ranks_by_layer_reach_only_those_layers() -> None:
    module = _policy("deep-relu-mlp")
    plan = CASES["deep-relu-mlp"].bind("lowrank(torso.2=0.25,torso.4=1)", module)
    names = [name for name, _ in plan.reductions[0].module.named_parameters()]
    assert [name for name in names if name.startswith("torso.2.")] == [
        "torso.2.0.weight", "torso.2.1.weight", "torso.2.1.bias",
    ]  # fmt: skip
    assert "torso.4.weight" in names


def test_both_factors_take_the_format_of_their_layer() -> None:
    module = _policy("deep-relu-mlp")
    kernels = [
        integer_kernels(CASES["deep-relu-mlp"].bind(scheme, module).refresh(module, 1)).total()
        for scheme in ("lowrank(torso.2=0.25)+int8", "lowrank(torso.2=0.25)+int8(torso.2=float)")
    ]
    assert kernels[0] - kernels[1] == 2


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            "int8(torzo=float)",
            "names 'torzo', which is no layer .*; choose from torso.0, torso.2, head",
        ),
        ("prune(head=0.5)", "names 'head', which is no layer that it applies to; choose from"),
        ("prune(nothing=0.5)", "names 'nothing', which is no layer that it applies to; choose from torso.2, torso.0"),
        (
            "lowrank(nothing=0.5)",
            "names 'nothing', which is no layer .*; choose from torso.0, torso.2, head",
        ),
    ],
)
def test_a_layer_that_is_not_there_lists_the_layers(scheme: str, message: str) -> None:
    with pytest.raises(SchemeError, match=message):
        CASES["relu-mlp"].bind(scheme, _policy("relu-mlp"))


@pytest.mark.parametrize("scheme", ["prune(torso.0=0.05)", "lowrank(head=0.9)"])
def test_a_named_layer_is_never_skipped_silently(scheme: str) -> None:
    with pytest.raises(UnsupportedLayerError, match="omit the layer"):
        CASES["relu-mlp"].bind(scheme, _policy("relu-mlp"))


@pytest.mark.few(2)
@pytest.mark.parametrize("case", list(CASES))
def test_the_inventory_names_what_schemes_can_choose_for(case: str) -> None:
    module = _policy(case)
    layers = CASES[case].layers(module)
    assert len({layer.name for layer in layers}) == len(layers)
    spared = ",".join(f"{layer.name}=float" for layer in layers)
    assert not integer_kernels(CASES[case].bind(f"int8({spared})", module).refresh(module, 1))
    for layer in layers:
        if layer.units and layer.keeps(0.5) < layer.units:
            CASES[case].bind(f"prune({layer.name}=0.5)", module)
        if layer.rank(0.25):
            CASES[case].bind(f"lowrank({layer.name}=0.25)", module)
    assert any(layer.units for layer in layers) == (case != "lstm-cell"), "prune takes no LSTMCell"
    assert layers[-1].units == 0, "heads keep their outputs"
