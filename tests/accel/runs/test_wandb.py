"""Weights & Biases: asked for and missing, offline with the real package, failing without harm."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.runs.summary import Summary
from accel.runs.wandb_upload import WandbUpload

ROOT = Path(__file__).resolve().parents[3]
has_wandb = importlib.util.find_spec("wandb") is not None
needs_wandb = pytest.mark.skipif(not has_wandb, reason="runs where accel-rl[wandb] is installed")
OPTIONS = (
    "--env CartPole-v1 --actors 0 --envs-per-actor 8 --network mlp:16x1 --total-env-steps 2000 --name run --results-dir"
)


def train(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "accel", "train", *OPTIONS.split(), str(directory), "--wandb", "a-project"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=directory,
        env={**own, "PYTHONPATH": path, "HOME": str(directory), **environment},
    )  # fmt: skip


@pytest.mark.skipif(has_wandb, reason="runs where accel-rl[wandb] is not installed")
def test_a_missing_package_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    done = train(tmp_path)
    assert done.returncode != 0 and not done.stdout
    assert done.stderr == "accel: wandb = 'a-project' needs wandb: pip install 'accel-rl[wandb]'\n"
    assert list(tmp_path.iterdir()) == []


@needs_wandb
@pytest.mark.long
def test_an_offline_run_keeps_its_curves_for_later(tmp_path: Path) -> None:
    done = train(tmp_path, WANDB_MODE="offline")
    assert done.returncode == 0 and "Weights & Biases" not in done.stderr
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    for name in (b"returns/mean", b"losses/value", b"speed/env_steps_per_s", b"env_steps", b"a-project", b"reason"):
        assert name in content, name


@pytest.mark.long
@needs_wandb
@pytest.mark.parametrize(
    ("environment", "told"),
    [({}, "no API key; run wandb login"), ({"WANDB_MODE": "nonsense"}, "nothing more goes to Weights & Biases")],
)
def test_training_goes_on_when_nothing_can_be_sent(tmp_path: Path, environment: dict[str, str], told: str) -> None:
    done = train(tmp_path, **environment)
    assert done.returncode == 0 and (done.stdout + done.stderr).count(told) == 1
    assert Summary.read(tmp_path / "run").finished


@pytest.mark.skipif(has_wandb, reason="runs where accel-rl[wandb] is not installed")
def test_whatever_goes_wrong_ends_the_upload_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "starts.jsonl").write_text("{}\n")
    with caplog.at_level(logging.WARNING, "accel"):
        upload = WandbUpload("p", tmp_path, {})
        for step in range(20_000):
            upload.record(step, {"loss": 1.0})
        upload.finish({"return_mean": 1.0}, lambda: None, 60.0)
    assert [record.message for record in caplog.records] == [
        "nothing more goes to Weights & Biases: No module named 'wandb'; training goes on"
    ]
