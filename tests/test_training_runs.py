"""The runners behind results: go on where they stopped, keep samples, say what was not measured; ablations train."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
TABLE = """
[case.tiny]
title = "Tiny <b>"
arguments = ["--actors", "0", "--total-env-steps", "2000", "--log-interval-s", "0.05"]
seeds = 1
[case.tiny.variants]
fp32 = ["--compressor", "fp32"]
broken = ["--env", "NoSuchEnv-v0"]
elsewhere = { needs = ["module:no_such_module"] }
"""


def call(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=110)


def test_a_table_is_run_once_and_its_gaps_are_told(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    runner = PROJECT / "scripts/evidence/training_runs.py"
    options = ("--table", "table.toml", "--runs-dir", "runs", "--results-dir", "results")
    assert call(runner, *options, "--budget-s", "1", cwd=tmp_path).returncode == 3
    first = call(runner, *options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    results = tmp_path / "results" / "tiny"
    kept = json.loads((results / "runs.json").read_text())["runs"]
    assert list(kept) == ["fp32-s0"]
    assert kept["fp32-s0"]["columns"]["env_steps"][-1] >= 2000
    assert kept["fp32-s0"]["machine"]["command"][:2] == ["accel", "train"]
    summary = (results / "README.md").read_text()
    assert "Tiny &lt;b&gt;" in summary
    assert "this machine lacks module:no\\_such\\_module" in summary
    assert "failed with status" in summary
    assert "NoSuchEnv" in summary
    assert (results / "report" / "index.html").is_file()
    shutil.rmtree(tmp_path / "runs")
    again = call(runner, *options, "--collect-only", cwd=tmp_path)
    assert again.returncode == 3
    assert "fp32-s0:" not in again.stdout


@pytest.mark.parametrize("variant", ["importance-weights", "full-precision"])
def test_ablations_train(variant: str, tmp_path: Path) -> None:
    script = PROJECT / "scripts/ablation/correction.py"
    corrector = "none" if variant == "importance-weights" else "vtrace"
    options = ("--actors", "0", "--total-env-steps", "1500", "--results-dir", tmp_path, "--name", "a")
    done = call(script, variant, "train", *options, "--corrector", corrector, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["env_steps"] >= 1500
