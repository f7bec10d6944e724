"""Runs a sweep of either kind from its first trial to its tables, figures and configurations."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.display.text import duration
from accel.json_object import Json
from accel.sweep.endings import SAME_AS, tally
from accel.sweep.errors import SweepError
from accel.sweep.front import Row, balanced, front, nearest_miss
from accel.sweep.hosts import one_host
from accel.sweep.outputs import Findings, write_outputs
from accel.sweep.quantities import Quantity, Values
from accel.sweep.recovery import ERROR
from accel.sweep.storage import connected
from accel.sweep.study import (
    MEASURED,
    OWN_BOUNDS,
    SKIPPED,
    Outcome,
    StudyOptions,
    counts,
    open_study,
    remaining_seconds,
    work,
)
from accel.system.atomic import write_atomically
from accel.system.signals import terminations_interrupt

# Contenders that are measured again may be this much worse than others at first.
_SLACK = 0.1
_LOCK, _ABOUT = ".lock", "study.json"

logger = logging.getLogger("accel")


class Experiment(Protocol):
    """What trials are."""

    @property
    def quantities(self) -> Mapping[str, Quantity]:
        """What trials measure."""
        ...

    @property
    def kind(self) -> str:
        """``after training`` or ``in training``."""
        ...

    @property
    def title(self) -> str:
        """What is swept, in a few words."""
        ...

    @property
    def references(self) -> Values:
        """What fp32 has, by quantity, as far as it was measured."""
        ...

    def subject(self) -> Json:
        """Plain JSON that tells this sweep from others; a study is about one subject."""
        ...

    def prepare(self, study: Study, directory: Path) -> None:
        """Measure what trials are compared with, and queue the first ones; called by every worker, one at a time."""
        ...

    def evaluate(self, trial: Trial) -> Outcome:
        """Measure one trial. Raises AccelError for one that fails."""
        ...

    def label(self, trial: FrozenTrial) -> str:
        """What a trial tried, in a line; trials of one label are one candidate."""
        ...

    def configuration(self, trial: FrozenTrial) -> Mapping[str, object]:
        """Values of a TOML file with which ``accel train`` trains what the trial tried."""
        ...

    def export_command(self, label: str, directory: Path) -> str | None:
        """What exports a candidate into a directory; None where ``accel train`` comes first."""
        ...

    def how_measured(self) -> str:
        """How figures came about, in a few sentences, for the table."""
        ...

    def measure_again(self, rows: list[Row]) -> list[Row]:
        """The front measured anew under equal conditions, where that makes it more exact."""
        ...


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found.

    Attributes:
        directory: where everything is.
        front: the best trade-offs, best in the first objective first.
        trials: how many trials the study has that came to their end.
        configurations: TOML files of the front, in its order.
        exports: commands that export the front as it is, in its order; none in training.
        tally: how all trials ended, in a line.
    """

    directory: Path
    front: tuple[Row, ...]
    trials: int
    configurations: tuple[Path, ...]
    exports: tuple[str, ...]
    tally: str


def run_sweep(experiment: Experiment, options: StudyOptions, directory: Path, command: Sequence[str]) -> SweepResult:
    """Join or begin a study, work on it until it is complete, and write what it found.

    Args:
        experiment: what trials are.
        options: how the study searches.
        directory: for outputs; made here, after everything else was checked.
        command: the command line, for the record.
    Raises:
        SweepError: the study cannot be opened, it or the directory is about something else, every trial failed, or none
            is feasible.
        KeyboardInterrupt: a worker was interrupted; its trial is queued again.
    """
    directory = directory.absolute()
    with (
        _writable(directory),
        one_host(options.url),
        terminations_interrupt(),
        connected(options.url) as storage,
    ):
        with _one_at_a_time(directory):
            about = {"study": options.name, **json.loads(json.dumps(experiment.subject()))}
            _check_directory(directory, about)
            study = open_study(options, storage, experiment.subject())
            write_atomically(directory / _ABOUT, json.dumps(about, indent=2).encode() + b"\n")
            experiment.prepare(study, directory)
        done, _ = counts(study)
        if done:
            logger.info("study %r has %d of %d trials; going on", options.name, done, options.trials)
        work(study, options, experiment.evaluate, lambda s, trial: _report(experiment, options, s, trial))
        with _one_at_a_time(directory):
            return _conclude(experiment, options, study, directory, command)


def rows_of(experiment: Experiment, study: Study) -> list[Row]:
    """Every trial whose objectives were measured, but those that repeat another."""
    rows: list[Row] = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if SAME_AS in trial.user_attrs:
            continue
        own = trial.user_attrs.get(OWN_BOUNDS, [])
        unmet = {name: trial.constraints[name] for name in own if trial.constraints[name] > 0}
        label, measured = experiment.label(trial), trial.user_attrs[MEASURED]
        rows.append(Row(trial.number, label, measured, trial.params, experiment.references, unmet))
    return rows


