"""The script behind results/actor_time: slices of measurement, trained policies under each scheme, rows to a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accel.trained_runs import make_run

PROJECT = Path(__file__).parents[2]


def measure(output: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROJECT / "scripts/evidence/actor_time.py", f"--output={output}", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cartpole"), network="mlp:16x1", env="CartPole-v1")


@pytest.mark.long
def test_slices_go_on_where_they_stopped(run: Path, tmp_path: Path) -> None:
    chosen = (f"--run={run}", "--episodes=20", "--only", "trained-*-fp32", "trained-*run-int8")
    nothing = measure(tmp_path, "--budget-s=1", *chosen)
    assert nothing.returncode == 3
    assert "2 cases are left" in nothing.stdout
    assert not list(tmp_path.rglob("*.json"))
    everything = measure(tmp_path, *chosen)
    assert everything.returncode == 0, everything.stderr
    rows = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(rows) == 2
    again = measure(tmp_path, "--budget-s=1", *chosen)
    assert again.returncode == 0, again.stderr
    assert "==" not in again.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == rows
    assert "done trained-" in measure(tmp_path, *chosen, "--list").stdout


@pytest.mark.long
def test_a_trained_policy_stands_beside_its_full_precision(run: Path, tmp_path: Path) -> None:
    done = measure(tmp_path, f"--run={run}", "--only", "trained-*-fp32", "trained-*run-prune-0.5-int8")
    assert done.returncode == 0, done.stderr
    full, pruned = sorted((json.loads(p.read_text())[0] for p in tmp_path.rglob("*.json")), key=lambda row: row["kl"])
    assert (full["scheme"], pruned["scheme"]) == ("fp32", "prune(0.5)+int8")
    assert full["kl"] < 1e-6 and full["ess"] > 1 - 1e-6 and full["greedy_agreement"] == 1
    assert pruned["kl"] > 0 and 0 < pruned["ess"] < 1
    assert len(full["returns"]) == len(pruned["returns"]) == 48
    assert pruned["actions"] == full["actions"] == "greedy"
    difference = sum(pruned["returns"]) / 48 - sum(full["returns"]) / 48
    line = next(line for line in (tmp_path / "README.md").read_text().splitlines() if "prune(0.5)+int8 |" in line)
    assert f"| {difference:+.4g} |" in line


def test_a_refused_scheme_is_a_row_that_says_why(tmp_path: Path) -> None:
    lstm = make_run(tmp_path / "runs", network="mlp:8x1+lstm:8", env="CartPole-v1")
    done = measure(tmp_path, f"--run={lstm}", "--episodes=20", "--only", "trained-*-distill-64x2-int8")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.rglob("trained-*.json")
    assert "refused" in json.loads(path.read_text())[0]
    assert "| distill(64x2)+int8 | refused |" in (tmp_path / "README.md").read_text()


def test_what_cannot_be_measured_is_told_before_anything_is(run: Path, tmp_path: Path) -> None:
    assert "no run's directory" in measure(tmp_path, f"--run={tmp_path / 'none'}").stderr
    assert "no case is called policies" in measure(tmp_path, "--only", "policies").stderr
    few = measure(tmp_path, f"--run={run}", "--episodes=3", "--only", "trained-*-fp32")
    assert "--episodes 3" in few.stderr and few.returncode not in (0, 3)
