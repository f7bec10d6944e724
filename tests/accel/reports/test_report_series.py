"""Metrics as columns: nothing lost in a short run, bounded memory in a long one, damage counted."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.errors import ReportError
from accel.monitor.recorder import Recorder
from accel.reports.series import read_series


def write(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_columns_are_the_recorders_records(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.record(10, {"x": 1.0, "scheme": "int8", "n": np.int64(3)})
        recorder.record(20, {"x": math.inf, "y": None, "z": 5})
    series = read_series(tmp_path / "metrics.jsonl")
    assert series.records == 2
    assert series.damaged == 0
    assert series.column("env_steps").tolist() == [10, 20]
    assert series.column("x").tolist() == [1.0, math.inf]
    np.testing.assert_equal(series.column("z"), [math.nan, 5.0])
    assert np.isnan(series.column("absent")).all()
    assert "scheme" not in series.columns


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "m", {"env_steps": 1, "x": 1.0}, {"env_steps": 2, "x": 2.0})
    with path.open("ab") as file:
        file.write(b'\xff\x00garbage\n[1, 2]\n{"x": 3}\n{"env_steps": NaN}\n')
        file.write(b'\n  \n{"env_steps": 3, "x": 3.0}\n')
        file.write(b'{"env_steps": 4, "x"')
    series = read_series(path)
    assert series.column("x").tolist() == [1.0, 2.0, 3.0]
    assert (series.records, series.damaged) == (3, 5)


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" "))))
def test_every_line_is_a_record_or_damaged(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    series = read_series(path)
    assert series.records + series.damaged == sum(bool(line.strip()) for line in lines)


def test_the_clock_goes_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    times = [1.0, 2.0, 3.0, 1.0, 2.0]
    path = write(tmp_path / "m", *({"env_steps": i, "elapsed_s": t} for i, t in enumerate(times)))
    assert read_series(path).column("elapsed_s").tolist() == [1, 2, 3, 4, 5]


def test_a_resumed_run_may_be_later_with_its_first_record_than_the_one_before(tmp_path: Path) -> None:
    written = [(1000.0, 30.0), (1030.0, 60.0), (2061.0, 61.0), (2121.0, 121.0)]
    path = write(tmp_path / "m", *({"env_steps": 0, "wall_time_s": w, "elapsed_s": s} for w, s in written))
    assert read_series(path, starts_s=[970.0, 1999.0]).column("elapsed_s").tolist() == [30, 60, 121, 181]
    assert read_series(path, starts_s=[math.nan]).column("elapsed_s").tolist() == [30, 60, 61, 121]


@pytest.mark.long
def test_neighbours_of_a_long_run_become_one(tmp_path: Path) -> None:
    count = 8_000
    with (tmp_path / "m").open("w") as file:
        for i in range(count):
            rare = {"evaluation_return": i} if i % 100 == 50 else {}
            file.write(json.dumps({"env_steps": i, "elapsed_s": 0.5 * i, "x": i % 7} | rare) + "\n")
    series = read_series(tmp_path / "m", max_points=128)
    steps = series.column("env_steps")
    assert series.records == count and 128 <= len(series) <= 257
    assert (steps[0], steps[-1]) == (0, count - 1) and 0 < np.diff(steps).min() <= np.diff(steps).max() < 128
    assert np.array_equal(series.column("x"), steps % 7) and np.array_equal(series.column("elapsed_s"), 0.5 * steps)
    played = series.column("evaluation_return")
    assert played[np.isfinite(played)].tolist() == list(range(50, count, 100)), "a metric of few records keeps them all"


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"cannot read .*missing"):
        read_series(tmp_path / "missing")
