#!/usr/bin/env python
"""Published figures of AcceRL, ActorQ and QuaRL beside our nearest measurements, with the bottleneck of each.

    python scripts/evidence/published.py

Reads actor_time/rows, every CASE/runs.json and the reports of export-table under the results directory, as far as they
exist, and writes published/README.md. It measures nothing; figures without kept samples are listed as not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

import training_runs  # noqa: E402

from accel.errors import AccelError  # noqa: E402
from accel.monitor.errors import MonitorError  # noqa: E402
from accel.reports.analysis import Analysis, Choices, analyse  # noqa: E402
from accel.reports.markdown import table_text  # noqa: E402
from accel.reports.reporting import kept_run_paths, load_kept_run  # noqa: E402
from accel.reports.runs import Run  # noqa: E402
from accel.reports.tables import Table  # noqa: E402
from accel.reports.wording import number, times  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402

OUTCOMES = {
    "no_loss": "no loss",
    "gain": "higher",
    "loss": "lower",
    "too_few_seeds": "too few seeds",
    "undecided": "undecided",
}
SCHEMES = ("fp32", "int8", "prune(0.5)+int8")
EXPORTED = {"schemes": ("int8", "prune(0.5)+int8"), "formats": ("onnx", "c")}
Row = Mapping[str, Any]
STEP, PULL = ("env", "policy", "overhead"), ("pull", "deserialise", "load")
_MAY_DIFFER = frozenset({"compressor", "actor_runtime", "seed", "name", "results_dir", "variant"})
_OTHER_NETWORKS, _SAME_KERNELS, _ORT = "distill", "fp16", "ORT fp32"
_ACTING = ("torch", "fp32", "int8", "prune", "auto")
_BOUNDS = {
    "learner": "learner",
    "policy": "actors (policy)",
    "environment": "actors (environment)",
    "balanced": "neither alone",
}


@dataclass(frozen=True)
class Claim:
    """A published range, of what, and by whom."""

    system: str
    what: str
    low: float
    high: float

    def placed(self, value: float) -> str:
        """Where a value lies."""
        if math.isnan(value):
            return "–"
        return "below" if value < self.low else "above" if value > self.high else "within"


ACTOR = Claim("AcceRL", "actor time divided by", 2.0, 4.13)
TRAINING = Claim("AcceRL", "whole training time saved", 0.298, 0.403)
END_TO_END = Claim("ActorQ", "end to end, times as fast", 1.5, 2.5)
STEP_AND_PULL = Claim("ActorQ", "step and pull, times as fast", 1.6, 2.0)
SMALLER = Claim("QuaRL", "times smaller", 4.0, 4.0)
PAPERS = (
    (
        "AcceRL",
        "Zhang et al., AcceRL: Policy Acceleration Framework for Deep Reinforcement Learning, 2022, arXiv:2211.15023",
        "actor time divided by 2.0 to 4.13; whole training time −29.8 % to −40.3 % at the same policy quality, on gym",
    ),
    (
        "ActorQ",
        "Lam et al., ActorQ: Quantization for Actor-Learner Distributed Reinforcement Learning, ICLR workshop on "
        "Hardware Aware Efficient Training, 2021; part of arXiv:1910.01055",
        "1.5 to 2.5× end to end at the same convergence, policies of 2048×3, D4PG and DQN; step and pull of int8 1.6× "
        "as fast with a pull every 30 steps, 2.0× with one every 300",
    ),
    (
        "QuaRL",
        "Krishnan et al., QuaRL: Quantization for Fast and Environmentally Sustainable Reinforcement Learning, TMLR, "
        "2022, arXiv:1910.01055",
        "1.5 to 5.41× end to end, carbon emissions 1.9 to 3.76 times lower; large policies deployed on a Raspberry Pi "
        "4× smaller and 14 to 18× as fast in int8, success 11 to 15 points lower",
    ),
)
CAVEAT = (
    "The published figures are of other machines, frameworks, environments and algorithms than ours, each against its "
    "own baseline; ours are against torch eager actors. What a runtime gains without compression stands under fp32. "
    "Below, within and above say where a figure of ours lies beside a published range, not which system is "
    "better."
)


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
                *(_times(cell.ratio(scheme)) for scheme in (_ORT, *SCHEMES)),
                "–" if best is None else f"{_times(cell.ratio(best))} {best}",
                _times(cell.limit),
                f"{'policy' if share >= 0.5 else 'environment'}, {share:.0%}",
                "–" if best is None else ACTOR.placed(cell.ratio(best)),
            )
        )
    names = ("environment", "network", "envs", _ORT, *SCHEMES, "best")
    columns = (*names, "limit", "bound by, and policy's share", f"AcceRL {ACTOR.low:g}–{ACTOR.high:g}")
    caption = (
        "One actor alone, without a learner: torch eager's time per environment step over the scheme's, which runs on "
        "compiled kernels where it is a chain of dense layers, else on onnxruntime (ORT). Best: the "
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
    timed = [case for case in cases if case.runs[0].config.get("actors") != 0]
    rows = [_training_row(case, index) for case in timed for index in range(len(case.analysis.comparisons))]
    columns = (
        *("case", "actors", "against", "seeds", "time", "times as fast", "time saved"),
        *(f"AcceRL {TRAINING.low:.1%}–{TRAINING.high:.1%}", f"ActorQ {END_TO_END.low:g}–{END_TO_END.high:g}×"),
        *("return", "bound"),
    )
    caption = (
        "Training time to the return that a case stops at, or of equal steps; ratios of geometric means over seeds "
        "with Welch's 95 % interval, corrected (Bonferroni) for all actors of a case together. Where it contains 1, or "
        "there are fewer than five seeds, no difference is shown. Cases in one process, several of which shared the "
        "machine at a time, are about returns and left out."
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def _training_row(case: KeptCase, index: int) -> tuple[str, ...]:
    comparison, baseline = case.analysis.comparisons[index], case.analysis.groups[0]
    speedup, bound = comparison.speedups.get(case.quantity), comparison.bounds.get(case.quantity)
    what = "equal steps" if case.quantity == "training_s" else f"to {case.analysis.threshold:.4g}"
    ran_on = (baseline.runs[0].summary or {}).get("actor_runtime", baseline.runs[0].config.get("actor_runtime"))
    runtime = "ORT" if ran_on == "onnxruntime" else "kernels"
    against = "torch eager" if case.on_torch else f"{baseline.label}, {runtime}"
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
    """Published results without a kept sample to compare, with the reason."""
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
        ("ActorQ's D4PG and DQN to a return at 2048×3", "one CPU core's learner would hold up every actor"),
        ("QuaRL's carbon emissions", "no power was metered"),
        ("QuaRL's Raspberry Pi", "no such machine"),
    ]
    known = {case.name for case in cases}
    for path in (PROJECT / "scripts/evidence/cases.toml", PROJECT / "scripts/reproduce/gpu.toml"):
        for name, case in training_runs.read_cases(path).items():
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


@dataclass(frozen=True)
class KeptCase:
    """A comparison of compressions in training, from the samples of its runs.

    Attributes:
        name: its directory's. runs: of all its variants that can be compared.
        analysis: against torch eager, or against fp32 where torch was not run.
    """

    name: str
    runs: tuple[Run, ...]
    analysis: Analysis

    @property
    def quantity(self) -> str:
        """The meaning of its training time: to the return it stops at, or for equal steps."""
        return "training_s" if self.runs[0].config.get("stop_at_return") is None else "time_to_threshold_s"

    @property
    def on_torch(self) -> bool:
        """Whether the baseline acts with torch eager, as published ones do."""
        return self.analysis.groups[0].config.get("actor_runtime") == "torch"

    def bound(self, label: str) -> str:
        """The bottleneck of a variant."""
        found = next(result.time_shares for result in self.analysis.results if result.group.label == label)
        return "unknown" if found is None else _BOUNDS[found.limit]


def read_cases(results: Path) -> list[KeptCase]:
    """Every case whose variants differ in the acting policy only."""
    found = []
    for path in sorted(results.glob("*/runs.json")):
        if not _is_of_a_case(path):
            continue
        runs = [load_kept_run(run) for run in kept_run_paths(path.parent)]
        baseline = _baseline(runs)
        if baseline is None:
            continue
        comparable = tuple(run for run in runs if _same_task(run, baseline))
        if len({run.config.get("variant") for run in comparable}) > 1:
            choices = Choices(group_by=("variant",), force=True)
            found.append(KeptCase(path.parent.name, comparable, analyse(comparable, choices, baseline)))
    return found


def _is_of_a_case(path: Path) -> bool:
    """Whether ``training_runs.py`` wrote these samples, or nobody can tell; others have samples of their own kind."""
    try:
        return "case" in json.loads(path.read_text())
    except ValueError:
        return True


def _baseline(runs: Sequence[Run]) -> Run | None:
    eager = (run for run in runs if run.config.get("actor_runtime") == "torch")
    full = (run for run in runs if run.config.get("compressor") == "fp32")
    return next(eager, None) or next(full, None)


def _same_task(run: Run, baseline: Run) -> bool:
    """Whether the options that both have are equal, except those of acting; commits may differ in options."""
    shared = run.config.keys() & baseline.config.keys() - _MAY_DIFFER
    return all(run.config[key] == baseline.config[key] for key in shared)


def pong_lacks(cases: Iterable[KeptCase]) -> str:
    """The compressions without a kept training of Pong to a given return; empty if one case has all."""
    to_return = [
        {_acting(run) for run in case.runs if run.summary is not None}
        for case in cases
        if "Pong" in str(case.runs[0].config.get("env")) and case.runs[0].config.get("stop_at_return") is not None
    ]
    if not to_return:
        return "only trainings of equal steps are kept"
    kept = max(to_return, key=lambda found: len(found.intersection(_ACTING)))
    lacking = [name for name in _ACTING if name not in kept]
    return f"no run is kept with {', '.join(lacking)}" if lacking else ""


def _acting(run: Run) -> str:
    """Torch, or the scheme's name; pruned ones alike, whatever their shares, and ``auto``, whatever its levels."""
    if run.config.get("actor_runtime") == "torch":
        return "torch"
    scheme = str(run.config.get("compressor"))
    return next((kind for kind in ("prune", "auto") if scheme.startswith(kind)), scheme)


