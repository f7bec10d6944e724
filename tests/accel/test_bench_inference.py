"""Local against central inference: jobs of real ranks, and what their rows say."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accel.bench import Policies, bench_inference
from accel.bench.rows import number
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.supervision.processes import cpu_seconds, descendants
from tests.accel.bench_rows import check_rows
from tests.contracts.ranks import need_mpirun


@pytest.mark.mpi
def test_actors_of_both_kinds_are_measured_in_turns() -> None:
    need_mpirun()
    policies = Policies(["mlp:8x1+lstm:4"], TrainConfig.create(env="CartPole-v1", unroll_length=5))
    rows = bench_inference(policies, actors=1, envs_per_actor=[2], schemes=["fp32"], seconds=1)
    check_rows(rows, "env_steps_per_s")
    assert [row["inference"] for row in rows] == ["local", "central"]
    for row in rows:
        assert number(row, "cpu_s_per_million") > 0 and row["samples"] == 1 and number(row, "lag") >= 0
        assert row["raw_env_steps_per_s"] == f"{number(row, 'env_steps_per_s'):.6g}"
        ratio = number(row, "env_steps_per_s") / number(rows[0], "env_steps_per_s")
        assert row["speedup_local"] == pytest.approx(ratio)
    local, central = rows
    assert local["lag"] == local["step_lag"], "a policy of one's own acts for a whole unroll"
    assert number(central, "step_lag") <= number(central, "lag")


def test_counts_are_checked_first() -> None:
    with pytest.raises(ConfigError, match="actors 0 is not positive"):
        bench_inference(Policies(), actors=0)
    with pytest.raises(ConfigError, match="seconds = 0"):
        bench_inference(Policies(), seconds=0)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's /proc")
def test_the_system_tells_of_processes_below_one_and_what_they_use() -> None:
    before = cpu_seconds(os.getpid())
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while len(found := descendants(os.getpid()) & (descendants(child.pid) | {child.pid})) < 2:
            sum(range(10_000))
        assert child.pid in found and os.getpid() not in descendants(os.getpid())
        child.communicate(b"\n")
    assert not found & descendants(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.02:
        sum(range(10_000))
