"""Kept samples in the terms of published figures: actor time, step and pull, whole trainings, exported policies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from accel.runs.reporting import kept_run_paths, load_kept_run
from monitor.report.analysis import Analysis, Choices, analyse
from monitor.report.runs import Run

Row = Mapping[str, Any]
STEP, PULL = ("env", "policy", "overhead"), ("pull", "deserialise", "load")
_MAY_DIFFER = frozenset({"compressor", "actor_runtime", "seed", "name", "results_dir", "variant"})
_OTHER_NETWORKS, _SAME_KERNELS = "distill", "fp16"
_ACTING = ("torch", "fp32", "int8", "prune", "auto")
_BOUNDS = {
    "learner": "learner",
    "policy": "actors (policy)",
    "environment": "actors (environment)",
    "balanced": "neither alone",
}


@dataclass(frozen=True)
class KeptCase:
    """A comparison of compressions in training, from the samples of its runs.

    Attributes:
        name: its directory's. runs: of all its variants that can be compared.
        analysis: against torch eager, or against fp32 on onnxruntime where torch was not run.
    """

    name: str
    runs: tuple[Run, ...]
    analysis: Analysis

    @property
    def quantity(self) -> str:
        """What its training time is: to the return it stops at, or of equal steps."""
        return "training_s" if self.runs[0].config.get("stop_at_return") is None else "time_to_threshold_s"

    @property
    def on_torch(self) -> bool:
        """Whether the baseline acts with torch eager, as published ones do."""
        return self.analysis.groups[0].config.get("actor_runtime") == "torch"

    def bound(self, label: str) -> str:
        """What bounds a variant's speed."""
        found = next(result.bottleneck for result in self.analysis.results if result.group.label == label)
        return "unknown" if found is None else _BOUNDS[found.limit]


def read_cases(results: Path) -> list[KeptCase]:
    """Every case whose variants differ in how actors act, and not in anything else."""
    found = []
    for path in sorted(results.glob("*/runs.json")):
        runs = [load_kept_run(run) for run in kept_run_paths(path.parent)]
        baseline = _baseline(runs)
        if baseline is None:
            continue
        comparable = tuple(run for run in runs if _same_task(run, baseline))
        if len({run.config.get("variant") for run in comparable}) > 1:
            choices = Choices(group_by=("variant",), force=True)
            found.append(KeptCase(path.parent.name, comparable, analyse(comparable, choices, baseline)))
    return found


def _baseline(runs: Sequence[Run]) -> Run | None:
    eager = (run for run in runs if run.config.get("actor_runtime") == "torch")
    full = (run for run in runs if run.config.get("compressor") == "fp32")
    return next(eager, None) or next(full, None)


def _same_task(run: Run, baseline: Run) -> bool:
    """Whether options that both have agree, but those of acting; a later commit may have more of them."""
    shared = run.config.keys() & baseline.config.keys() - _MAY_DIFFER
    return all(run.config[key] == baseline.config[key] for key in shared)


def pong_lacks(cases: Iterable[KeptCase]) -> str:
    """What kept trainings of Pong to a given return lack of every compression; empty where one case has them all."""
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
    """Torch, or the scheme's name; pruned ones alike, whatever their shares."""
    if run.config.get("actor_runtime") == "torch":
        return "torch"
    scheme = str(run.config.get("compressor"))
    return "prune" if scheme.startswith("prune") else scheme


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
    """One actor alone, without a learner: what each scheme makes of its time.

    Attributes:
        torch: the row of torch eager. by_scheme: those of onnxruntime.
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
        names = [name for name in self.by_scheme if not name.startswith(_OTHER_NETWORKS) and name != _SAME_KERNELS]
        return max(names, key=self.ratio, default=None)

    @property
    def limit(self) -> float:
        """Torch eager's time over the environment's alone, which no policy can pass."""
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
            key = "torch" if row["runtime"] == "torch" else row["scheme"]
            cells.setdefault((row["env"], row["network"], row["envs"]), {})[key] = row
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
