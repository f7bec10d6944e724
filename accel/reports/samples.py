"""Runs as plain JSON and back: the raw samples behind a result, small enough to keep beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from accel.errors import ReportError
from accel.monitor.decisions import Decision
from accel.reports.runs import Run
from accel.reports.series import Series

_SHOWN = re.compile(
    r"^(elapsed_s|env_steps|return_mean|episodes|actors_alive|lag_mean"
    r"|length_mean|entropy|explained_variance|(policy|value|actor|critic)_loss|evaluation_(return|env_steps)"
    r"|(staleness|compression|total)_(ess|kl|chi2|chi2_infinite|retention|greedy_agreement|clipped|mean_weight)(/.+)?"
    r"|(actor|learner)_\w+_share)$"
)


def run_to_json(run: Run) -> dict[str, object]:
    """The run without the metrics that no figure or table shows; ``run_from_json`` restores the rest, to six digits."""
    columns = {name: [_plain(v) for v in run.series.columns[name]] for name in run.series.columns if _SHOWN.match(name)}
    return {
        "name": run.name,
        "config": dict(run.config),
        "machine": dict(run.machine),
        "summary": None if run.summary is None else dict(run.summary),
        "starts": run.starts,
        "records": run.series.records,
        "damaged_lines": run.series.damaged,
        "notes": list(run.notes),
        "decisions": [decision.to_json() for decision in run.decisions],
        "columns": columns,
    }


def run_from_json(value: Mapping[str, object], path: str) -> Run:
    """Inverse of ``run_to_json``; ``path`` says where the samples are.

    Raises: ReportError: something is missing, or of another type.
    """
    try:
        config, machine, summary, notes = (value[name] for name in ("config", "machine", "summary", "notes"))
        if not isinstance(config, Mapping) or not isinstance(machine, Mapping):
            raise TypeError("config and machine are no objects")
        if not isinstance(summary, Mapping | None) or not isinstance(notes, list):
            raise TypeError("summary is no object, or notes are no list")
        columns = {
            str(name): np.array([math.nan if v is None else float(v) for v in values])
            for name, values in value["columns"].items()  # type: ignore[attr-defined]
        }
        decisions = [Decision.from_json(decision) for decision in value["decisions"]]  # type: ignore[attr-defined]
        return Run(
            name=str(value["name"]),
            path=path,
            config=config,
            machine=machine,
            summary=summary,
            series=Series(columns, int(value["records"]), int(value["damaged_lines"])),  # type: ignore[call-overload]
            decisions=decisions,
            notes=tuple(map(str, notes)),
            starts=int(value["starts"]),  # type: ignore[call-overload]
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ReportError(f"{path} holds no samples of a run: {error!r}") from error


def _plain(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return str(float(value))
    return int(value) if value == int(value) else float(f"{value:.6g}")
