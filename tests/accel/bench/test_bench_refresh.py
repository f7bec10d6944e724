"""The refresh benchmark: every part of a refresh, and break-even figures that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.bench.policies import Policies
from accel.bench.refresh import bench_refresh, break_even, changing_weights
from accel.bench.rows import Row, number
from tests.accel.bench.bench_rows import check_rows
from tests.accel.runs.trained_runs import make_run

QUICK = {"seconds": 0.05, "repeats": 3}


def row(scheme: str, us: float, load_ms: float) -> Row:
    return {
        "network": "mlp:64x2", "scheme": scheme, "envs": 4, "us": us, "us_low": us, "us_high": us,
        "load_ms": load_ms,
    }  # fmt: skip


def test_every_network_and_scheme_has_a_row() -> None:
    networks, schemes = ["mlp:32x1", "mlp:48x2"], ["fp32", "int8", "prune(0.5)"]
    rows = bench_refresh(Policies(networks), schemes=schemes, envs=2, **QUICK)
    check_rows(rows, "requantise_ms", "serialise_ms", "load_ms", "us")
    assert [(r["network"], r["scheme"]) for r in rows] == [(n, s) for n in networks for s in schemes]
    for each in rows:
        assert number(each, "bind_ms") > 0
        assert each["envs"] == 2
    assert number(rows[0], "parameters") < number(rows[3], "parameters")
    assert number(rows[2], "bytes") < number(rows[0], "bytes")


def test_break_even_is_where_the_saving_makes_up_for_the_refresh() -> None:
    fp32 = row("fp32", us=40.0, load_ms=1.0)
    fast = row("int8", us=20.0, load_ms=1.5)
    found = break_even(fast, [fp32, fast])
    assert found["saving_us_per_env_step"] == pytest.approx(5.0)
    assert found["break_even_env_steps"] == pytest.approx(100.0)
    steps = number(found, "break_even_env_steps")
    assert steps * 40.0 / 4 + 1e3 * 1.0 == pytest.approx(steps * 20.0 / 4 + 1e3 * 1.5)
    light = row("prune(0.5)", us=20.0, load_ms=0.5)
    assert break_even(light, [fp32, light])["break_even_env_steps"] == 0.0
    alone = break_even(fp32, [fp32])
    assert alone["break_even_env_steps"] is None and alone["saving_us_per_env_step"] == 0.0
    slow = row("fp16", us=39.9, load_ms=0.5)
    assert break_even(slow, [fp32, slow])["break_even_env_steps"] is None, "0.25 % is no gain"


@pytest.mark.slow
def test_trained_weights_bring_mismatch_and_taught_students(tmp_path: Path) -> None:
    run = make_run(tmp_path, env="CartPole-v1", network="mlp:16x1", algorithm="ppo", publish_interval_updates=4)
    rows = bench_refresh(Policies(run=run), schemes=["int8", "distill(8x1)+int8"], **QUICK)
    check_rows(rows, "load_ms", "us")
    assert {each["weights"] for each in rows} == {"trained"}
    assert [each["scheme"] for each in rows] == ["fp32", "int8", "distill(8x1)+int8"]
    assert number(rows[0], "kl") < 1e-7 < number(rows[1], "kl")


def test_weights_move_before_every_refresh_and_come_back() -> None:
    (policy,) = Policies(["mlp:16x1"])
    plan = policy.bind("fp32")
    weights_change = changing_weights(policy.run.policy)
    payloads = [plan.refresh(policy.run.policy, 0).model]
    for _ in range(2):
        next(weights_change)
        payloads.append(plan.refresh(policy.run.policy, 0).model)
    assert payloads[0] != payloads[1] != payloads[2]
