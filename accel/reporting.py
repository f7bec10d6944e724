"""Reports and comparisons of runs: reads run directories, has the monitor analyse and write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import MissingExtraError, ReportError
from accel.extras import install_command, missing_distributions
from accel.rundir import RunDirectory
from monitor.errors import MonitorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitor.report.analysis import Choices
    from monitor.report.document import WrittenReport
    from monitor.report.runs import Run


def report(
    runs: Sequence[Path], *, out: Path | None = None, choices: Choices | None = None, overwrite: bool = False
) -> WrittenReport:
    """Write a page, Markdown, figures and JSON about one run, several seeds of it, or several configurations.

        import accel
        from pathlib import Path
        written = accel.report([Path("results/quickstart-1"), Path("results/quickstart-2")], out=Path("report"))
        print(written.headline, written.page)

    Args:
        runs: run directories, or directories of runs. Runs that differ in seed, name and results_dir only are one
            configuration.
        out: the directory to make; default: ``report`` in the run for a single one, else in the working directory.
        choices: threshold, grouping, confidence; see ``monitor.report.analysis.Choices``.
        overwrite: replace a report that is there.
    Raises:
        ReportError, RunDirectoryError: not a run, no metrics yet, or ``out`` exists or cannot be written.
        MissingExtraError: the report extra is not installed.
    """
    paths = find_runs(runs)
    target = out or (paths[0] / "report" if len(paths) == 1 else Path("report"))
    return _write(paths, None, target, choices, overwrite)


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
        baseline: a run, or a directory of runs of one configuration; those of ``runs`` that are its seeds join it.
        runs: what to compare with it, like ``report``'s.
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
    return _write([*first, *others], len(first), out or Path("comparison"), choices, overwrite)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Absolute paths of the runs named, or found one level below a directory of runs; each once, in order.

    Raises: ReportError: nothing was named, or a directory neither is a run nor holds one.
    """
    if not paths:
        raise ReportError("name at least one run, such as results/NAME")
    found: dict[Path, None] = {}
    for path in paths:
        path = path.resolve()
        if not path.is_dir():
            raise ReportError(f"{path} is no directory: give the path of a run, such as results/NAME")
        below = [path] if _is_run(path) else sorted(child for child in path.iterdir() if _is_run(child))
        if not below:
            raise ReportError(f"{path} is neither a run (it holds no config.toml) nor a directory of runs")
        found |= dict.fromkeys(below)
    return list(found)


def load_run_record(path: Path, *, max_points: int | None = None) -> Run:
    """What a run directory holds for a report; damage is noted, not fatal, wherever something is left.

    Args:
        path: the run directory.
        max_points: of a longer run, neighbouring records are averaged until at most twice as many are left.
    Raises: RunDirectoryError: not a run, or a damaged config. ReportError: no metrics.
    """
    from monitor.decisions import read_decisions
    from monitor.report.runs import Run
    from monitor.report.series import MAX_POINTS, read_series

    directory = RunDirectory.open(path, read_only=True)
    config = directory.read_config()
    if not directory.metrics.is_file():
        raise ReportError(f"{path} holds no metrics yet: wait for its first record")
    notes: list[str] = []
    machine = _read_object(directory.machine, notes)
    summary = _read_object(directory.summary, notes) if directory.summary.is_file() else None
    series = read_series(directory.metrics, max_points or MAX_POINTS)
    decisions, damaged = read_decisions(path)
    if damaged:
        notes.append(f"{damaged} damaged lines of decisions.jsonl were skipped")
    starts = _count_lines(path / "starts.jsonl")
    return Run(path.name, str(path), config, machine, summary or None, series, decisions, tuple(notes), max(starts, 1))


def _write(
    paths: list[Path], baselines: int | None, out: Path, choices: Choices | None, overwrite: bool
) -> WrittenReport:
    if missing := missing_distributions("report"):
        raise MissingExtraError(f"reports need {', '.join(missing)}: {install_command('report')}")
    with _translated():
        from monitor.report.analysis import Choices, analyse
        from monitor.report.document import check_target, write_report

        check_target(out, overwrite=overwrite)
        runs = [load_run_record(path) for path in paths]
        baseline = None if baselines is None else runs[0]
        chosen = choices or Choices()
        if baseline is not None:
            _check_one_configuration(runs[:baselines], chosen)
        analysis = analyse(runs, chosen, baseline)
        return write_report(analysis, out, written=_written(), overwrite=overwrite)


def _check_one_configuration(baselines: Sequence[Run], choices: Choices) -> None:
    from monitor.report.runs import group_runs

    if len(groups := group_runs(baselines, choices.group_by)) > 1:
        names = "; ".join(group.label for group in groups)
        raise ReportError(f"the baseline holds several configurations ({names}): name one of its runs instead")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MonitorError as error:
        raise ReportError(str(error)) from None


def _read_object(path: Path, notes: list[str]) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read ({error})")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path.name} is not a JSON object")
        return {}
    return value


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _is_run(path: Path) -> bool:
    return path.is_dir() and (path / "config.toml").is_file()


def _written() -> str:
    from accel import __version__

    return f"Written by accel {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."
