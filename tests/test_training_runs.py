"""The runner of training cases: runs what is missing once, continues, and writes nothing without having run."""

from __future__ import annotations

import gzip
import itertools
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
[case.tiny]
title = "Tiny"
arguments = ["--actors", "0", "--total-env-steps", "2000", "--log-interval-s", "0.05"]
seeds = 1
figure = "return_steps"
episodes = 2
[case.tiny.variants]
fp32 = ["--compressor", "fp32"]
broken = ["--env", "NoSuchEnv-v0"]
elsewhere = { needs = ["module:no_such_module"] }
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
    assert kept["fp32-s0"]["played"]["scheme"] == "fp32" and len(kept["fp32-s0"]["played"]["returns"]) == 2
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


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        *((line, "is no table of cases") for line in ("frist_seed = 7", 'baseline = "none"', 'also_against = "none"')),
        ('seeds = 1\nlanes = [["fp32"], ["fp32", "broken"]]', "fp32, elsewhere must be in one lane each"),
    ],
)
def test_a_damaged_table_is_refused(wrong: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace("seeds = 1", wrong, 1))
    with pytest.raises(SystemExit, match=told):
        runner().read_cases(tmp_path / "table.toml")


@pytest.mark.long
def test_lanes_run_beside_each_other_and_each_runs_one_at_a_time(tmp_path: Path) -> None:
    """The programs fail, as nothing is kept of them but when they ran."""
    (tmp_path / "noted.py").write_text(
        "import pathlib, sys, time\n"
        "began = time.monotonic()\n"
        "time.sleep(1.0)\n"
        "name = sys.argv[sys.argv.index('--name') + 1]\n"
        f"pathlib.Path({str(tmp_path)!r}, name + '.times').write_text(f'{{began}} {{time.monotonic()}}')\n"
        "sys.exit(1)\n"
    )
    head = '[case.laned]\nseeds = 2\nlanes = [["a"], ["b", "c"]]\n[case.laned.variants]\n'
    variants = (f'{name} = {{ program = ["{tmp_path}/noted.py"] }}' for name in "abc")
    (tmp_path / "table.toml").write_text(head + "\n".join(variants))
    done = call(cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    spans = {path.stem: tuple(map(float, path.read_text().split())) for path in tmp_path.glob("*.times")}
    assert sorted(spans) == ["a-s0", "a-s1", "b-s0", "b-s1", "c-s0", "c-s1"]
    assert spans["a-s0"][0] < spans["b-s0"][1] and spans["b-s0"][0] < spans["a-s0"][1], "lanes overlap"
    lane = sorted(span for name, span in spans.items() if name[0] in "bc")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(lane)), "one at a time"


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpu-halfcheetah", "gpu-scaling", "gpu-device"])
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
    }
    lines = [f"[case.{name}]", f"baseline = {case.baseline!r}", f"lanes = {list(map(list, case.lanes))}", "seeds = 1"]
    lines += [f"arguments = {[small.get(word, word) for word in case.arguments]}", f"[case.{name}.variants]"]
    lines += [f"{v.name} = {{ arguments = {list(v.arguments)}, needs = ['module:mujoco'] }}" for v in case.variants]
    (tmp_path / "table.toml").write_text("\n".join(lines))
    done = call(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / name / "README.md").read_text()
    assert all(f"| {variant.name} | 1 |" in page for variant in case.variants)
