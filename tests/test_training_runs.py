"""The runner of training cases: runs what is missing once, continues, and writes nothing without having run."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load

PROJECT = Path(__file__).parents[1]
RUNNER = PROJECT / "scripts/evidence/training_runs.py"
TABLE = """
[variants]
fp32 = ["--compressor", "fp32"]
[case.tiny]
title = "Tiny"
arguments = ["--actors", "0", "--total-env-steps", "2000", "--log-interval-s", "0.05"]
seeds = 1
figure = "return_steps"
[case.tiny.variants]
fp32 = {}
broken = ["--env", "NoSuchEnv-v0"]
[case.elsewhere]
needs = ["module:no_such_module"]
seeds = 1
variants = ["fp32"]
"""


def runner() -> ModuleType:
    return load("evidence/training_runs.py")


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
    assert "| fp32 | 1 | 0 |" in page and "Not measured: broken-s0: failed with status" in page
    lines = page.splitlines()
    assert max(len(line) for line in lines if not line.startswith("|")) <= 140 and len(lines) <= 60
    assert (out / "return_steps.svg").is_file()
    shutil.rmtree(tmp_path / "runs")
    (out / "README.md").write_text("")
    again = call(cwd=tmp_path)
    assert "tiny/fp32-s0: " not in again.stdout, "its samples are kept"
    assert (out / "README.md").read_text() == "", "no run was added"
    call("--collect-only", cwd=tmp_path)
    assert "| fp32 | 1 | 0 |" in (out / "README.md").read_text()


def test_variants_are_interleaved_and_have_the_arguments_of_their_name(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace("fp32 = {}", "fp32 = { seeds = 2 }"))
    module = runner()
    case = module.read_cases(tmp_path / "table.toml")["tiny"]
    order = [module.run_name(variant, seed) for variant, seed in case.order()]
    assert order == ["fp32-s0", "broken-s0", "fp32-s1"]
    assert case.variants[0].arguments == ("--compressor", "fp32")


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("seeds = 1", "sedes = 7", "is no table of cases"),
        ("seeds = 1", 'baseline = "none"', "is no table of cases"),
        ("seeds = 1", 'also_against = "none"', "is no table of cases"),
        ("seeds = 1", 'seeds = 1\nlanes = [["fp32"], ["fp32"]]', "fp32, broken must be in one lane each"),
        ('["fp32"]', '["none"]', "is no table of cases"),
        ("fp32 = {}", "none = {}", "is no table of cases"),
    ],
)
def test_a_damaged_table_is_refused(right: str, wrong: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace(right, wrong, 1))
    with pytest.raises(SystemExit, match=reason):
        runner().read_cases(tmp_path / "table.toml")


@pytest.mark.long
def test_help_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    assert call("--help", cwd=tmp_path).returncode == 0
    assert call("--list", cwd=tmp_path).stdout.startswith("tiny: Tiny\n  0/1 fp32: accel train --actors 0")
    assert [path.name for path in tmp_path.iterdir()] == ["table.toml"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpu-halfcheetah", "gpu-scaling", "gpu-central", "gpu-central-images", "gpu-device"])
def test_what_needs_a_gpu_is_rehearsed_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Each variant once, with a small network and a few steps; the page is drawn."""
    case = runner().read_cases(PROJECT / "scripts/evidence/cases.toml")[name]
    small = {
        "cuda": "cpu",
        "mlp:2048x3": "mlp:16x1",
        "1000000": "9000",
        "10000000": "9000",
        "100000000": "9000",
        "18": "2",
        "25": "2",
        "bf16": "none",
        "12": "2",
        "mlp:512x3": "mlp:16x1",
        "impala-resnet": "impala-resnet:0.25",
    }
    lines = [f"[case.{name}]", f"baseline = {case.baseline!r}", f"lanes = {list(map(list, case.lanes))}", "seeds = 1"]
    lines += [
        f"arguments = {[small.get(word, word) for word in case.arguments]}",
        f"needs = {[need for need in case.needs if need != 'cuda']}",
    ]
    variants = [(v.name, [small.get(word, word) for word in v.arguments]) for v in case.variants]
    lines += [f"[case.{name}.variants]", *(f"{name} = {words}" for name, words in variants)]
    (tmp_path / "table.toml").write_text("\n".join(lines))
    done = call(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / name / "README.md").read_text()
    assert all(f"| {variant.name} | 1 |" in page for variant in case.variants)
