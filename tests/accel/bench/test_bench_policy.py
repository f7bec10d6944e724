"""The policy benchmark: every runtime and scheme, honest mismatch, refusals told, bad input before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from accel.bench.policies import MeasuredPolicy, Policies
from accel.bench.policy import bench_policy, session_call, torch_call
from accel.bench.rows import number
from accel.compressors.kernels.library import kernels_here
from accel.config import TrainConfig
from accel.config.parts import Activation
from accel.errors import ConfigError
from tests.accel.bench.bench_rows import check_rows
from tests.accel.runs.trained_runs import make_run

QUICK = {"seconds": 0.05, "repeats": 3}
RUNTIMES = ["torch", "onnxruntime"]


def measured(network: str, **options: Any) -> MeasuredPolicy:
    (policy,) = Policies([network], **options)
    return policy


def test_every_batch_runtime_and_scheme_has_a_row() -> None:
    schemes = ["int8", "prune(0.5)"]
    before = torch.get_num_threads()
    rows = bench_policy(Policies(["mlp:32x2"]), batches=[1, 3], schemes=schemes, runtimes=RUNTIMES, **QUICK)
    check_rows(rows, "us")
    cells = [(row["batch"], row["runtime"], row["scheme"]) for row in rows]
    variants = [("torch", "fp32"), *(("onnxruntime", scheme) for scheme in ("fp32", *schemes))]
    assert cells == [(batch, *variant) for batch in (1, 3) for variant in variants]
    assert {(row["network"], row["weights"], row["inputs"], row["torch_threads"]) for row in rows} == {
        ("mlp:32x2", "random", "random numbers", 1)
    }
    assert torch.get_num_threads() == before
    size = {row["scheme"]: number(row, "bytes") for row in rows if row["runtime"] == "onnxruntime"}
    assert size["prune(0.5)"] < size["fp32"] and size["int8"] < size["fp32"]
    for row in rows:
        peers = {(p["runtime"], p["scheme"]): number(p, "us") for p in rows if p["batch"] == row["batch"]}
        assert row["speedup_torch"] == pytest.approx(peers["torch", "fp32"] / number(row, "us"))
        assert row["speedup_fp32"] == pytest.approx(peers["onnxruntime", "fp32"] / number(row, "us"))
    in_torch, fp32, int8, _ = rows[:4]
    assert in_torch["kl"] is None and fp32["greedy_agreement"] == 1.0
    assert number(fp32, "kl") < 1e-9 and number(int8, "kl") < 0.1
    assert number(fp32, "action_error") < 1e-8 < number(int8, "action_error")


@pytest.mark.slow
def test_a_trained_run_is_measured_on_its_own_inputs(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="CartPole-v1", network="mlp:32x1", algorithm="ppo")
    rows = bench_policy(Policies(run=run), batches=[1], schemes=["int8", "distill(16x1)"], runtimes=RUNTIMES, **QUICK)
    check_rows(rows, "us")
    assert {(row["network"], row["weights"], row["inputs"]) for row in rows} == {("mlp:32x1", "trained", "environment")}
    assert {row["scheme"] for row in rows} == {"fp32", "int8", "distill(16x1)"}
    with pytest.raises(ConfigError, match="own environment"):
        Policies(run=run, config=TrainConfig.create())


def test_an_environment_gives_layout_and_inputs() -> None:
    policy = measured("mlp:16x1+lstm:8", config=TrainConfig.create(env="CartPole-v1"))
    assert (policy.weights, policy.source) == ("random", "environment")
    assert policy.held_out["observations"].shape[1:] == (4,) and "state_0" in policy.held_out


def test_a_scheme_that_the_network_cannot_take_is_told_and_the_others_are_measured() -> None:
    told: list[str] = []
    policy = measured("nature-cnn:0.25")
    variants = policy.variants(["prune(nowhere=0.5)", "int8"], ["onnxruntime"], told.append)
    assert [variant.scheme for variant in variants] == ["fp32", "int8"]
    (line,) = told
    assert line.startswith("refused: prune(nowhere=0.5) for nature-cnn:0.25: ") and "nowhere" in line


def test_images_on_torch_are_answered_as_by_the_policy_itself() -> None:
    policy = measured("nature-cnn:0.25")
    inputs = {name: array[:3] for name, array in policy.held_out.items()}
    with torch.inference_mode():
        answers, wanted = (
            torch_call(policy.run, inputs)(),
            policy.run.policy(*map(torch.from_numpy, inputs.values()))[0],
        )
    np.testing.assert_allclose(answers, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("network", ["mlp:16x1", "mlp:16x1+lstm:8"])
def test_both_calls_carry_recurrent_state_alike(network: str) -> None:
    policy = measured(network)
    inputs = {name: array[:2] for name, array in policy.held_out.items()}
    artifact = policy.bind("fp32").refresh(policy.run.policy, 1)
    in_torch, in_session = torch_call(policy.run, inputs), session_call(artifact, inputs)
    with torch.inference_mode():
        first, second = in_torch(), in_torch()
    np.testing.assert_allclose(in_session(), first, atol=1e-5)
    np.testing.assert_allclose(in_session(), second, atol=1e-5)
    assert np.array_equal(first, second) == ("lstm" not in network)


@pytest.mark.skipif(not kernels_here(), reason="a CPU with compiled kernels")
@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_runs_in_kernels(activation: Activation) -> None:
    policy = measured("mlp:16x2", activation=activation)
    assert len(policy.variants(["int8(reduce_range)"], ["native"], pytest.fail)) == 2


@pytest.mark.skipif(not kernels_here(), reason="a CPU with compiled kernels")
def test_the_operators_that_kernels_lack_are_named() -> None:
    told: list[str] = []
    policy = measured("nature-cnn:0.25")
    variants = policy.variants(["fp32"], ["onnxruntime", "native"], told.append)
    assert [variant.runtime for variant in variants] == ["onnxruntime"]
    (line,) = told
    assert line.startswith("no row for compiled kernels, fp32: ") and "Conv" in line and "not in the compiled" in line
