"""Writes a report, page, Markdown, JSON and figures, into one new directory atomically."""

from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accel.errors import ReportError
from accel.json_object import finite
from accel.monitor.plain_text import one_line, without_controls
from accel.reports import across, pages, plotting, tables, wording
from accel.reports.across import Across
from accel.reports.analysis import Analysis, GroupResult
from accel.reports.charts import figures
from accel.reports.comparison import QUANTITIES
from accel.reports.curves import Curve, aggregate
from accel.reports.figure import Figure
from accel.reports.runs import Run

PAGE, MARKDOWN, JSON_FILE = "index.html", "report.md", "report.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class WrittenReport:
    """The directory of a report, and its headline."""

    directory: Path
    headline: str

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.directory / PAGE


def check_target(out: Path, *, overwrite: bool) -> None:
    """Raises ReportError when a report cannot be written to ``out``; call it before the work."""
    parent = out.parent
    if out.exists() or out.is_symlink():
        if not out.is_dir() or (any(out.iterdir()) and not all((out / name).is_file() for name in (PAGE, MARKDOWN))):
            raise ReportError(f"{out} exists and is not a report: choose another --out")
        if not overwrite:
            raise ReportError(f"{out} exists already: choose another --out, or replace it by --overwrite")
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ReportError(f"cannot write {out}: {parent} is not a directory you may write to; choose another --out")


def write_report(analysis: Analysis, out: Path, *, written: str) -> WrittenReport:
    """Write to a temporary directory beside ``out`` and rename it, also in the place of what is there.

    Args:
        out: the directory to create, for which ``check_target`` holds.
        written: when and by what, for the page's footer.
    Raises:
        ReportError: ``out`` cannot be written; nothing is left behind.
    """
    return _write(out, pages.of_analysis(analysis), figures(analysis), to_json(analysis), written)


def write_across(compared: Across, out: Path, *, written: str) -> WrittenReport:
    """``write_report`` for several environments, with a report of each in a directory of its own below it."""
    below = {name: re.sub(r"[^\w.-]+", "-", name) for name in compared.analyses}
    content = pages.of_environments(compared, below)
    numbers = {
        "format_version": FORMAT_VERSION,
        "headline": content["headline"],
        "baseline": compared.baseline,
        "environments": below,
        "scores": {label: [task.tolist() for task in tasks] for label, tasks in compared.scores.items()},
        "interquartile_mean": {label: asdict(value) for label, value in compared.overall.items()},
    }
    report = _write(out, content, (across.figure(compared),), numbers, written)
    for name, analysis in compared.analyses.items():
        write_report(analysis, out / below[name], written=written)
    return report


def _write(
    out: Path, content: pages.Content, drawn: Sequence[Figure], numbers: Mapping[str, object], written: str
) -> WrittenReport:
    files = {f"{figure.name}.{kind}": data for figure in drawn for kind, data in plotting.render(figure).items()}
    texts = {JSON_FILE: json.dumps(finite(numbers, lambda _: None), indent=1, allow_nan=False, default=str) + "\n"}
    svgs = {figure.name: b64encode(files[f"{figure.name}.svg"]).decode() for figure in drawn}
    texts[PAGE] = pages.render("page.html", content, drawn, written=written, svgs=svgs)
    texts[MARKDOWN] = pages.render("report.md", content, drawn, written=written, svgs=svgs)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        (temporary / "figures").mkdir(parents=True)
        for name, text in texts.items():
            (temporary / name).write_text(without_controls(text), encoding="utf-8", errors="replace")
        for name, data in files.items():
            (temporary / "figures" / name).write_bytes(data)
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    except OSError as error:
        raise ReportError(f"cannot write {out}: {error.strerror or error}; choose another --out") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return WrittenReport(out, one_line(content["headline"]))


def to_json(analysis: Analysis) -> dict[str, object]:
    """Every number of a report, plain."""
    return {
        "format_version": FORMAT_VERSION,
        "headline": wording.headline(analysis),
        "environment": analysis.environment,
        "threshold": analysis.threshold.value,
        "threshold_source": analysis.threshold.source,
        "margin": analysis.margin.value,
        "margin_source": analysis.margin.source,
        "choices": asdict(analysis.choices),
        "baseline": None if analysis.baseline is None else analysis.baseline.label,
        "caveats": analysis.caveats,
        "quantities": {
            name: {"title": q.title, "unit": q.unit, "meaning": q.meaning} for name, q in QUANTITIES.items()
        },
        "groups": [_group(r, analysis.threshold.value, analysis.choices.confidence) for r in analysis.results],
        "comparisons": [
            {
                "group": comparison.group.label,
                "verdict": asdict(comparison.verdict),
                "speedups": {name: asdict(value) for name, value in comparison.speedups.items()},
                "marks": comparison.marks,
            }
            for comparison in analysis.comparisons
        ],
        "commands": tables.commands(analysis),
    }


def _group(result: GroupResult, threshold: float, confidence: float) -> dict[str, object]:
    shares = result.group.time_shares
    return {
        "label": result.group.label,
        "options": result.group.options,
        "config": result.group.config,
        "final_return": None if result.final_return is None else asdict(result.final_return),
        "quantities": result.by_quantity,
        "reached": result.reached,
        "bottleneck": None if shares is None else {"limit": shares.limit, "shares": shares._asdict()},
        "actor_us_per_step": result.actor_us,
        "learner_us_per_step": result.learner_us,
        "return_against_seconds": _curve(aggregate(result.group, "elapsed_s", "returns", confidence=confidence)),
        "return_against_steps": _curve(aggregate(result.group, "env_steps", "returns", confidence=confidence)),
        "runs": [_run(run, threshold) for run in result.group.runs],
    }


def _run(run: Run, threshold: float) -> dict[str, object]:
    crossing = run.crossing(threshold)
    return {
        "name": run.name,
        "path": run.path,
        "seed": run.seed,
        "env_steps": run.steps,
        "training_s": run.training_s,
        "final_return": run.final_return,
        "environment_us_per_step": run.us_per_step("actor").get("env") or None,
        "time_to_threshold_s": None if crossing is None else crossing[0],
        "steps_to_threshold": None if crossing is None else crossing[1],
        "records": run.series.records,
        "damaged_lines": run.series.damaged,
        "machine": run.machine,
        "summary": run.summary,
        "decisions": [decision.to_json() for decision in run.decisions],
    }


def _curve(curve: Curve | None) -> dict[str, list[float]] | None:
    return None if curve is None else {n: getattr(curve, n).tolist() for n in ("x", "centre", "low", "high")}
