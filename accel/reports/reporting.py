"""``accel.report`` and ``accel.compare``: read runs, analyse them and write pages.

A run is a directory, or the samples kept of it in the ``runs.json.gz`` of a result.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import AccelError, MissingExtraError, ReportError
from accel.monitor.decisions import read_decisions
from accel.monitor.plain_text import one_line
from accel.reports.across import over_environments
from accel.reports.analysis import Analysis, Choices, analyse
from accel.reports.runs import Run, group_runs
from accel.reports.samples import run_from_json
from accel.reports.series import MAX_POINTS, read_series
from accel.runs.directory import RunDirectory
from accel.system.extras import install_command, missing_distributions
from accel.system.untrusted import MAX_JSON_BYTES, parse_json, read_file
from accel.version import __version__

if TYPE_CHECKING:
    from accel.reports.document import WrittenReport

SAMPLES_FILE = "runs.json.gz"
_MOST_SAMPLE_BYTES = 1 << 28

logger = logging.getLogger("accel")


def report(
    runs: Sequence[Path], *, out: Path | None = None, choices: Choices | None = None, overwrite: bool = False
) -> WrittenReport:
    """Write a page, Markdown, figures and JSON about one run, several seeds of it, or several configurations.

        import accel
        from pathlib import Path
        written = accel.report([Path("results/quickstart-1"), Path("results/quickstart-2")], out=Path("report"))
        print(written.headline, written.page)

    Args:
        runs: run directories, directories of runs, or results that keep the samples of runs in a ``runs.json.gz``,
            whose runs can also be named as if they were directories in it. Runs that differ in seed, name and
            results_dir only are one configuration. Runs that hold no record yet are left out, with a note, where
            others are left.
        out: the directory to make; default: ``report`` in the run for a single one, else in the working directory.
        choices: threshold, grouping, labels, confidence; see ``accel.reports.analysis.Choices``.
        overwrite: replace a report that is there.
    Raises:
        ReportError, RunDirectoryError: not a run, no metrics yet, runs of several environments, or ``out`` exists or
            cannot be written.
        MissingExtraError: the report extra is not installed.
    """
    paths = find_runs(runs)
    out = out or (paths[0] / "report" if len(paths) == 1 and paths[0].is_dir() else Path("report"))
    _check_out(out, overwrite)
    found, left_out = _load(paths)
    choices = _chosen(choices, found)
    if len(environments := _by_environment(found)) > 1 and not choices.force:
        names = "; ".join(f"{env}: {', '.join(run.name for run in those)}" for env, those in environments.items())
        raise ReportError(
            f"returns of different environments mean nothing beside one another ({names}): make a report of each, "
            "by naming its runs, or compare with a directory of baselines in all of them (accel compare)"
        )
    return _write(analyse(found, choices), left_out, out)


def compare(
    baseline: Path,
    runs: Sequence[Path],
    *,
    out: Path | None = None,
    choices: Choices | None = None,
    overwrite: bool = False,
) -> WrittenReport:
    """Compare configurations with a baseline: speedups with intervals, and a verdict on "same return".

        written = accel.compare(Path("runs/fp32"), [Path("runs/int8"), Path("runs/torch")])

    Args:
        baseline: a run, or a directory of runs of one configuration; those of ``runs`` that are its seeds join it. With
            runs in several environments each one is compared by itself, and gains over all of them as rliable does.
        runs: the runs to compare with it, as for ``report``.
        out: the directory to make; default: ``comparison`` in the working directory.
        choices: also the margin of "same return" and ``force``, which compares runs of another environment, machine or
            budget and marks them instead of refusing.
        overwrite: replace a report that is there.
    Raises:
        ReportError: as ``report``; the baseline is among ``runs`` by its own path; or nothing comparable is left.
    """
    first = find_runs([baseline])
    given = {path.resolve() for path in runs}
    if baseline.resolve() in given:
        raise ReportError(f"{baseline} is the baseline and cannot be compared with itself: name it once")
    others = [path for path in find_runs(runs) if path not in first]
    if not others:
        raise ReportError(f"nothing to compare with {baseline}: name runs of another configuration")
    out = out or Path("comparison")
    _check_out(out, overwrite)
    baselines, left_out = _load(first)
    found, also_left_out = _load(others)
    choices = _chosen(choices, baselines + found)
    ours, theirs = _by_environment(baselines), _by_environment(found)
    if len(ours) == 1:
        return _write(_compared(baselines, found, choices), left_out + also_left_out, out)
    if strange := theirs.keys() - ours.keys():
        raise ReportError(f"{', '.join(sorted(strange))}: the baseline has no run there to measure by: leave it out")
    from accel.reports.document import write_across

    compared = {env: _compared(runs, theirs.get(env, []), choices) for env, runs in ours.items()}
    return write_across(over_environments(compared), out, written=_footer())


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Absolute paths of the runs named, or found one level below a directory of runs; each once, in order.

    A run of which only samples are kept, in a directory's ``runs.json.gz``, is found there as if it were a directory.

    Raises: ReportError: nothing was named, or a directory neither is a run nor holds one.
    """
    if not paths:
        raise ReportError("name at least one run, such as results/NAME")
    found: dict[Path, None] = {}
    for path in paths:
        path = path.resolve()
        path = path.parent if path.name == SAMPLES_FILE and path.is_file() else path
        if path.is_dir() and not _is_run(path):
            below = sorted(child for child in path.iterdir() if _is_run(child)) or list(sampled_runs(path))
        elif path.is_dir() or path in sampled_runs(path.parent):
            below = [path]
        else:
            raise ReportError(f"{path} is no directory: give the path of a run, such as results/NAME")
        if not below:
            raise ReportError(
                f"{path} is neither a run (it holds no config.toml) nor a directory of runs, and has no {SAMPLES_FILE}"
            )
        found |= dict.fromkeys(below)
    return list(found)


