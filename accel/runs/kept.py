"""Runs of which only the samples are kept: a ``runs.json`` beside a result, read as if its runs were directories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import ReportError

if TYPE_CHECKING:
    from monitor.report.runs import Run

KEPT_RUNS = "runs.json"


def kept_run_paths(directory: Path) -> list[Path]:
    """``directory``/NAME for every run whose samples are in its ``runs.json``; none without such a file.

    Raises: ReportError: the file is damaged.
    """
    return [directory / name for name in _samples(directory)] if (directory / KEPT_RUNS).is_file() else []


def is_kept_run(path: Path) -> bool:
    """Whether a path that is no directory names a run in the ``runs.json`` beside it. Raises ReportError."""
    return not path.exists() and path in kept_run_paths(path.parent)


def load_kept_run(path: Path) -> Run:
    """The run at a path of ``kept_run_paths``; what its table called it is the option ``variant``.

    Raises: ReportError: the file or the run's samples are damaged.
    """
    from monitor.report.samples import run_from_json

    sample = _samples(path.parent)[path.name]
    config = sample.get("config")
    if isinstance(config, Mapping) and "variant" in sample:
        sample = {**sample, "config": {**config, "variant": sample["variant"]}}
    return run_from_json(sample, str(path))


def _samples(directory: Path) -> Mapping[str, Mapping[str, object]]:
    file = directory / KEPT_RUNS
    try:
        runs = json.loads(file.read_bytes())["runs"]
        if isinstance(runs, dict) and all(isinstance(sample, dict) and _is_name(n) for n, sample in runs.items()):
            return runs
        raise TypeError("runs is not a table of runs by name")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{file} holds no samples of runs ({error!r}): restore it, or name runs instead") from None


def _is_name(text: str) -> bool:
    return Path(text).name == text
