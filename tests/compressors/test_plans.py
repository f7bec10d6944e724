"""What every scheme promises, whatever it does inside: one suite for all of them."""

from __future__ import annotations

import copy
import dataclasses
import functools

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import WeightsError
from accel.compressors.pipeline import make_compressor
from accel.compressors.plan import Plan, PlanUpdate
from accel.compressors.runtime import PolicySession
from accel.compressors.scheme import METHODS
from tests.compressors.policies import CASES, applied, divergence, randomise, run_artifact, student

SCHEMES = [
    "fp32",
    "fp16",
    "int8",
    "int8(s8s8)",
    "qat",
    "prune(0.5)+qat",
    "int4",
    "prune(0.5)",
    "prune(0.5)+int8",
    "lowrank(0.5)",
    "lowrank(0.5)+int8",
    "prune(0.25)+lowrank(0.3)+fp16",
    "distill(16x2)",
    "distill(16x2)+int8",
]
# distillation takes policies without state; pruning takes nn.LSTM; what is pruned is too small to be factorised
EXCLUDED = {
    *(("distill", "lstm"), ("distill", "lstm-cell"), ("prune", "lstm-cell"), ("distill", "nature-cnn")),
    ("prune(0.25)+lowrank(0.3)+fp16", "lstm"),
}
PAIRS = [
    (scheme, name)
    for scheme in SCHEMES
    for name in ("tanh-mlp", "nature-cnn", "lstm", "lstm-cell")
    if not {(scheme.partition("(")[0], name), (scheme, name)} & EXCLUDED
]


def _bind(scheme: str, name: str, module: nn.Module) -> Plan:
    case = CASES[name]
    compressor = make_compressor(scheme, student_factory=student, divergence=divergence)
    return compressor.bind(
        module,
        case.examples(),
        case.inputs(64, seed=1),
        output_names=case.outputs,
        metadata={"env": "x", "n": [1, None]},
    )


@functools.cache
def _bound(scheme: str, name: str) -> tuple[Plan, nn.Module]:
    module = randomise(CASES[name].make(), seed=0)
    return _bind(scheme, name, module), module


def test_every_method_is_in_the_suite() -> None:
    written = {part.partition("(")[0] for scheme in SCHEMES for part in scheme.split("+")}
    assert written == METHODS.keys()


@pytest.mark.few(12)
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_an_artifact_says_what_it_is_and_acts(scheme: str, name: str) -> None:
    plan, module = _bound(scheme, name)
    case = CASES[name]
    artifact = CompressedPolicy.from_bytes(plan.refresh(module, version=41).to_bytes())
    assert plan.scheme == artifact.scheme == scheme
    assert artifact.version == 41 and artifact.metadata == {"env": "x", "n": [1, None]}
    assert [spec.name for spec in artifact.inputs] == list(case.shapes)
    assert [spec.shape[1:] for spec in artifact.inputs] == list(case.shapes.values())
    assert [spec.name for spec in artifact.outputs] == list(case.outputs)
    for batch in (1, 5):
        session = PolicySession(artifact, batch=batch)
        for key, array in case.inputs(batch, seed=2).items():
            session.inputs[key][...] = array
        session.run()
        for spec in artifact.outputs:
            assert session.outputs[spec.name].shape == spec.with_batch(batch)
            assert np.isfinite(session.outputs[spec.name]).all()
            assert np.abs(session.outputs[spec.name]).max() > 0.0


@pytest.mark.few(18)
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_refreshing_follows_the_weights_and_changes_none(scheme: str, name: str) -> None:
    plan, module = _bound(scheme, name)
    before = plan.refresh(module, version=1)
    if scheme.startswith("distill"):
        applied(plan, module, PlanUpdate.distill_step, CASES[name].examples())
    else:
        randomise(module, seed=5)
    weights = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    after = plan.refresh(module, version=2)
    assert after.model != before.model
    assert all(torch.equal(weights[key], tensor) for key, tensor in module.state_dict().items())
    inputs = CASES[name].inputs(4)
    assert np.abs(run_artifact(before, inputs)[0] - run_artifact(after, inputs)[0]).max() > 0.0


@pytest.mark.few(12)
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_every_call_of_the_protocol_is_taken(scheme: str, name: str) -> None:
    module = randomise(CASES[name].make(), seed=0)
    plan = _bind(scheme, name, module)
    inputs = CASES[name].inputs(16)
    plan.calibrate(inputs)
    assert applied(plan, module, PlanUpdate.recalibrate_on_drift, inputs) >= 0
    applied(plan, module, PlanUpdate.reselect)
    tensors = {key: torch.from_numpy(array) for key, array in inputs.items()}
    loss = applied(plan, module, PlanUpdate.distill_step, tensors)
    assert (loss is not None) == scheme.startswith("distill")
    plan.refresh(module, version=1)
    plan.refresh(module, version=2)
    static = "qat" in scheme or "int8" in scheme
    assert (plan.encoder.calibrations >= 2) == static


@pytest.mark.few(12)
@pytest.mark.parametrize(("scheme", "name"), PAIRS)
def test_refreshes_differ_in_the_version_only_and_plans_of_one_policy_share_nothing(scheme: str, name: str) -> None:
    plan, module = _bound(scheme, name)
    artifact = plan.refresh(module, version=1)
    other = _bind(scheme, name, randomise(CASES[name].make(), seed=9))
    other.refresh(randomise(CASES[name].make(), seed=10), version=1)
    assert plan.refresh(module, version=2) == dataclasses.replace(artifact, version=2)


CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
)
IN_TORCH = [(scheme, name) for scheme in ("fp32", "int8", "int8(s8s8,x8)", "int8(w4)", "qat") for name in CASES]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("scheme", "name"), [*IN_TORCH, ("prune(0.5)+int8", "relu-mlp")])
def test_codes_that_torch_computes_are_those_of_the_kernels(scheme: str, name: str, device: str) -> None:
    """But for what rounding takes from a bias, whose sum has another order."""
    plan, module = _bound(scheme, name)
    assert plan.encoder.coded_weights or scheme in ("fp32", "qat", "prune(0.5)+int8") or name.startswith("lstm")
    models = []
    for there in (False, True):
        plan.refresh(randomise(module, seed=6), 1)
        copied = copy.deepcopy(randomise(module, seed=5)).to(device if there else "cpu")
        models.append(onnx.load_from_string(plan.refresh(copied, 1, in_torch=there).model))
    ours, theirs = ({t.name: numpy_helper.to_array(t) for t in model.graph.initializer} for model in models)
    assert ours.keys() == theirs.keys()
    for tensor, array in ours.items():
        apart = np.abs(array.astype(np.float64) - theirs[tensor]).max(initial=0.0)
        assert apart <= (1 if tensor.endswith(":bias:codes") else 0), tensor
    randomise(module, seed=0)


def test_a_weight_that_is_not_finite_is_refused_wherever_its_codes_are_computed() -> None:
    plan, module = _bound("int8", "relu-mlp")
    (name, *_), parameters = sorted(plan.encoder.coded_weights), dict(module.named_parameters())
    with torch.no_grad():
        parameters[name][0, 0] = float("nan")
    for there in (False, True):
        with pytest.raises(WeightsError, match="not finite"):
            plan.refresh(module, 1, in_torch=there)
    randomise(module, seed=0)