def load_run_record(path: Path, *, max_points: int | None = None) -> Run:
    """Read a run for a report; damaged files are noted and skipped if any records are readable.

    Args:
        path: the run directory, or a path of ``sampled_runs``.
        max_points: of a longer run, neighbouring records become one until at most twice as many are left.
    Raises: RunDirectoryError: not a run, or a damaged config. ReportError: no metrics, no record among them, or damaged
        samples.
    """
    if not path.exists() and (sample := sampled_runs(path.parent).get(path)) is not None:
        return _with_records(run_from_json(sample, str(path)))
    directory = RunDirectory.open(path, read_only=True)
    config = directory.read_config()
    if not directory.metrics.is_file():
        raise ReportError(f"{path} has no metrics yet: wait for its first record")
    notes: list[str] = []
    machine = _read_object(directory.machine, notes)
    summary = _read_object(directory.summary, notes) if directory.summary.is_file() else None
    starts_s = [start.unix_time_s for start in directory.read_starts()]
    series = read_series(directory.metrics, max_points or MAX_POINTS, starts_s)
    decisions, damaged = read_decisions(path)
    if damaged:
        notes.append(f"{damaged} damaged lines of decisions.jsonl were skipped")
    starts = max(len(starts_s), 1)
    return _with_records(
        Run(path.name, str(path), config, machine, summary or None, series, decisions, tuple(notes), starts)
    )


def _with_records(run: Run) -> Run:
    if not run.series.records:
        damaged = f" ({run.series.damaged} damaged lines)" if run.series.damaged else ""
        raise ReportError(f"{run.path} has no metrics yet{damaged}: wait for its first record")
    return run


def sampled_runs(directory: Path) -> dict[Path, Mapping[str, object]]:
    """``directory``/NAME to its samples for every run in the directory's ``runs.json.gz``; empty without such a file.

    What a run's table called it is its option ``variant``. Raises: ReportError: the file is damaged.
    """
    file = directory / SAMPLES_FILE
    if not file.is_file():
        return {}
    try:
        with gzip.open(file) as content:
            text = content.read(_MOST_SAMPLE_BYTES + 1)
        if len(text) > _MOST_SAMPLE_BYTES:
            raise ValueError(f"more than {_MOST_SAMPLE_BYTES:,} bytes")
        runs = json.loads(text)["runs"]
        if not isinstance(runs, dict) or not all(isinstance(v, dict) and Path(n).name == n for n, v in runs.items()):
            raise TypeError("runs is not a table of runs by name")
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{file} holds no samples of runs ({error!r}): restore it, or name runs instead") from None
    return {directory / name: _with_variant(sample) for name, sample in runs.items()}


def _with_variant(sample: Mapping[str, object]) -> Mapping[str, object]:
    config = sample.get("config")
    if not isinstance(config, Mapping) or "variant" not in sample:
        return sample
    return {**sample, "config": {**config, "variant": sample["variant"]}}


def _check_out(out: Path, overwrite: bool) -> None:
    """Raises what keeps a report from being written, before the work."""
    if missing := missing_distributions("report"):
        raise MissingExtraError(f"reports need {', '.join(missing)}: {install_command('report')}")
    from accel.reports.document import check_target

    check_target(out, overwrite=overwrite)


def _chosen(choices: Choices | None, runs: Sequence[Run]) -> Choices:
    """By default runs of which samples are kept are grouped by what their table calls them."""
    chosen = choices or Choices()
    if not chosen.group_by and all("variant" in run.config for run in runs):
        return replace(chosen, group_by=("variant",))
    return chosen


def _write(analysis: Analysis, left_out: Sequence[str], out: Path) -> WrittenReport:
    from accel.reports.document import write_report

    return write_report(replace(analysis, caveats=(*left_out, *analysis.caveats)), out, written=_footer())


def _footer() -> str:
    return f"Written by accel {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."


def _by_environment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(str(run.config.get("env", "unknown")), []).append(run)
    return found


def _compared(baselines: Sequence[Run], others: Sequence[Run], choices: Choices) -> Analysis:
    """A comparison in one environment."""
    if len(groups := group_runs(baselines, choices.group_by)) > 1:
        names = "; ".join(group.label for group in groups)
        raise ReportError(f"the baseline holds several configurations ({names}): name one of its runs instead")
    return analyse([*baselines, *others], choices, baselines[0])


def _load(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be reported, and notes about those that cannot; raises the first one's error if none can."""
    runs: list[Run] = []
    errors: list[Exception] = []
    for path in paths:
        try:
            runs.append(load_run_record(path))
        except AccelError as error:
            errors.append(error)
    if errors and not runs:
        raise errors[0]
    notes = [f"left out: {one_line(str(error))}" for error in errors]
    for note in notes:
        logger.warning(note)
    return runs, notes


def _read_object(path: Path, notes: list[str]) -> dict[str, object]:
    try:
        value = parse_json(read_file(path, MAX_JSON_BYTES))
        if isinstance(value, dict):
            return value
        reason = "it is no JSON object"
    except FileNotFoundError:
        reason = "it is missing"
    except (OSError, ValueError) as error:
        reason = str(error)
    notes.append(f"{path.name} cannot be read ({reason})")
    return {}


def _is_run(path: Path) -> bool:
    return path.is_dir() and (path / "config.toml").is_file()