def step_and_pull_us(runs: Iterable[Run]) -> tuple[float, float]:
    """Microseconds an environment step of stepping (environment, policy, overhead) and of taking over policies.

    Medians over runs; NaN where unknown.
    """
    times = [(run.seconds_by_phase("actor"), run.timed_steps()) for run in runs]
    known = [(seconds, steps) for seconds, steps in times if seconds and steps > 0]
    if not known:
        return math.nan, math.nan
    step, pull = (
        median(1e6 * sum(seconds.get(phase, 0.0) for phase in phases) / steps for seconds, steps in known)
        for phases in (STEP, PULL)
    )
    return step, pull


def steps_per_policy(runs: Iterable[Run]) -> float:
    """Environment steps of all actors between two published policies, the median over runs; NaN where unknown."""
    known = [
        int(str(run.config.get("publish_interval_updates", 1))) * run.summary["env_steps"] / run.summary["updates"]  # type: ignore[operator]
        for run in runs
        if run.summary is not None and run.summary.get("updates")
    ]
    return median(known) if known else math.nan


@dataclass(frozen=True)
class ActorCell:
    """The time of one actor alone, without a learner, by scheme.

    Attributes:
        torch: the row of torch eager.
        by_scheme: those of the schemes as actors run them, on compiled kernels or on onnxruntime, and ``_ORT``.
    """

    torch: Row
    by_scheme: Mapping[str, Row]

    def ratio(self, scheme: str) -> float:
        """Torch eager's time over a scheme's; NaN where that was not measured."""
        row = self.by_scheme.get(scheme)
        return math.nan if row is None else float(self.torch["us_per_env_step"] / row["us_per_env_step"])

    @property
    def best(self) -> str | None:
        """The fastest scheme that compresses this very network; None without one."""
        names = [n for n in self.by_scheme if not n.startswith(_OTHER_NETWORKS) and n not in (_SAME_KERNELS, _ORT)]
        return max(names, key=self.ratio, default=None)

    @property
    def limit(self) -> float:
        """Torch eager's time over the environment's alone, the upper limit for any policy."""
        return float(self.torch["us_per_env_step"] / self.torch["env_only_us"])

    @property
    def policy_share(self) -> float:
        """The policy's share of torch eager's time."""
        return float(self.torch["policy_us"] / self.torch["us_per_env_step"])


