"""Widths of a policy: fewer bits cost more, say that they are simulated, and play the episodes of full precision."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from accel.bench import Policies, bench_bits
from accel.runs.loading import load_run
from accel.runs.playing import play
from tests.accel.trained_runs import make_run


def test_fewer_bits_cost_more_mismatch_and_fewer_bytes() -> None:
    rows = bench_bits(Policies(["mlp:32x2"]), bits=[3, 5, 8])
    assert [(row["bits"], row["rounded"]) for row in rows] == [
        (bits, rounded) for rounded in ("weights", "weights and activations") for bits in (3, 5, 8)
    ]
    for cells in (rows[:3], rows[3:]):
        assert all(a["kl"] > b["kl"] > 0.0 and a["bytes"] < b["bytes"] for a, b in itertools.pairwise(cells))
    assert all(whole["kl"] > part["kl"] for part, whole in zip(rows[:3], rows[3:], strict=True))
    assert all(row["simulated"] is True for row in rows)
    assert all(row["return"] is None and row["episodes"] == 0 for row in rows)


def test_a_scale_for_each_channel_takes_more_bytes() -> None:
    whole, channels = (
        bench_bits(Policies(["nature-cnn:0.5"]), bits=[4], per_channel=each)[0] for each in (False, True)
    )
    assert channels["bytes"] > whole["bytes"] and channels["per_channel"] is True


def test_a_trained_policy_plays_the_same_episodes_at_every_width(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    rows = bench_bits(Policies(run=path), bits=[2, 16], episodes=3, seed=5)
    run = load_run(path)
    returns = play(run.policy, run, episodes=3, seed=5).returns
    finest = next(row for row in rows if row["bits"] == 16 and row["rounded"] == "weights")
    assert finest["return"] == pytest.approx(np.mean(returns)) and finest["return_fp32"] == finest["return"]
    assert finest["return_low"] <= finest["return"] <= finest["return_high"]
    assert all(row["weights"] == "trained" and row["inputs"] == "environment" for row in rows)
