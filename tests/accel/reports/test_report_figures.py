"""Figures: what they are given is what their files have, and what of a run, a benchmark or a sweep is in them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from accel.monitor.statistics import Interval
from accel.reports import charts
from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.figure import Axis, Bars, Figure, Line, Panel, Points, Reference
from accel.reports.plotting import PNG_DPI, draw, render, save_all
from accel.reports.runs import Run
from accel.sweep.objectives import AFTER_TRAINING
from accel.sweep.pareto import Candidate
from accel.sweep.plots import pareto_figure, population_figure
from tests.accel.reports.recorded_run import run_record

RETURN, BYTES = AFTER_TRAINING["return"], AFTER_TRAINING["bytes"]
FIGURE = Figure(
    "sample",
    "A sample",
    [
        Panel([Line("curve", [0.0, 1.0], [2.0, 3.0], [1.0, 2.5], [2.5, 4.0], single=[([0.0], [9.0])])], title="lines"),
        Panel([Points("point", [1.0], [2.0], y_ends=[(1.5, 2.5)], names=["named"]), Reference(1.75, "limit")]),
        Panel([Bars(["a", "b"], {"env": [1.0, 2.0], "policy": [3.0, 1.0]})]),
    ],
    columns=2,
    heading="above all",
)


def run(scheme: str = "int8", seed: int = 0, records: int = 20, **columns: object) -> Run:
    over = np.arange(1.0, records + 1)
    values = {"elapsed_s": over, "env_steps": 1000 * over, "return_mean": 10 * over}
    values |= {name: np.broadcast_to(np.asarray(column, np.float64), records) for name, column in columns.items()}
    return run_record(values, summary={"reason": "done", "wall_s": records + 3.0}, compressor=scheme, seed=seed)


def test_the_csv_has_everything_that_is_drawn() -> None:
    rows = list(csv.DictReader(io.StringIO(FIGURE.csv())))
    cells = [{key: value for key, value in row.items() if value} for row in rows]
    assert cells[:3] == [
        {"panel": "lines", "series": "curve", "x": "0.0", "y": "2.0", "y_low": "1.0", "y_high": "2.5"},
        {"panel": "lines", "series": "curve", "x": "1.0", "y": "3.0", "y_low": "2.5", "y_high": "4.0"},
        {"panel": "lines", "series": "curve", "name": "single 1", "x": "0.0", "y": "9.0"},
    ]
    point = {"series": "point", "name": "named", "x": "1.0", "y": "2.0", "y_low": "1.5", "y_high": "2.5"}
    assert {"panel": "2", **point} in cells
    assert {"panel": "2", "series": "limit", "y": "1.75"} in cells
    assert {"panel": "3", "series": "policy", "name": "b", "x": "1.0"} in cells


def test_files_are_the_same_each_time_and_of_their_format(tmp_path: Path) -> None:
    files = render(FIGURE)
    assert set(files) == {"svg", "png", "pdf", "csv"} and files == render(FIGURE)
    assert files["pdf"].startswith(b"%PDF") and b"<svg" in files["svg"]
    save_all(FIGURE, tmp_path)
    assert (tmp_path / "sample.png").read_bytes() == files["png"]
    with Image.open(tmp_path / "sample.png") as image:
        assert image.width == 10 * PNG_DPI
        assert len(image.convert("L").getcolors() or ()) > 5


def test_a_figure_grows_with_its_panels_and_its_legend() -> None:
    def height(panels: int, lines: int) -> float:
        marks = [Line(f"a configuration with a name of many letters {i}", [0, 1], [i, i]) for i in range(lines)]
        return float(draw(Figure("a", "a", [Panel(marks)] * panels)).get_figheight())

    assert height(1, 2) < height(1, 12) < height(3, 12)


@pytest.mark.parametrize("limits", [(1e-3, 1e3), (0.8, 1.25), (20.0, 90.0)])
def test_ratios_of_any_width_have_an_axis_to_read(limits: tuple[float, float]) -> None:
    points = Points("a", list(limits), [0.0, 1.0])
    (axes,) = draw(Figure("a", "a", [Panel([points], Axis("times", "log", limits))])).axes
    assert axes.get_xlim() == limits
    assert sum(limits[0] <= tick <= limits[1] for tick in axes.get_xticks()) >= 3


def compared(**columns: object) -> Analysis:
    runs = [run(scheme, seed, **columns) for scheme in ("fp32", "int8") for seed in range(3)]
    return analyse(runs, Choices(), runs[0])


def test_speedups_are_points_with_intervals_by_configuration() -> None:
    runs = [run(scheme, seed, 20 + seed) for scheme in ("fp32", "int8", "int4") for seed in range(5)]
    found = analyse(runs, Choices(), runs[0])
    figure = charts.speedups(found)
    int8, int4, equal = figure.panels[0].marks
    assert isinstance(equal, Reference)
    assert (int8.label, int4.label) == ("int8", "int4")
    ratios = [value.ratio for value in found.comparisons[0].speedups.values()]
    assert (list(int8.x), int8.x_ends) == ([r.estimate for r in ratios], [(r.low, r.high) for r in ratios])
    assert charts.speedups(analyse(runs, Choices())) is None


def test_mismatch_of_several_configurations_shows_compression() -> None:
    figure = charts.mismatch(compared(total_ess=0.95, total_kl=0.02, compression_ess=0.9, compression_kl=0.0))
    assert [panel.y.title for panel in figure.panels] == ["ESS", "KL, nats"]
    labels = [mark.label for mark in figure.panels[0].marks if isinstance(mark, Line)]
    assert labels == ["fp32, compression", "fp32, total", "int8, compression", "int8, total"]
    line = figure.panels[1].marks[0]
    assert np.all(np.asarray(line.y) == charts.KL_FLOOR), "zero has no logarithm"


def test_what_is_learned_stands_beside_the_returns() -> None:
    played = np.r_[np.full(19, np.nan), 55.0]
    found = analyse([run(policy_loss=1.0, value_loss=2.0, evaluation_return=played, evaluation_env_steps=12_000.0)],
                    Choices())  # fmt: skip
    losses, evaluation = charts.metric_figure(found, "losses"), charts.metric_figure(found, "evaluation")
    assert [panel.y.title for panel in losses.panels] == ["policy", "value"]
    (line,) = evaluation.panels[0].marks
    assert list(np.asarray(line.x)) == [12_000.0]
    assert charts.metric_figure(found, "entropy") is None


def test_a_single_record_is_drawn_as_a_dot() -> None:
    for figure in charts.figures(analyse([run(records=1, lag_min=0, lag_mean=1, lag_max=2, total_ess=0.9)], Choices())):
        assert any(line.get_marker() == "o" for axes in draw(figure).axes for line in axes.lines), figure.name


def test_few_runs_have_lines_of_their_own() -> None:
    for count, singly in ((charts.MAX_SINGLE, True), (charts.MAX_SINGLE + 1, False)):
        figure = charts.metric_figure(analyse([run(seed=seed) for seed in range(count)], Choices()), "return_steps")
        (line, *_) = figure.panels[0].marks
        assert (len(line.single) == count) == singly


def pareto(rows: Sequence[Candidate], references: dict[str, float], bounds: dict[str, float]) -> Panel:
    intervals = {0: Interval(500.0, 480.0, 520.0, 0.95, 10)}
    return pareto_figure(rows, rows[:1], (RETURN, BYTES), references=references, bounds=bounds, returns=intervals,
                         title="t").panels[0]  # fmt: skip


def test_a_front_has_names_and_error_bars() -> None:
    rows = [Candidate(n, f"int{n}", {"return": 500.0 - n, "bytes": 100.0 + n}) for n in range(3)]
    others, best, fp32, *_ = pareto(rows, {"return": 500.0, "bytes": 200.0}, {"return": 475.0}).marks
    assert (best.names, best.y_ends, list(best.x), list(best.y)) == (["0: int0"], [(480.0, 520.0)], [100.0], [500.0])
    assert (others.names, others.y_ends, list(fp32.y)) == ([], [], [500.0])
    timed = replace(rows[0], values=rows[0].values | {"bytes_q1": 90.0, "bytes_q3": 120.0})
    _, best, *_ = pareto([timed], {}, {}).marks
    assert best.x_ends == [(90.0, 120.0)]


def test_a_population_has_a_line_for_each_member_and_the_best_ones() -> None:
    figure = population_figure({"return": [[1.0, None], [2.0, 3.0]]}, [0, 1], {"return"}, "t")
    *members, best = figure.panels[0].marks
    assert len(members) == 2 and isinstance(best, Line) and figure.panels[0].y.scale == "log"
    assert list(np.asarray(best.y)) == [1.0, 3.0]
    assert math.isnan(np.asarray(members[1].y)[0])
