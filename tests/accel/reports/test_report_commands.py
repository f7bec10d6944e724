"""``accel report`` and ``accel compare`` on run directories: what is found, refused, marked and written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import accel
from accel.cli import main
from accel.errors import ReportError, RunDirectoryError
from accel.reports.analysis import Choices
from accel.reports.caveats import BUDGET, ENVIRONMENT
from accel.reports.reporting import find_runs, load_run_record
from accel.reports.samples import run_to_json
from tests.accel.reports.recorded_run import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    for seed in range(2):
        write_run(root / "fp32", f"fp32-{seed}", seed=seed, compressor="fp32", records=40 + 2 * seed)
        write_run(root / "int8", f"int8-{seed}", seed=seed, records=20 + seed, steps_per_s=20_000.0, decisions=3)
    return root


def test_compare_groups_seeds_on_both_sides_and_marks_another_machine(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    base = runs / "fp32"
    for path in (runs / "int8").iterdir():
        machine = (path / "machine.json").read_text()
        (path / "machine.json").write_text(machine.replace("Test CPU", "Other CPU"))
    words = [str(base / "fp32-0"), str(base / "fp32-1"), str(runs / "int8"), "--out", str(out), "--label", "full"]
    assert main(["compare", *words]) == 2
    assert "1 labels for 2 configurations: give one for each, in this order: fp32; int8" in capsys.readouterr().err
    assert main(["compare", *words, "small"]) == 2
    assert "another machine: Other CPU" in capsys.readouterr().err
    assert main(["compare", *words, "small", "--force"]) == 0
    value = json.loads((out / "report.json").read_text())
    assert value["baseline"] == "full" and [group["label"] for group in value["groups"]] == ["full", "small"]
    assert [len(group["runs"]) for group in value["groups"]] == [2, 2]
    assert value["comparisons"][0]["speedups"]["env_steps_per_s"]["ratio"]["estimate"] == pytest.approx(2.0)
    page = (out / "index.html").read_text()
    for text in (
        *("No loss of return", "Test CPU", "accel train --preset quickstart", "12 % more effective experience"),
        "Not comparable: another machine",
    ):
        assert text in page


def test_a_report_lies_in_its_run_tells_damage_and_nothing_acts_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs", "a\x1b[2J", env="Env\x1b[31m\n-v1\x07", decisions=1)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"env_steps": 99')
    with (run / "decisions.jsonl").open("ab") as file:
        file.write(b"??\n")
    (run / "machine.json").write_text("{")
    (run / "summary.json").unlink()
    assert main(["report", str(run)]) == 0
    assert main(["report", str(run)]) == main(["report", str(run / "none\x1b[0m")]) == 2
    said = capsys.readouterr()
    assert "--overwrite" in said.err
    page, markdown = ((run / "report" / name).read_text() for name in ("index.html", "report.md"))
    assert not any(control in text for text in (said.out, said.err, page, markdown) for control in "\x1b\x07")
    assert "Env[31m -v1" in said.out
    for text in (
        "1 damaged or half-written",
        "1 damaged lines of decisions",
        "machine.json cannot be read",
        "not finished",
    ):
        assert text in page


def test_bad_input_is_named_and_nothing_is_written(runs: Path, tmp_path: Path) -> None:
    one, other = runs / "fp32" / "fp32-0", runs / "int8" / "int8-0"
    out = tmp_path / "out"
    with pytest.raises(ReportError, match="is no directory"):
        accel.report([tmp_path / "missing"], out=out)
    with pytest.raises(ReportError, match="neither a run"):
        accel.report([tmp_path], out=out)
    with pytest.raises(ReportError, match="at least one run"):
        accel.report([], out=out)
    with pytest.raises(ReportError, match="compared with itself"):
        accel.compare(one, [other, one], out=out)
    with pytest.raises(ReportError, match="every run has the baseline's configuration"):
        accel.compare(one, [runs / "fp32" / "fp32-1"], out=out)
    with pytest.raises(ReportError, match="nothing to compare"):
        accel.compare(runs / "fp32", [runs / "fp32" / "fp32-1"], out=out)
    write_run(runs / "fp32", "wide", network="mlp:512x3")
    with pytest.raises(ReportError, match="the baseline holds several configurations"):
        accel.compare(runs / "fp32", [other], out=out)
    (other / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(ReportError, match=r"no metrics yet \(1 damaged lines"):
        accel.compare(one, [other], out=out)
    (other / "metrics.jsonl").unlink()
    with pytest.raises(ReportError, match="no metrics yet"):
        accel.compare(one, [other], out=out)
    (other / "config.toml").write_text("= 1")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        accel.report([other], out=out)
    assert not out.exists()


def test_what_runs_are_compared_by_are_their_options() -> None:
    assert {*ENVIRONMENT, *BUDGET} <= set(accel.TrainConfig().options())


@pytest.mark.long
def test_a_run_without_records_is_left_out_and_told(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_run(runs / "int8", "empty\x1b[31m", records=0)
    (write_run(runs / "int8", "new") / "metrics.jsonl").unlink()
    (write_run(runs / "int8", "spoilt") / "config.toml").write_text("= 1")
    out = tmp_path / "out"
    written = accel.report([runs / "int8"], out=out)
    page = written.page.read_text()
    assert page.count("left out: ") == 3
    assert "new has no metrics yet" in page and "spoilt/config.toml cannot be read" in page
    value = json.loads((out / "report.json").read_text())
    assert [run["name"] for group in value["groups"] for run in group["runs"]] == ["int8-0", "int8-1"]
    accel.compare(runs / "fp32", [runs / "int8"], out=tmp_path / "compared")
    with pytest.raises(ReportError, match="has no metrics yet"):
        accel.report([runs / "int8" / "new"], out=tmp_path / "none")


def test_returns_of_different_environments_share_no_axis(runs: Path, tmp_path: Path) -> None:
    write_run(runs / "int8", "other", env="Acrobot-v1")
    with pytest.raises(ReportError, match=r"different environments .*CartPole-v1: int8-0, int8-1; Acrobot-v1: other"):
        accel.report([runs / "int8"], out=tmp_path / "out")
    merged = Choices(group_by=("compressor",))
    with pytest.raises(ReportError, match="int8: another environment: env is 'CartPole-v1' and 'Acrobot-v1'"):
        accel.compare(runs / "fp32", [runs / "int8"], out=tmp_path / "out", choices=merged)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_kept_samples_are_read_as_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    samples = {
        path.name: {**run_to_json(load_run_record(path)), "variant": path.parent.name}
        for path in find_runs([runs / "fp32", runs / "int8"])
    }
    (kept / "runs.json.gz").write_bytes(gzip.compress(json.dumps({"runs": samples}).encode()))
    for name in (kept, kept / "runs.json.gz"):
        assert [path.name for path in find_runs([name])] == ["fp32-0", "fp32-1", "int8-0", "int8-1"]
    out = tmp_path / "out"
    assert main(["compare", str(kept / "fp32-0"), str(kept), "--out", str(out)]) == 0
    value = json.loads((out / "report.json").read_text())
    assert value["baseline"] == "fp32"
    assert [len(group["runs"]) for group in value["groups"]] == [2, 2]
    assert value["comparisons"][0]["speedups"]["env_steps_per_s"]["ratio"]["estimate"] == pytest.approx(2.0)
    assert main(["report", str(kept / "int8-1"), "--out", str(tmp_path / "one")]) == 0
    assert main(["report", str(kept / "int8-9")]) == 2
    assert "is no directory" in capsys.readouterr().err
    for content in ("{", "[]", '{"runs": {"../x": {}}}', '{"runs": {"a": 1}}'):
        (kept / "runs.json.gz").write_bytes(gzip.compress(content.encode()))
        with pytest.raises(ReportError, match="holds no samples of runs"):
            accel.report([kept], out=tmp_path / "broken")
    (kept / "runs.json.gz").write_bytes(gzip.compress(b'{"runs": {"a": {}}}'))
    with pytest.raises(ReportError, match="holds no samples of a run"):
        accel.report([kept], out=tmp_path / "broken")
