"""Runs and groups of runs: what a training left behind, which are seeds of one another, and what a group is called."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from accel.errors import ReportError
from accel.monitor.bottleneck import TimeShares, shares_of
from accel.monitor.decisions import Decision
from accel.reports.series import ELAPSED, Floats, Series

NOT_CONFIGURATION = frozenset({"seed", "name", "results_dir"})
"""Options in which seeds of one configuration differ."""
FINAL_SHARE = 0.1
"""A run's final return is the mean over this last part of its environment steps."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training run, finished or not.

    Attributes:
        name, path: of its directory.
        config: every option of the run, as in ``config.toml``.
        machine: as in ``machine.json``; empty when that is missing.
        summary: as in ``summary.json``; None for a run that has not finished.
        series: its metrics.
        decisions: of the tuner, oldest first.
        notes: problems with its files.
        starts: processes that trained it; more than 1 for a resumed run, whose summary times only the last part.
    """

    name: str
    path: str
    config: Mapping[str, object]
    machine: Mapping[str, object]
    summary: Mapping[str, object] | None
    series: Series
    decisions: Sequence[Decision] = ()
    notes: tuple[str, ...] = ()
    starts: int = 1

    @property
    def seed(self) -> object:
        """Its seed."""
        return self.config.get("seed")

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of its machine's GPUs."""
        found = self.machine.get("gpus")
        known = found if isinstance(found, list) else []
        return tuple(str(gpu.get("name")) for gpu in known if isinstance(gpu, Mapping))

    @property
    def returns(self) -> Floats:
        """[n] mean return of the last episodes; NaN until ``stop_window`` of them have finished."""
        values = self.series.column("return_mean")
        window, episodes = self.config.get("stop_window"), self.series.column("episodes")
        if not isinstance(window, int) or np.isnan(episodes).all() or np.nanmax(episodes) < window:
            return values
        return np.where(episodes >= window, values, math.nan)

    def column(self, name: str) -> Floats:
        """[n] of a metric; ``returns`` are as the property has them."""
        return self.returns if name == "returns" else self.series.column(name)

    @property
    def training_s(self) -> float:
        """Seconds of training so far."""
        return _last(self.series.column(ELAPSED))

    @property
    def steps(self) -> float:
        """Valid environment steps consumed by the learner so far."""
        return _last(self.series.column("env_steps"))

    @property
    def final_return(self) -> float:
        """Mean return over the last tenth of the steps; of a run that stopped at its target, the return it stopped at.

        NaN when no episode finished.
        """
        returns, target = self.returns, self.config.get("stop_at_return")
        if isinstance(target, int | float) and _last(returns) >= target:
            return _last(returns)
        steps = self.series.column("env_steps")
        late = returns[(steps >= (1 - FINAL_SHARE) * self.steps) & np.isfinite(returns)]
        return float(late.mean()) if late.size else _last(returns)

    def crossing(self, threshold: float) -> tuple[float, float] | None:
        """Training seconds and environment steps when the mean return first reached ``threshold``.

        Interpolated between records, except for a run that stopped there: its last record is the crossing.
        """
        returns, spent = self.returns, [self.series.column(name) for name in (ELAPSED, "env_steps")]
        known = np.flatnonzero(np.isfinite(returns))
        above = np.flatnonzero(returns[known] >= threshold)
        if not above.size:
            return None
        after = known[above[0]]
        stopped_there = after == known[-1] and self.config.get("stop_at_return") == threshold
        if above[0] == 0 or stopped_there:
            before, share = after, 0.0
        else:
            before = known[above[0] - 1]
            share = (threshold - returns[before]) / (returns[after] - returns[before])
        seconds, steps = (values[before] + share * (values[after] - values[before]) for values in spent)
        return float(seconds), float(steps)

    def seconds_by_phase(self, side: str) -> dict[str, float]:
        """Seconds of the ``learner`` or all ``actor`` processes by phase, from the summary or else the records."""
        if self.summary is not None:
            totals = self.summary.get(f"{side}_s")
            if isinstance(totals, Mapping) and totals:
                return {str(k): float(v) for k, v in totals.items() if isinstance(v, int | float)}
        spent = np.diff(self.series.column(ELAPSED), prepend=0.0)
        if side == "actor":
            spent = spent * np.nan_to_num(self.series.column("actors_alive"), nan=1.0)
        shares = {
            name.removeprefix(f"{side}_").removesuffix("_share"): values
            for name, values in self.series.columns.items()
            if name.startswith(f"{side}_") and name.endswith("_share")
        }
        return {phase: float(np.nansum(values * spent)) for phase, values in shares.items()}

    def timed_steps(self) -> float:
        """Environment steps behind ``seconds_by_phase``: a resumed run's summary times its last part only."""
        if self.summary is not None and self.summary.get("actor_s"):
            rate, seconds = self.summary.get("env_steps_per_s"), self.summary.get("training_s")
            if isinstance(rate, int | float) and isinstance(seconds, int | float) and rate * seconds > 0:
                return float(rate * seconds)
        return self.steps

    def us_per_step(self, side: str) -> dict[str, float]:
        """Microseconds of each phase per environment step; empty if unknown."""
        steps = self.timed_steps()
        return {phase: 1e6 * value / steps for phase, value in self.seconds_by_phase(side).items()} if steps > 0 else {}

    @property
    def actor_us_per_step(self) -> float:
        """Microseconds that actors worked per environment step, waiting for the learner left out; NaN if unknown."""
        return sum(us for phase, us in self.us_per_step("actor").items() if phase != "wait") or math.nan

    @property
    def time_shares(self) -> TimeShares | None:
        """Where its time went; None if unknown."""
        turns = self.config.get("actors") == 0
        return shares_of(self.seconds_by_phase("actor"), self.seconds_by_phase("learner"), turns=turns)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration: its seeds.

    Attributes:
        label: a short name that distinguishes it from the other groups.
        runs: at least one, by seed.
        options: the options in which it differs from the other groups.
    """

    label: str
    runs: tuple[Run, ...]
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, object]:
        """The configuration of its first run."""
        return self.runs[0].config

    def values(self, key: str) -> tuple[object, ...]:
        """The values of an option in its runs, each once; several where runs are grouped by other options."""
        found = [run.config.get(key) for run in self.runs]
        return tuple(value for i, value in enumerate(found) if value not in found[:i])

    @property
    def final_returns(self) -> Floats:
        """[n] final returns of the runs that finished an episode."""
        finals = np.array([run.final_return for run in self.runs], np.float64)
        return finals[np.isfinite(finals)]

    @property
    def time_shares(self) -> TimeShares | None:
        """Medians over its runs of where their time went, and with them the bottleneck; None where it is unknown."""
        known = [shares for run in self.runs if (shares := run.time_shares) is not None]
        if not known:
            return None
        return TimeShares(*map(median, zip(*known, strict=True)))


def group_runs(runs: Sequence[Run], keys: Sequence[str] = ()) -> tuple[Group, ...]:
    """Group the seeds of each configuration, in order of appearance.

    Args:
        keys: the options by which to group, - or _ between words; empty: all but seed, name and results_dir.
    Raises:
        ReportError: no run, or a key that no run has.
    """
    if not runs:
        raise ReportError("no run was given")
    known, keys = {key for run in runs for key in run.config}, [key.replace("-", "_") for key in keys]
    if unknown := [key for key in keys if key not in known]:
        raise ReportError(f"no run has an option {unknown[0]!r} to group by; there are {', '.join(sorted(known))}")
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        kept = sorted(k for k in run.config if (k in keys if keys else k not in NOT_CONFIGURATION))
        members.setdefault(tuple((k, repr(run.config[k])) for k in kept), []).append(run)
    groups = [sorted(found, key=lambda run: str(run.seed).rjust(20)) for found in members.values()]
    configs = [found[0].config for found in groups]
    free = known - NOT_CONFIGURATION
    differing = sorted(keys or (k for k in free if len({repr(config.get(k)) for config in configs}) > 1))
    named = [str(config.get(keys[0])) for config in configs] if len(keys) == 1 else labels(configs, differing)
    if max(map(len, named)) > LONGEST_LABEL:
        named = _short(named, [[run.name for run in found] for found in groups])
    return tuple(
        Group(label, tuple(found), {k: found[0].config.get(k) for k in differing})
        for label, found in zip(named, groups, strict=True)
    )


def relabelled(groups: Sequence[Group], names: Sequence[str]) -> tuple[Group, ...]:
    """The groups under names of the user's, in order. Raises ReportError unless each gets one of its own."""
    if len(names) != len(groups):
        found = "; ".join(group.label for group in groups)
        raise ReportError(
            f"{len(names)} labels for {len(groups)} configurations: give one for each, in this order: {found}"
        )
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise ReportError(f"labels {', '.join(map(repr, names))}: each configuration needs one of its own")
    return tuple(replace(group, label=name) for group, name in zip(groups, names, strict=True))