def read_actor_time(results: Path) -> list[ActorCell]:
    """Every environment, network and number of environments that was measured with torch eager."""
    rows = [row for path in sorted(results.glob("actor_time/rows/actor-*.json")) for row in _read(path)]
    cells: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        if "us_per_env_step" in row:
            cell = cells.setdefault((row["env"], row["network"], row["envs"]), {})
            if row["runtime"] == "torch":
                cell["torch"] = row
            elif row["runtime"] == "native" or row["scheme"] not in cell:
                cell[row["scheme"]] = row
            if (row["runtime"], row["scheme"]) == ("onnxruntime", SCHEMES[0]):
                cell[_ORT] = row
    return [
        ActorCell(found["torch"], {name: row for name, row in found.items() if name != "torch"})
        for _, found in sorted(cells.items())
        if "torch" in found
    ]


def read_exports(results: Path) -> list[tuple[Row, Row]]:
    """(contract, report) of every exported bundle of which the report was kept, by environment, scheme and format."""
    kept = [_read(path) for path in sorted(results.glob("export-table/*/*.json"))]
    found = [(row["contract"], row["report"]) for row in kept if "contract" in row and "report" in row]
    return sorted(found, key=lambda one: (one[0]["environment"]["id"], one[0]["scheme"], one[0]["target"]["format"]))


def _read(path: Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise SystemExit(f"{path} is damaged ({error}): restore it, or measure again") from None


if __name__ == "__main__":
    sys.exit(main())
