"""The actor benchmark: the real loop of every runtime and scheme, whose parts add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accel.bench.actor import RandomStepper, Split, bench_actor, median_parts
from accel.bench.policies import Policies
from accel.bench.rows import number
from accel.compressors.kernels.library import kernels_here
from accel.config import TrainConfig
from tests.accel.bench.bench_rows import check_rows
from tests.accel.runs.trained_runs import make_run

QUICK = {"seconds": 0.05, "repeats": 5}
INT8 = "int8(reduce_range)"  # which the kernels of every CPU have
SESSIONS = ["onnxruntime", "native"] if kernels_here() else ["onnxruntime"]


def test_every_variant_has_a_row_whose_parts_add_up() -> None:
    """Policies of runs with central inference too, which act by themselves here."""
    rows = bench_actor(
        Policies(["mlp:16x1"], TrainConfig.create(env="CartPole-v1", unroll_length=10, algorithm="seed")),
        envs_per_actor=[1, 4],
        schemes=[INT8],
        **QUICK,
    )
    check_rows(rows, "us_per_env_step", "env_only_us")
    variants = [("torch", "fp32"), *((runtime, scheme) for runtime in SESSIONS for scheme in ("fp32", INT8))]
    cells = [(row["envs"], row["runtime"], row["scheme"]) for row in rows]
    assert cells == [(envs, *variant) for envs in (1, 4) for variant in variants]
    for row in rows:
        assert (row["env"], row["network"], row["unroll_length"]) == ("CartPole-v1", "mlp:16x1", 10)
        parts = [number(row, name) for name in ("env_us", "policy_us", "overhead_us")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(number(row, "us_per_env_step"))
        assert 0.0 < number(row, "env_share_low") <= number(row, "env_share") <= number(row, "env_share_high")
        peers = {(p["runtime"], p["scheme"]): p for p in rows if p["envs"] == row["envs"]}
        for name, peer in (("speedup_torch", peers["torch", "fp32"]), ("speedup_fp32", peers["onnxruntime", "fp32"])):
            ratio = number(peer, "us_per_env_step") / number(row, "us_per_env_step")
            assert row[name] == pytest.approx(ratio)


def test_the_parts_of_the_median_are_those_of_ordinary_samples() -> None:
    ordinary = [Split(10.0 + k, 6.0, 3.0) for k in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)]
    disturbed = [Split(90.0, 80.0, 5.0), Split(8.0, 1.0, 1.0)]
    assert median_parts(ordinary + disturbed) == pytest.approx((6.0, 3.0), rel=0.02)


@pytest.mark.parametrize(
    ("env", "network"),
    [("Pendulum-v1", "mlp:16x1+lstm:8"), ("tests.environments:ClosedFormSameStep-v0", "mlp:16x1")],
)
def test_continuous_actions_recurrence_and_resets_in_the_same_step(env: str, network: str) -> None:
    policies = Policies([network], TrainConfig.create(env=env))
    rows = bench_actor(policies, envs_per_actor=[2], schemes=["fp32"], **QUICK)
    check_rows(rows, "us_per_env_step")
    runtimes = ["torch", "onnxruntime", "native"]
    assert [row["runtime"] for row in rows] == runtimes[: 3 if kernels_here() else 2]


@pytest.mark.parametrize(
    ("env", "same_step"),
    [("tests.environments:ClosedForm-v0", False), ("tests.environments:ClosedFormSameStep-v0", True)],
)
def test_rows_that_reset_are_no_steps_of_the_environment_alone(env: str, same_step: bool) -> None:
    stepper = RandomStepper(TrainConfig.create(env=env, envs_per_actor=3, unroll_length=50))
    steps = [stepper.unroll()[1] for _ in range(4)]
    stepper.close()
    assert all(count == 150 for count in steps) == same_step
    assert np.mean(steps) > 75


def test_a_trained_run_brings_environment_network_and_mismatch(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="CartPole-v1", network="mlp:16x1", unroll_length=7)
    rows = bench_actor(Policies(run=run), envs_per_actor=[2], schemes=[INT8], **QUICK)
    check_rows(rows, "us_per_env_step")
    assert {(r["env"], r["network"], r["weights"], r["unroll_length"]) for r in rows} == {
        ("CartPole-v1", "mlp:16x1", "trained", 7)
    }
    in_torch, *others = rows
    assert in_torch["kl"] is None and len(others) == 2 * len(SESSIONS)
    for fp32, int8 in zip(others[::2], others[1::2], strict=True):
        assert number(fp32, "kl") < 1e-7 < number(int8, "kl")
