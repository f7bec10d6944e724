"""The written report: whole or not at all, one page without outside help, and nothing untrusted acted on."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from accel.errors import ReportError
from accel.monitor.decisions import Decision
from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.document import WrittenReport, check_target, to_json, write_report
from accel.reports.runs import Run
from accel.reports.samples import run_from_json, run_to_json
from accel.reports.series import Series
from accel.reports.tables import differing_table, mismatch_table, results_table, runs_table, speedup_table
from accel.reports.wording import number
from tests.accel.reports.recorded_run import run_record

EVIL = '</style></title><script>alert("x")</script><img src=x onerror=alert(1)> $\\frac{ & | ` \U0001f600'
EVIL += "\x1b[31m\x9b2J\u202e"
VOID = {"meta", "br", "hr", "img"}


def make_run(name: str, scheme: str, seed: int, speed: float, note: str = "fine") -> Run:
    rng = np.random.default_rng(seed)
    seconds = np.arange(1.0, 31.0) / speed
    columns = {
        "elapsed_s": seconds,
        "env_steps": np.arange(1.0, 31.0) * 1000,
        "episodes": np.arange(1.0, 31.0) * 100,
        "return_mean": np.linspace(0.0, 100.0, 30) + rng.normal(0, 1, 30),
        "lag_mean": rng.random(30),
        "length_mean": np.linspace(10.0, 90.0, 30),
        "entropy": np.linspace(0.7, 0.1, 30),
        "explained_variance": np.linspace(-5.0, 0.9, 30),
        "policy_loss": rng.normal(0, 1, 30),
        "value_loss": rng.random(30),
        "total_ess": np.full(30, 0.95),
        "total_kl": np.full(30, 0.02),
        "compression_ess": np.full(30, 0.9),
        "compression_kl": np.full(30, 0.0125),
        f"compression_ess/{scheme}": np.full(30, 0.9),
        f"compression_kl/{scheme}": np.full(30, 0.0125),
    }
    summary = {
        "reason": note,
        "training_s": float(seconds[-1]),
        "wall_s": float(seconds[-1]) + 3,
        "env_steps_per_s": 30_000 / float(seconds[-1]),
        "learner_s": {"forward": 1.0, "backward": 2.0, "wait": 0.5},
        "actor_s": {"env": 10.0, "policy": 20.0 / speed, "load": 2.0, "wait": 5.0, f"unheard of {note}": 1.0},
    }
    config = {"env": "Env-v1", "compressor": scheme, "seed": seed, "wrapper": [note], "total_env_steps": 30_000}
    config[f"option {note}"] = note
    machine = {"cpu": "CPU", "usable_cores": 2, "gpus": [], "commit": "abc", "command": ["accel", "train", note]}
    decisions = [Decision(1.0, 5000 * (i + 1), "better", "fp32", scheme, note, {}) for i in range(3)]
    return run_record(columns, name=name, machine=machine, summary=summary, decisions=decisions, notes=[note], **config)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    runs = [make_run(f"{EVIL}-{s}", "fp32", s, 1.0, EVIL) for s in range(3)]
    runs += [make_run(f"int8-{s}", f"int8{EVIL}", s, 2.0, EVIL) for s in range(3)]
    return analyse(runs, Choices(), runs[0])


@pytest.fixture(scope="module")
def written(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> WrittenReport:
    return write_report(analysis, tmp_path_factory.mktemp("out") / "page", written=EVIL)


@pytest.fixture(scope="module")
def report(written: WrittenReport) -> Path:
    return written.directory


@pytest.fixture(scope="module")
def bare() -> Analysis:
    """One running seed without a finished episode, of which there is little to draw."""
    run = make_run("a", "int8", 0, 1.0)
    columns = {name: run.series.columns[name] for name in ("elapsed_s", "env_steps", "lag_mean")}
    return analyse([replace(run, series=Series(columns, 30, 2), summary=None, decisions=(), machine={})], Choices())


class Elements(HTMLParser):
    """Every element, and whether they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    assert elements.open == []
    return elements


@pytest.mark.slow
def test_untrusted_text_stays_text(report: Path) -> None:
    page = (report / "index.html").read_text()
    elements = parsed(page)
    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form"}
    assert not [name for _, attributes in elements.seen for name in attributes if name.startswith("on")]
    assert "&lt;script&gt;" in page
    assert page.count("option &lt;/style&gt;") == 1
    for svg in (report / "figures").glob("*.svg"):
        assert "<script" not in svg.read_text()
    markdown = (report / "report.md").read_text()
    assert "<" not in re.sub(r"\n    accel train.*", "", markdown)


def test_no_control_character_is_left(report: Path, written: WrittenReport) -> None:
    texts = [path.read_text() for path in report.rglob("*") if path.suffix in {".html", ".md", ".svg", ".json", ".csv"}]
    for text in (*texts, written.headline):
        assert not [c for c in text if (unicodedata.category(c) == "Cc" and c != "\n") or c == "\u202e"]


def test_the_page_needs_nothing_from_elsewhere(report: Path) -> None:
    page = (report / "index.html").read_text()
    elements = parsed(page)
    assert sum(tag == "img" for tag, _ in elements.seen) == 10
    links = [
        value
        for _, attributes in elements.seen
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "action", "data"}
    ]
    assert links
    assert all(link is not None and link.startswith("data:image/svg+xml;base64,") for link in links)
    styles = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in styles
    assert "url(" not in styles
    assert "default-src 'none'" in page


