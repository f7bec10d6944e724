"""What the report's tables say of figures that mean different things for different policies."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from accel.monitor.divergence import divergences
from accel.reports.analysis import Choices, analyse
from accel.reports.document import write_report
from accel.reports.runs import Run
from accel.reports.samples import run_from_json, run_to_json
from accel.reports.tables import mismatch_table, publications_table
from tests.accel.recorded_run import run_record

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TwoMeans:
    kind: Literal["categorical", "multi_categorical", "gaussian"] = "gaussian"
    sizes: tuple[int, ...] = (2,)


def make_run(seed: int, columns: dict[str, Floats], scheme: str = "int8") -> Run:
    times = {"elapsed_s": np.arange(1.0, 5.0), "env_steps": np.arange(1.0, 5.0)}
    return run_record(times | columns, compressor=scheme, seed=seed)


def test_agreement_of_greedy_actions_is_told_as_it_is_measured() -> None:
    columns = {"compression_ess": np.ones(4), "compression_greedy_agreement": np.array([0.5, 0.75, 0.75, 1.0])}
    table = mismatch_table(analyse([make_run(0, columns)], Choices()))
    assert table.rows[0][table.columns.index("greedy actions agree")] == "0.75"
    (bound,) = re.findall(r"every mean within ([0-9.]+) standard deviations", dict(table.notes)["greedy actions agree"])
    log_std = np.full((2, 2), np.log(0.1))
    means = np.array([[0.0, 0.049], [0.0, 0.051]])
    found = divergences(TwoMeans(), np.c_[means, log_std], np.c_[np.zeros((2, 2)), log_std])
    assert found.greedy_agrees.tolist() == (means <= float(bound) * 0.1).all(1).tolist() == [True, False]


def checked(seed: int) -> Run:
    columns = {
        "withheld/int8": np.array([np.nan, 0.0, 0.0, 0.0]),
        "publish_kl/int8": np.array([np.nan, 0.25, 0.5, 0.125 * (1 + seed)]),
        # resumed after two: the process that goes on counts from zero
        "withheld/qat": np.array([0.0, 2.0, 1.0, 1.0 + seed]),
    }
    return make_run(seed, columns, "qat")


def test_what_checks_before_publication_found_is_tabled_by_scheme(tmp_path: Path) -> None:
    analysis = analyse([checked(0), checked(1), checked(2), make_run(0, {}, "fp32")], Choices())
    table = publications_table(analysis)
    assert table.columns == ("configuration", "scheme", "withheld", "greatest KL, nats")
    assert table.rows == (("qat", "int8", "0", "0.5"), ("qat", "qat", "12", "–"))
    assert publications_table(analyse([make_run(0, {})], Choices())) is None
    written = write_report(analysis, tmp_path / "r", written="now")
    for text in (html.unescape(written.page.read_text()), written.markdown.read_text()):
        assert "Checks before publication" in text


def test_samples_keep_what_checks_found() -> None:
    restored = [run_from_json(json.loads(json.dumps(run_to_json(checked(seed)))), "r") for seed in range(2)]
    known = [analyse(runs, Choices()) for runs in (restored, [checked(0), checked(1)])]
    assert publications_table(known[0]) == publications_table(known[1])