def _conclude(
    experiment: Experiment, options: StudyOptions, study: Study, directory: Path, command: Sequence[str]
) -> SweepResult:
    rows = rows_of(experiment, study)
    objectives, constraints = options.objectives, options.constraints
    again: dict[int, Row] = {}
    while True:  # a contender that is worse than it seemed leaves its place to others, to be measured again in turn
        contenders = front(rows, objectives, constraints, _SLACK)
        if all(row.number in again for row in contenders):
            break
        again |= {row.number: row for row in experiment.measure_again(contenders)}
        rows = [again.get(row.number, row) for row in rows]
    found = front(contenders, objectives, constraints)
    commands = [experiment.export_command(row.label, directory / "exported" / f"{row.number:04d}") for row in found]
    exports = tuple(command for command in commands if command is not None)
    findings = Findings(
        kind=experiment.kind,
        title=experiment.title,
        options=options,
        references=experiment.references,
        rows=rows,
        front=found,
        balanced=balanced(found, objectives),
        labels={trial.number: experiment.label(trial) for trial in study.get_trials(deepcopy=False)},
        configurations={row.number: experiment.configuration(study.trials[row.number]) for row in found},
        command=tuple(command),
        exports=exports,
        how_measured=experiment.how_measured(),
    )
    files = write_outputs(findings, study, directory)
    done, _ = counts(study)
    if not found:
        raise SweepError(_nothing_feasible(options, rows, done, directory))
    return SweepResult(directory, tuple(found), done, files, exports, tally(study.trials))


def _nothing_feasible(options: StudyOptions, rows: Sequence[Row], done: int, directory: Path) -> str:
    nearest = nearest_miss(rows, options.constraints)
    if nearest is None:
        reason = "no trial was measured to its end: see the reasons in pareto.json, and allow milder choices"
        return f"after {done} trials there is no candidate: {reason}. Everything measured is in {directory}"
    missed = [
        f"{c.quantity} {nearest.values[c.quantity]:.6g} where {c.bound(nearest.references):.6g} is the bound"
        for c in options.constraints
        if c.violation(nearest.values[c.quantity], nearest.references) > 0
    ]
    missed += [f"{name} missed by {share:.1%}" for name, share in nearest.unmet.items()]
    figures = ", ".join(missed)
    wanted = " and ".join([*(constraint.text for constraint in options.constraints), *nearest.unmet])
    return (
        f"none of {done} trials meets {wanted}. Nearest is trial {nearest.number} ({nearest.label}): {figures}. Relax "
        f"the constraint, widen the space or give more --trials; everything measured is in {directory}"
    )


def _report(experiment: Experiment, options: StudyOptions, study: Study, trial: FrozenTrial) -> None:
    done, _ = counts(study)
    parts = [f"trial {trial.number} ({min(done, options.trials)}/{options.trials})", experiment.label(trial)]
    measured: Values = trial.user_attrs.get(MEASURED, {})
    parts += [
        f"{name} {measured[name]:.4g} {quantity.unit}".rstrip()
        for name, quantity in experiment.quantities.items()
        if name in measured
    ]
    if ERROR in trial.user_attrs:
        parts.append(f"failed: {trial.user_attrs[ERROR]}")
    elif SKIPPED in trial.user_attrs:
        parts.append(str(trial.user_attrs[SKIPPED]))
    elif trial.state == TrialState.PRUNED:
        parts.append("pruned")
    seconds = remaining_seconds(study, options.trials)
    if seconds and done < options.trials:
        parts.append(f"about {duration(seconds)} left")
    logger.info(" | ".join(parts))


def _check_directory(directory: Path, about: Mapping[str, object]) -> None:
    """Raises SweepError: the directory has another study's runs and tables, which would be taken for this one's."""
    file = directory / _ABOUT
    if not file.exists():
        return
    try:
        found = json.loads(file.read_bytes())
        differing = [key for key in {**found, **about} if found.get(key) != about.get(key)]
    except (ValueError, TypeError) as error:
        raise SweepError(f"{file} is damaged ({error}): give another --out, or remove the directory") from error
    if differing:
        what = "; ".join(f"{key} was {found.get(key)} and is {about.get(key)}" for key in differing)
        raise SweepError(f"{directory} holds another study: {what}. Give another --out, or the options that it had")


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    """A directory that can be written; if it was made here and stays without content, it is gone at the end.

    Raises:
        SweepError: it cannot be made or written.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    probe = directory / f".probe-{os.getpid()}"
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SweepError(f"cannot write to {directory}: {error.strerror}; choose another --out") from error
        yield
    finally:
        with suppress(OSError):  # not empty: there is something to keep
            if made and [entry.name for entry in directory.iterdir()] == [_LOCK]:
                (directory / _LOCK).unlink()
            for path in made:
                path.rmdir()


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Workers on one host begin and end one after the other, so that nothing is queued or written twice."""
    with (directory / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