def test_every_figure_is_also_a_file(report: Path) -> None:
    names = {path.stem for path in (report / "figures").glob("*.svg")}
    assert names == {
        *("return_seconds", "return_steps", "speedups", "actor_time", "learner_time", "lag", "mismatch"),
        *("episode_length", "losses", "entropy"),
    }
    for name in names:
        assert {path.suffix for path in (report / "figures").glob(f"{name}.*")} == {".svg", ".png", ".pdf", ".csv"}
        assert f"figures/{name}.png" in (report / "report.md").read_text()


def test_the_json_holds_every_number(report: Path, analysis: Analysis) -> None:
    value = json.loads((report / "report.json").read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    (comparison,) = value["comparisons"]
    assert comparison["verdict"]["outcome"] == "too_few_seeds"
    assert comparison["speedups"]["training_s"]["ratio"]["estimate"] == pytest.approx(2.0)
    assert comparison["speedups"]["actor_us_per_step"]["ratio"]["estimate"] == pytest.approx(33 / 23)
    assert [len(group["runs"]) for group in value["groups"]] == [3, 3]
    assert value["threshold"] == pytest.approx(0.9 * 94.8, abs=2.0)
    assert to_json(analysis)["headline"] == value["headline"]


def test_a_report_of_one_running_seed_without_episodes(bare: Analysis, tmp_path: Path) -> None:
    written = write_report(bare, tmp_path / "r", written="now")
    assert "no finished episode" in written.headline
    assert "2 damaged" in written.page.read_text()


def test_mismatch_out_of_all_bounds_is_neither_averaged_nor_dropped(analysis: Analysis) -> None:
    run = analysis.groups[0].runs[0]
    odd = {
        "compression_chi2": np.r_[np.full(24, 0.5), np.full(3, np.inf), 4e27, np.nan, np.nan],
        "compression_kl": np.r_[np.full(28, 0.25), 231.6, 17149.0],
        "compression_mean_weight": np.r_[np.full(29, 1.0), 1e200],
        "total_chi2": np.full(30, np.inf),
        "total_kl": np.full(30, 17149.0),
    }
    table = mismatch_table(analyse([replace(run, series=Series({**run.series.columns, **odd}, 30))], Choices()))
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    compression, total = rows["compression π_v/μ"], rows["total π_θ/μ"]
    assert [compression[name] for name in ("χ²", "KL, nats", "mean weight")] == ["0.5", "0.25", "1"]
    assert [total[name] for name in ("χ²", "KL, nats", "mean weight")] == ["∞", "17,149", "–"]
    assert "χ² of two Gaussians is infinite" in dict(table.notes)["χ²"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0125, "0.0125"), (20_000_000, "20,000,000"), (4.09e27, "4.09e+27"), (-1e200, "-1e+200"),
     (float("inf"), "∞"), (float("-inf"), "−∞"), (float("nan"), "–")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_nothing_is_left_when_writing_fails(bare: Analysis, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot write"):
        write_report(bare, tmp_path / ("x" * 250), written="now")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="not a directory you may write to"):
        check_target(tmp_path / "file" / "r", overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_reports_are_replaced(bare: Analysis, tmp_path: Path) -> None:
    report = write_report(bare, tmp_path / "out" / "page", written="first").directory
    with pytest.raises(ReportError, match="--overwrite"):
        check_target(report, overwrite=False)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    (mine / "report.json").write_text("of an exported bundle, say")
    with pytest.raises(ReportError, match="is not a report"):
        check_target(mine, overwrite=True)
    check_target(report, overwrite=True)
    before = (report / "index.html").read_text()
    write_report(bare, report, written="later")
    assert (report / "index.html").read_text() != before
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_a_report_from_samples_is_the_runs_own(analysis: Analysis) -> None:
    runs = [run for group in analysis.groups for run in group.runs]
    samples = [json.loads(json.dumps(run_to_json(run), allow_nan=False)) for run in runs]
    restored = [run_from_json(sample, run.path) for sample, run in zip(samples, runs, strict=True)]
    again, value = to_json(analyse(restored, Choices(), restored[0])), to_json(analysis)
    assert again["headline"] == value["headline"]
    assert again["margin"] == pytest.approx(value["margin"], rel=1e-4)
    assert [d.to_json() for d in restored[0].decisions] == [d.to_json() for d in runs[0].decisions]
    del samples[0]["columns"]
    with pytest.raises(ReportError, match="holds no samples"):
        run_from_json(samples[0], "here")


@pytest.mark.long
def test_configurations_that_differ_much_have_short_names_and_a_table(tmp_path: Path) -> None:
    runs = [make_run(f"{name}-s0", "int8", 0, 1.0) for name in ("first", "second", "third")]
    for i, run in enumerate(runs):
        run.config.update({f"option_{k}": f"value {i} of {k}" for k in range(12)})  # type: ignore[attr-defined]
    found = analyse(runs, Choices())
    assert [group.label for group in found.groups] == ["first", "second", "third"]
    table = differing_table(found)
    assert table is not None and table.columns == ("option", "first", "second", "third") and len(table.rows) == 12
    assert ("option_3", "value 0 of 3", "value 1 of 3", "value 2 of 3") in table.rows
    headline = write_report(found, tmp_path / "r", written="now").headline
    assert headline.startswith("Env-v1, 3 configurations; the highest return: ") and len(headline) < 160
    page = (tmp_path / "r" / "index.html").read_text()
    assert "What differs" in page and page.index("What differs") < page.index("<h2>Figures")


def test_every_column_of_numbers_is_explained_beneath_its_table(analysis: Analysis) -> None:
    for table in (results_table(analysis), runs_table(analysis), speedup_table(analysis), mismatch_table(analysis)):
        explained = " ".join(title for title, _ in table.notes)
        plain = {"configuration", "seeds", "run", "seed", "ended", "scheme", "quantity", "note", "seeds / baseline's"}
        for column in table.columns:
            assert column in plain or column.partition(",")[0] in explained, column
