"""``scripts/evidence/export_table.py``: one file a row, of no two policies, refusals kept, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accel.trained_runs import make_run

PROJECT = Path(__file__).parents[2]


def table(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "scripts/evidence/export_table.py"), *map(str, words)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_rows_of_two_environments_stand_beside_each_other_and_are_measured_once(tmp_path: Path) -> None:
    cartpole = make_run(tmp_path / "a", env="CartPole-v1", network="mlp:16x1", calibration_size=32)
    pendulum = make_run(tmp_path / "b", env="Pendulum-v1", network="mlp:16x1", calibration_size=32)
    assert cartpole.name == pendulum.name
    out = tmp_path / "out"
    options: list[str | Path] = ["--out", out, "--schemes", "fp32", "int4", "--formats", "onnx", "c"]
    done = table(cartpole, pendulum, *options, "--budget-s", "0")
    assert done.returncode == 3 and "8 rows are left: give the same command again" in done.stdout, done.stderr
    done = table(cartpole, *options)
    assert done.returncode == 0, done.stderr
    first = {path.name: path.read_bytes() for path in (out / "rows").iterdir()}
    assert len(first) == 4
    done = table(cartpole, pendulum, *options)
    assert done.returncode == 0, done.stderr
    rows = {path.name: json.loads(path.read_text()) for path in (out / "rows").iterdir()}
    assert len(rows) == 8 and all((out / "rows" / name).read_bytes() == content for name, content in first.items())
    for name, row in rows.items():
        assert name.startswith(row["env"]) and row["acted"] == "greedy"
        if (row["scheme"], row["format"]) == ("int4", "c"):
            assert "C has no blocks of 4-bit weights" in row["refused"]
            continue
        returns = row["report"]["returns"]
        assert len(returns["model"]["returns"]) == 20 and returns["model"]["worst"] == min(returns["model"]["returns"])
    check_page((out / "README.md").read_text(), rows["CartPole-v1-run-fp32-c.json"])
    other = make_run(tmp_path / "c", env="CartPole-v1", network="mlp:8x1")
    done = table(other, *options)
    assert done.returncode == 1 and "is of another policy" in done.stderr and "'network': 'mlp:16x1'" in done.stderr
    done = table(cartpole, other, "--out", tmp_path / "new", "--schemes", "fp32", "--formats", "onnx")
    assert done.returncode == 1 and "would both be CartPole-v1-run-fp32-onnx.json" in done.stderr


def check_page(page: str, c_row: dict[str, dict[str, dict[str, dict[str, int]]]]) -> None:
    compiled = c_row["contract"]["target"]["compiled"]
    memory = f"| {compiled['code_bytes']:,} / {compiled['static_bytes']:,} / {compiled['stack_bytes']:,} |"
    assert memory in page and "6 rows were exported, 2 refused." in page
    assert "| CartPole-v1 | `int4` | c | refused: format c cannot take operator" in page
    assert "## What pays" in page and "## What does not" in page and "14 to 18×" in page
