"""A default run, with an actor of its own, trains networks over sets and sequences: what does not suit is left out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig

TORSOS = "tests.accel.networks.sequence_torsos"


@pytest.mark.long
@pytest.mark.parametrize(("torso", "compressed"), [("Sets", True), ("Attention", True), ("Window", False)])
def test_a_default_run_trains_it(
    torso: str, compressed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainConfig.create(
        env="tests.environments.learnable:Targets-v0", network=f"{TORSOS}:{torso}", actors=1, total_env_steps=4000,
        learner_threads=1, results_dir=tmp_path, name="run",
    )  # fmt: skip
    with caplog.at_level(logging.INFO, logger="accel"):
        summary = accel.train(config)
    assert summary.finished and summary.updates > 0
    told = [record.message for record in caplog.records]
    assert any(line.startswith("bound int8") for line in told) == compressed
    left_out = [line for line in told if line.startswith("int8 is not used")]
    assert len(left_out) == (0 if compressed else 1)
    assert all("operator LSTM has no static integer kernel" in line for line in left_out)
