"""When the learner records: often at the start, and never much more often than asked for."""

from __future__ import annotations

import json
import math
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel
import accel.learning.loop
from accel.config import TrainConfig
from accel.learning.counters import ActorRates, TaskReturns, record_interval_s


@pytest.mark.parametrize(
    ("elapsed_s", "log_interval_s", "interval_s"),
    [(0.0, 1.0, 0.05), (0.4, 1.0, 0.05), (3.0, 1.0, 0.3), (100.0, 1.0, 1.0), (100.0, 5.0, 5.0), (100.0, 0.02, 0.02)],
)
def test_the_interval_grows_to_what_was_asked_for(elapsed_s: float, log_interval_s: float, interval_s: float) -> None:
    assert record_interval_s(elapsed_s, log_interval_s) == pytest.approx(interval_s)


def test_rates_of_actors_are_those_of_whole_windows() -> None:
    rates = ActorRates(3, 100.0)
    for actor, steps in ((0, 400), (1, 500), (2, 10), (0, 100)):
        rates.add(actor, steps)
    assert rates.read(101.0) == {}
    found = {"actor_steps_per_s_min": 2.0, "actor_steps_per_s_median": 100.0, "actor_steps_per_s_max": 100.0}
    found |= {f"actor_steps_per_s/{actor}": rate for actor, rate in ((2, 2.0), (0, 100.0), (1, 100.0))}
    assert rates.read(105.0) == {**found, "slowest_actor": 2}
    assert list(rates.read(105.0))[-3] == "actor_steps_per_s/2", "the slowest is first"
    rates.add(2, 10**6)
    assert rates.read(107.0) == {**found, "slowest_actor": 2}, "the next window is not over"
    assert rates.read(110.0)["slowest_actor"] == 0
    many = ActorRates(1000, 0.0)
    for actor in range(1000):
        many.add(actor, 1000 - actor)
    shown = [name for name in many.read(10.0) if "/" in name]
    assert len(shown) == ActorRates.SHOWN and shown[0] == "actor_steps_per_s/999"
    alone = ActorRates(1, 0.0)
    alone.add(0, 5)
    assert alone.read(50.0) == {}


def test_returns_of_tasks_are_those_of_their_actors() -> None:
    def unroll(*returns: float) -> Any:
        row = np.array([[*returns, 0.0]])
        return {"episode_return": row, "episode_length": (row != 0).astype(int)}

    several = TaskReturns(("a", "b"), 2)
    for actor, returns in ((0, (1.0, 2.0, 3.0)), (2, (4.0,)), (1, ())):
        several.add(actor, unroll(*returns))
    assert several.read() == {"return_mean/a": 3.5, "return_mean/b": None}
    several.add(3, unroll(7.0, math.inf))
    assert several.read()["return_mean/b"] == 7.0
    one = TaskReturns(("a",), 2)
    one.add(0, unroll(1.0))
    assert one.read() == {}


@pytest.mark.slow
def test_a_run_shorter_than_its_interval_has_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves by 1/2048 s at each look; an update takes two, and one for each of its 16 steps."""
    ticks, tick_s = count(), 1 / 2048
    monkeypatch.setattr(accel.learning.loop, "perf_counter", lambda: next(ticks) * tick_s)
    options = {"envs_per_actor": 8, "unroll_length": 16, "network": "mlp:16x1", "learner_threads": 1}
    accel.train(
        TrainConfig.create(
            algorithm="impala", actors=0, total_env_steps=10**9, max_seconds=1.0, log_interval_s=1000.0,
            compressor="fp32", results_dir=tmp_path, name="run", **options,
        )
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    elapsed_s = [row["elapsed_s"] for row in rows]
    assert len(rows) > 10 and elapsed_s[-1] >= 1.0
    for before_s, now_s in pairwise([0.0, *elapsed_s[:-1]]):
        assert 0 <= now_s - before_s - record_interval_s(now_s, 1000.0) < 20 * tick_s