def plain(value: object) -> str:
    """A config value as text."""
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _last(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else math.nan


LONGEST_LABEL = 28
"""Characters. Longer labels would squeeze figures and tables: what differs has a table of its own."""
_SEED, _NUMBER = re.compile(r"[-_]s(eed)?[-_]?\d+$"), re.compile(r"[-_]\d+$")
_UNNAMED = re.compile(r"-\d{8}-\d{6}$")
"""What a run has that nobody named: the time it started."""
_BY_VALUE = ("compressor", "env", "variant")
"""Options of which the value alone says what is meant."""


def labels(configs: Sequence[Mapping[str, object]], differing: Sequence[str]) -> list[str]:
    """A label for each configuration, all of them different: the scheme where it differs or nothing does, and of the
    other options those whose value is not the majority's.

    Args:
        configs: one for each group. differing: the options in which they differ.
    """
    keys = sorted(differing, key=lambda key: key != "compressor") or ["compressor"]
    usual = {key: _majority([config.get(key) for config in configs]) for key in keys if key != "compressor"}
    found = []
    for config in configs:
        unusual = [key for key in keys if key not in usual or repr(config.get(key)) != usual[key]]
        found.append(", ".join(_option(key, config) for key in unusual or keys))
    return _numbered(found)


def _short(long: Sequence[str], members: Sequence[Sequence[str]]) -> list[str]:
    """Labels of at most ``LONGEST_LABEL`` characters: the runs' names, or the beginning of what differs."""
    named = []
    for names in members:
        stems = {_SEED.sub("", name) for name in names}
        stems = {_NUMBER.sub("", stem) for stem in stems} if len(stems) > 1 else stems
        named.append("" if len(stems) > 1 or _UNNAMED.search(min(stems)) else _value(min(stems), LONGEST_LABEL))
    if all(named) and len(set(named)) == len(named):
        return named
    return _numbered([_value(label, LONGEST_LABEL - 4) for label in long])


def _numbered(found: Sequence[str]) -> list[str]:
    return [label if found.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(found)]


def _option(key: str, config: Mapping[str, object]) -> str:
    value = _value(config.get(key))
    return value if key in _BY_VALUE else f"{key}={value}"


def _majority(values: Sequence[object]) -> str | None:
    """What more than half of the values are, as ``repr`` writes it."""
    ((text, count),) = Counter(map(repr, values)).most_common(1)
    return text if 2 * count > len(values) else None


def _value(value: object, longest: int = 40) -> str:
    """The value, of a long one its beginning and its end."""
    text = "none" if value is None else plain(value)
    half = longest // 2
    return text if len(text) <= longest else f"{text[: half - 1]}…{text[-half:]}"
