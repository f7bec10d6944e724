"""What the report's tables say of figures that mean different things for different policies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from accel.monitor.divergence import divergences
from accel.reports.analysis import Choices, analyse
from accel.reports.runs import Run
from accel.reports.tables import mismatch_table
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
