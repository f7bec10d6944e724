#!/usr/bin/env python
"""Published figures of AcceRL, ActorQ and QuaRL beside the nearest that are kept here, each with what bounds it.

    python scripts/evidence/published.py

Reads actor_time/rows, every CASE/runs.json and the reports of export-table under the results directory, whichever are
there, and writes published/README.md. Nothing is measured; what no sample is kept of is listed as not measured.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

import training_cases  # noqa: E402
from published_cases import (  # noqa: E402
    ActorCell,
    KeptCase,
    pong_lacks,
    read_actor_time,
    read_cases,
    read_exports,
    step_and_pull_us,
    steps_per_policy,
)
from published_claims import ACTOR, CAVEAT, END_TO_END, PAPERS, SMALLER, STEP_AND_PULL, TRAINING  # noqa: E402

from accel.errors import AccelError  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from monitor.errors import MonitorError  # noqa: E402
from monitor.report.markdown import table_text  # noqa: E402
from monitor.report.tables import Table  # noqa: E402
from monitor.report.wording import number, times  # noqa: E402

OUTCOMES = {
    "no_loss": "no loss",
    "gain": "higher",
    "loss": "lower",
    "too_few_seeds": "too few seeds",
    "undecided": "undecided",
}
SCHEMES = ("fp32", "int8", "prune(0.5)+int8")
EXPORTED = {"schemes": ("int8", "prune(0.5)+int8"), "formats": ("onnx", "c")}


def main() -> int:
    """Parse, read, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=PROJECT / "results")
    results: Path = parser.parse_args().results_dir.resolve()
    if not results.is_dir():
        raise SystemExit(f"{results} is no directory: give --results-dir a directory of results")
    try:
        text = page(results)
    except (AccelError, MonitorError) as error:
        raise SystemExit(str(error)) from None
    target = results / "published" / "README.md"
    target.parent.mkdir(exist_ok=True)
    write_atomically(target, text.encode())
    print(f"{target} is written")
    return 0


def page(results: Path) -> str:
    """The whole page."""
    cells, cases = read_actor_time(results), read_cases(results)
    tables = (actor_table(cells), step_table(cases), training_table(cases), export_table(results))
    titles = ("Actor time", "Step and pull", "Whole training", "Exported policies")
    parts = [
        "# Published figures and ours",
        table_text(Table("What is published.", ("system", "paper", "figures"), PAPERS)),
        CAVEAT,
        _machines(cells, cases),
    ]
    for title, table in zip(titles, tables, strict=True):
        if table is not None:
            parts += [f"## {title}", table_text(table)]
    missing = unmeasured(cases, results, dict(zip(titles, tables, strict=True)))
    parts += ["## Not measured", table_text(Table("Of these no sample is kept.", ("what", "why"), missing))]
    parts.append(
        "Made by `python scripts/evidence/published.py` from the samples beside it; they hold all figures of ours."
    )
    return "\n\n".join(parts) + "\n"


