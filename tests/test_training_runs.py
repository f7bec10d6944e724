"""The runners behind results: go on where they stopped, keep samples, say what was not measured; ablations train."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from accel.reports.runs import Run
from accel.reports.series import Series

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


def conditions() -> ModuleType:
    """``scripts/evidence/training_runs.py``, which is not in a package."""
    name = "training_runs"
    spec = importlib.util.spec_from_file_location(name, PROJECT / f"scripts/evidence/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def made(*order: tuple[str, float], wall_s: float = 8.0, **machine: object) -> list[Any]:
    """Runs of these variants, ended at these Unix times."""
    module = conditions()
    found = []
    for i, (variant, ended_s) in enumerate(order):
        summary = {"wall_s": wall_s, "actor_s": {"env": 2.0}, "env_steps_per_s": 1e6, "training_s": 1.0}
        run = Run(f"{variant}-{i}", "/r", {}, {"commit": "abc", **machine}, summary, Series({}, 0))
        load = [{"unix_time_s": ended_s, "load_average_before": 1.0 + i}]
        found.append(module.conditions_of(run, {"variant": variant, "summary": summary, "load": load}))
    return found


def call(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True)


@pytest.mark.long
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
    assert "All runs are of one variant; one at a time." in summary
    assert "load average before | environment, µs/step" in summary
    assert "bottleneck" in summary and "actors wait" in summary
    assert "NoSuchEnv" in summary
    assert (results / "report" / "index.html").is_file()
    shutil.rmtree(tmp_path / "runs")
    again = call(runner, *options, "--collect-only", cwd=tmp_path)
    assert again.returncode == 3
    assert "fp32-s0:" not in again.stdout


def test_the_page_of_a_kept_case_is_written_anew(tmp_path: Path) -> None:
    """From its samples alone, over an earlier report of which a part is lost."""
    case = tmp_path / "impact"
    shutil.copytree(PROJECT / "results" / "impact", case)
    (case / "report" / "report.json").unlink(missing_ok=True)
    (case / "report" / "figures" / "stale.svg").write_text("")
    script, table = PROJECT / "scripts/evidence/training_runs.py", PROJECT / "scripts/ablation/cases.toml"
    done = call(script, "impact", "--table", table, "--results-dir", tmp_path, "--collect-only", cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert (case / "report" / "report.json").is_file() and not (case / "report" / "figures" / "stale.svg").exists()
    assert "Raw samples: `runs.json`." in (case / "README.md").read_text()


def test_seeds_count_from_the_first_one_and_variants_are_interleaved(tmp_path: Path) -> None:
    table = TABLE.replace("seeds = 1", "first_seed = 7\nseeds = 2").replace("elsewhere = {", "elsewhere = { seeds = 1,")
    (tmp_path / "table.toml").write_text(table)
    case = conditions().read_cases(tmp_path / "table.toml")["tiny"]
    order = [conditions().run_name(variant, seed) for variant, seed in case.order()]
    assert order == ["fp32-s7", "broken-s7", "elsewhere-s7", "fp32-s8", "broken-s8"]


def test_a_table_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace("seeds = 1", "frist_seed = 7", 1))
    with pytest.raises(SystemExit, match="case tiny: unknown frist_seed"):
        conditions().read_cases(tmp_path / "table.toml")


def test_how_runs_were_made_is_read_from_what_was_kept() -> None:
    text = conditions().conditions_text
    interleaved = made(("a", 10.0), ("b", 20.0), ("a", 30.0), ("b", 40.0))
    assert text(interleaved).startswith("Variants were run interleaved: no run followed one of its own variant; one at")
    assert "was 1.00 to 4.00, 2.50 in the median" in text(interleaved)
    assert text(interleaved).endswith("The runs are of one commit, none with uncommitted changes.")
    in_blocks = made(("a", 10.0), ("b", 30.0), ("a", 20.0), ("b", 40.0), dirty=True)
    assert "not run strictly interleaved: 2 of 4 runs followed one of their own; one at a time." in text(in_blocks)
    assert text(in_blocks).endswith("4 of 4 with uncommitted changes.")
    at_once = made(("a", 10.0), ("b", 12.0))
    assert "1 of them began before another had ended" in text(at_once)
    two = interleaved[:1] + made(("b", 20.0), commit="def")
    assert "of 2 commits" in text(two)
    resumed = [*interleaved, replace(interleaved[0], ended_s=(50.0, 60.0), variant="b")]
    assert "one at a time is not known, as 1 of 5 were resumed" in text(resumed)
    unknown = [conditions().conditions_of(interleaved[0].run, {"variant": "a", "summary": None})]
    assert text(unknown).startswith("When 1 of 1 runs were made is not known")
    assert "load was not noted" in text(unknown)
    table = conditions().conditions_table(in_blocks)
    assert [row[1] for row in table.rows] == ["a", "a", "b", "b"]
    assert table.rows[0][3:5] == ("1.00", "2")


@pytest.mark.long
def test_a_scripts_own_start_up_is_in_no_comparison(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom accel.cli import main\nsys.exit(main(sys.argv[1:]))\n")
    (tmp_path / "table.toml").write_text(
        TABLE.split("broken")[0] + f'scripted = {{ arguments = ["--compressor", "fp32"], program = ["{script}"] }}\n'
    )
    runner = PROJECT / "scripts/evidence/training_runs.py"
    options = ("--table", "table.toml", "--runs-dir", "runs", "--results-dir", "results")
    done = call(runner, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "results" / "tiny" / "README.md").read_text()
    assert "| Throughput | scripted |" in summary
    assert "| Whole command | scripted |" not in summary
    assert "The time of the whole command is left out for scripted" in summary


@pytest.mark.parametrize("variant", ["importance-weights", pytest.param("full-precision", marks=pytest.mark.long)])
def test_ablations_train(variant: str, tmp_path: Path) -> None:
    script = PROJECT / "scripts/ablation/correction.py"
    corrector = "none" if variant == "importance-weights" else "vtrace"
    options = ("--actors", "0", "--total-env-steps", "1500", "--results-dir", tmp_path, "--name", "a")
    done = call(script, variant, "train", *options, "--corrector", corrector, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["env_steps"] >= 1500
