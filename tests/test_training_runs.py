"""The runner of training cases: runs what is missing once, continues, and writes nothing without having run."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[1]
RUNNER = PROJECT / "scripts/evidence/training_runs.py"
TABLE = """
[case.tiny]
title = "Tiny"
arguments = ["--actors", "0", "--total-env-steps", "2000", "--log-interval-s", "0.05"]
seeds = 1
figure = "return_steps"
[case.tiny.variants]
fp32 = ["--compressor", "fp32"]
broken = ["--env", "NoSuchEnv-v0"]
elsewhere = { needs = ["module:no_such_module"] }
"""


def runner() -> ModuleType:
    """``scripts/evidence/training_runs.py``, which is not in a package."""
    spec = importlib.util.spec_from_file_location("training_runs", RUNNER)
    assert spec is not None and spec.loader is not None
    module = sys.modules["training_runs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    options = ("--table", "table.toml", "--runs-dir", "runs", "--out", "out")
    command = [sys.executable, str(RUNNER), *options, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.mark.long
def test_a_case_is_run_once_and_its_gaps_are_reported(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    assert call("--budget-s", "1", cwd=tmp_path).returncode == 3
    assert not (tmp_path / "out").exists(), "nothing was run, so nothing is written"
    first = call(cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    assert "NoSuchEnv" in first.stdout and "this machine lacks module:no_such_module" in first.stdout
    out = tmp_path / "out" / "tiny"
    kept = json.loads(gzip.decompress((out / "runs.json.gz").read_bytes()))["runs"]
    assert list(kept) == ["fp32-s0"]
    assert kept["fp32-s0"]["columns"]["env_steps"][-1] >= 2000
    assert kept["fp32-s0"]["machine"]["command"][:2] == ["accel", "train"]
    page = (out / "README.md").read_text()
    assert "| fp32 | 1 | 0 |" in page and "elsewhere-s0: this machine lacks module:no" in page
    assert max(map(len, page.splitlines())) <= 140 and len(page.splitlines()) <= 60
    assert (out / "return_steps.svg").is_file()
    shutil.rmtree(tmp_path / "runs")
    (out / "README.md").write_text("")
    again = call(cwd=tmp_path)
    assert "fp32-s0: " not in again.stdout, "its samples are kept"
    assert (out / "README.md").read_text() == "", "no run was added"
    call("--collect-only", cwd=tmp_path)
    assert "| fp32 | 1 | 0 |" in (out / "README.md").read_text()


def test_seeds_count_from_the_first_one_and_variants_are_interleaved(tmp_path: Path) -> None:
    table = TABLE.replace("seeds = 1", "first_seed = 7\nseeds = 2").replace("elsewhere = {", "elsewhere = { seeds = 1,")
    (tmp_path / "table.toml").write_text(table)
    module = runner()
    case = module.read_cases(tmp_path / "table.toml")["tiny"]
    order = [module.run_name(variant, seed) for variant, seed in case.order()]
    assert order == ["fp32-s7", "broken-s7", "elsewhere-s7", "fp32-s8", "broken-s8"]


@pytest.mark.parametrize("wrong", ["frist_seed = 7", 'baseline = "none"', 'also_against = "none"'])
def test_a_damaged_table_is_refused(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace("seeds = 1", wrong, 1))
    with pytest.raises(SystemExit, match="is no table of cases"):
        runner().read_cases(tmp_path / "table.toml")


def test_help_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    assert call("--help", cwd=tmp_path).returncode == 0
    assert call("--list", cwd=tmp_path).stdout.startswith("tiny: Tiny\n  0/1 fp32: accel train --actors 0")
    assert [path.name for path in tmp_path.iterdir()] == ["table.toml"]