def actor_table(cells: Sequence[ActorCell]) -> Table | None:
    """AcceRL's actor time; None without rows."""
    rows = []
    for cell in cells:
        best, torch, share = cell.best, cell.torch, cell.policy_share
        rows.append(
            (
                torch["env"],
                torch["network"],
                str(torch["envs"]),
                *(_times(cell.ratio(scheme)) for scheme in SCHEMES),
                "–" if best is None else f"{_times(cell.ratio(best))} {best}",
                _times(cell.limit),
                f"{'policy' if share >= 0.5 else 'environment'}, {share:.0%}",
                "–" if best is None else ACTOR.placed(cell.ratio(best)),
            )
        )
    names = ("environment", "network", "envs", "ORT fp32", *(f"ORT {scheme}" for scheme in SCHEMES[1:]), "best")
    columns = (*names, "limit", "bound by, and policy's share", f"AcceRL {ACTOR.low:g}–{ACTOR.high:g}")
    caption = (
        "One actor alone, without a learner: torch eager's time per environment step over the scheme's. Best: the "
        "fastest scheme of this network, without students and fp16. Limit: over the environment's time alone. Bound: "
        "the greater part of torch eager's time, and how much of it the policy takes."
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def step_table(cases: Sequence[KeptCase]) -> Table | None:
    """ActorQ's step and pull, from the actors' clocks in whole trainings; None without torch actors."""
    rows = []
    for case in (case for case in cases if case.on_torch):
        step, pull = step_and_pull_us(case.analysis.groups[0].runs)
        for group in case.analysis.groups[1:]:
            ours = step_and_pull_us(group.runs)
            ratio = (step + pull) / sum(ours)
            rows.append(
                (
                    case.name,
                    group.label,
                    f"{steps_per_policy(group.runs):,.0f}".replace("nan", "–"),
                    *(f"{number(before)} → {number(after)}" for before, after in zip((step, pull), ours, strict=True)),
                    _times(ratio),
                    STEP_AND_PULL.placed(ratio),
                    f"{case.bound(case.analysis.groups[0].label)} → {case.bound(group.label)}",
                )
            )
    head = ("case", "actors", "steps a policy", "step, µs", "pull, µs")
    columns = (*head, "step and pull", f"ActorQ {STEP_AND_PULL.low:g}–{STEP_AND_PULL.high:g}", "bound")
    caption = (
        "Actors' time per environment step in whole trainings, torch eager → the scheme, medians over seeds. Step: "
        "environment, policy and overhead; pull: receiving, deserialising and loading policies. Steps a policy: "
        "environment steps between two published policies, ActorQ's being 30 (1.6×) and 300 (2.0×). Wherever fp32 "
        "stood in for a scheme that was not ready or not fit, its time counts as the scheme's."
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def training_table(cases: Sequence[KeptCase]) -> Table | None:
    """AcceRL's whole training time and ActorQ's end to end; None without a case."""
    rows = [_training_row(case, index) for case in cases for index in range(len(case.analysis.comparisons))]
    columns = (
        *("case", "actors", "against", "seeds", "time", "times as fast", "time saved"),
        *(f"AcceRL {TRAINING.low:.1%}–{TRAINING.high:.1%}", f"ActorQ {END_TO_END.low:g}–{END_TO_END.high:g}×"),
        *("return", "bound"),
    )
    caption = (
        "Training time to the return that a case stops at, or of equal steps; ratios of geometric means over seeds "
        "with Welch's 95 % interval, corrected (Bonferroni) for all actors of a case together. Where it contains 1, or "
        "there are fewer than five seeds, no difference is shown."
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def _training_row(case: KeptCase, index: int) -> tuple[str, ...]:
    comparison, baseline = case.analysis.comparisons[index], case.analysis.groups[0]
    speedup, bound = comparison.speedups.get(case.quantity), comparison.bounds.get(case.quantity)
    what = "equal steps" if case.quantity == "training_s" else f"to {case.analysis.threshold:.4g}"
    against = "torch eager" if case.on_torch else f"{baseline.label}, ORT"
    head = (case.name, comparison.group.label, against, f"{len(comparison.group.runs)} / {len(baseline.runs)}", what)
    tail = (
        OUTCOMES.get(comparison.verdict.outcome, "not tested"),
        f"{case.bound(baseline.label)} → {case.bound(comparison.group.label)}",
    )
    if speedup is None:
        said = "–" if bound is None else f"{bound.side} {bound.ratio:.3g}×, {bound.failed} seeds failed"
        return (*head, said, "–", "–", "–", *tail)
    if speedup.finding in {"undecided", "too_few_seeds"}:
        return (*head, times(speedup), "not shown", "not shown", "not shown", *tail)
    saved = speedup.time_saved
    places = (TRAINING.placed(saved), END_TO_END.placed(speedup.ratio.estimate))
    return (*head, times(speedup), f"{saved:.1%}".replace("-", "−"), *places, *tail)


def export_table(results: Path) -> Table | None:
    """QuaRL's deployed policies; None without reports."""
    rows = []
    for contract, report in read_exports(results):
        if contract["scheme"] not in EXPORTED["schemes"] or contract["target"]["format"] not in EXPORTED["formats"]:
            continue
        smaller, returns = float(report["bytes"]["ratio"]), report["returns"] or {}
        change = "not played"
        if difference := returns.get("difference"):
            ends = f"[{difference['low']:.4g}, {difference['high']:.4g}]"
            change = f"{difference['estimate']:+.4g} {ends} of {returns['fp32']['mean']:.4g}"
        rows.append(
            (
                contract["environment"]["id"],
                str(contract["source"]["network"]),
                contract["scheme"],
                contract["target"]["format"],
                _times(smaller),
                SMALLER.placed(round(smaller, 1)),
                _times(float(report["latency"]["speed_up_p50"])),
                change,
            )
        )
    head = ("environment", "network", "scheme", "format")
    columns = (*head, "smaller", "QuaRL 4×", "as fast", "return, change of fp32's")
    caption = (
        "Against the fp32 ONNX model on onnxruntime, one observation a call, on this machine's processor; nothing but "
        "the policy runs, so the policy is the bound. QuaRL's 14 to 18× are of large policies on a Raspberry Pi."
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def unmeasured(
    cases: Sequence[KeptCase], results: Path, tables: dict[str, Table | None]
) -> tuple[tuple[str, str], ...]:
    """What published results have and no kept sample answers, with the reason."""
    runs = [run for case in cases for run in case.runs]
    networks = {str(run.config.get("network")) for run in runs if run.config.get("stop_at_return") is not None}
    large = [run for run in runs if run.config.get("network") == "mlp:2048x3" and run.summary is not None]
    found = [(title, "no samples") for title, table in tables.items() if table is None]
    if not any(str((run.summary or {}).get("device")).startswith("cuda") for run in large):
        found.append(("ActorQ's 2048×3 end to end with a learner on a GPU", "needs one: scripts/reproduce/gpu"))
    if lacking := pong_lacks(cases):
        found.append(("Pong to a given return with every compression", lacking))
    if not networks & {"mlp:512x3", "mlp:2048x3"}:
        found.append(("a 512×3 or larger policy to a given return", "only the time of equal steps is kept"))
    found += [
        ("ActorQ's D4PG and DQN with replay", "other algorithms: here actor-critics correct fresh experience"),
        ("QuaRL's carbon emissions", "no power was metered"),
        ("QuaRL's Raspberry Pi", "no such machine"),
    ]
    known = {case.name for case in cases}
    for path in (PROJECT / "scripts/evidence/cases.toml", PROJECT / "scripts/reproduce/gpu.toml"):
        for name, case in training_cases.read_cases(path).items():
            if name not in known and not (results / name / "runs.json").is_file():
                found.append((f"{name}: {case.title}", "no run is kept"))
    return tuple(found)


def _machines(cells: Sequence[ActorCell], cases: Sequence[KeptCase]) -> str:
    found = {f"{cell.torch['cpu']}, {cell.torch['cores']} cores" for cell in cells}
    for machine in (run.machine for case in cases for run in case.runs):
        gpus = ", ".join(str(gpu.get("name")) for gpu in machine.get("gpus") or [])  # type: ignore[attr-defined]
        found.add(f"{machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores{', ' + gpus if gpus else ''}")
    return f"Ours were measured on: {'; '.join(sorted(found)) or 'no machine yet'}."


def _times(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}×"


if __name__ == "__main__":
    sys.exit(main())
