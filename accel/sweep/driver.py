"""Runs a sweep, after training or in training, from its first trial to tables, plots and configurations."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna.study import Study
from optuna.trial import TrialState

from accel.errors import SweepError
from accel.runs.loading import load_run
from accel.runs.trained_policy import TrainedPolicy
from accel.sweep.after_training import AfterTraining
from accel.sweep.directory import check_directory, one_at_a_time, writable, write_about
from accel.sweep.experiment import Experiment
from accel.sweep.in_training import InTraining
from accel.sweep.objectives import AFTER_TRAINING, IN_TRAINING
from accel.sweep.outputs import Findings, write_outputs
from accel.sweep.pareto import Candidate, front
from accel.sweep.search import CandidateOptions, SearchOptions, StudyPlan
from accel.sweep.storage import connected, storage_file
from accel.sweep.study import MEASURED, SAME_AS, done_trials, open_study, tally, work
from accel.sweep.sweep_file import load_sweep_file
from accel.system.signals import terminations_interrupt

# Candidates this much worse than the front, as a share, are measured again.
_SLACK = 0.1

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        front: the Pareto front, best in the first objective first.
        trials: number of the study's trials that have ended.
        configurations: TOML files of the front, in its order; none for an imported policy.
        exports: commands that export the front, in its order; none in training.
        tally: how all trials ended, in a line.
    """

    directory: Path
    front: tuple[Candidate, ...]
    trials: int
    configurations: tuple[Path, ...]
    exports: tuple[str, ...]
    tally: str


def run_sweep(experiment: Experiment, plan: StudyPlan, directory: Path, command: Sequence[str]) -> SweepResult:
    """Create or join a study, work on it until it is complete, and write its outputs.

    Args:
        directory: for outputs; created after all other input is checked.
        command: the command line, for the record.
    Raises:
        SweepError: the study cannot be opened, it or the directory has another subject, every trial failed, or none is
            feasible.
        KeyboardInterrupt: this worker was interrupted; its trial is queued again.
    """
    directory = directory.absolute()
    with writable(directory), terminations_interrupt(), connected(plan.url) as storage:
        with one_at_a_time(directory):
            about = {"study": plan.name, **json.loads(json.dumps(experiment.subject()))}
            check_directory(directory, about, storage_file(plan.url))
            study = open_study(plan, storage, experiment.subject())
            write_about(directory, about)
            experiment.prepare(study)
        if done := len(done_trials(study)):
            logger.info("study %r has %d of %d trials; continuing", plan.name, done, plan.trials)
        work(study, plan, experiment)
        with one_at_a_time(directory):
            return _conclude(experiment, plan, study, directory, command)


def sweep_run(
    run: Path | TrainedPolicy,
    search: SearchOptions | None = None,
    candidates: CandidateOptions | None = None,
    *,
    command: Sequence[str] = (),
) -> SweepResult:
    """Search per-layer compression of a trained policy: mismatch, measured latency, bytes, then seeded episodes.

        result = accel.sweep_run(Path("results/cheetah"), SearchOptions(trials=200, constraints=("return>=0.95*fp32",)))
        print(result.front[0].label)

    Args:
        run: a run directory with a checkpoint, or a trained policy, also an imported one.
        search: how the study searches; objectives and constraints of ``objectives.AFTER_TRAINING``.
        candidates: how candidates are made and measured.
        command: the command line, for the record.
    Raises:
        AccelError: one clear message; nothing is written before all input is checked.
    """
    search, candidates = search or SearchOptions(), candidates or CandidateOptions()
    trained = load_run(run) if isinstance(run, Path) else run
    directory = search.directory(trained.path.stem if trained.path.is_file() else trained.path.name)
    first = "return" if trained.recorded is None else "kl"
    plan = StudyPlan.of(search, AFTER_TRAINING, directory, 100, (first, "latency", "bytes"))
    return run_sweep(AfterTraining(trained, candidates, plan), plan, directory, command)


def sweep_training(file: Path, search: SearchOptions | None = None, *, command: Sequence[str] = ()) -> SweepResult:
    """Search any fields of the configuration by whole training runs.

    Args:
        file: TOML with [train], [space.FIELD] and [sweep]; see ``sweep_file.load_sweep_file``.
        search: overrides the file's [sweep]; objectives and constraints of ``objectives.IN_TRAINING``.
        command: the command line, for the record.
    Raises:
        AccelError: one clear message; nothing is written before all input is checked.
    """
    loaded = load_sweep_file(file)
    search = (search or SearchOptions()).over(SearchOptions.create(loaded.sweep, f"{file}: [sweep] "))
    directory = search.directory(file.stem)
    plan = StudyPlan.of(search, IN_TRAINING, directory, 20, ("return",))
    return run_sweep(InTraining(loaded, plan, directory), plan, directory, command)


def _candidates(experiment: Experiment, plan: StudyPlan, study: Study) -> list[Candidate]:
    """Those of all complete trials, without repeated ones."""
    wanted = {objective.name for objective in plan.objectives}
    given = {constraint.text for constraint in plan.constraints}
    rows: list[Candidate] = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        label, measured = experiment.label(trial), trial.user_attrs.get(MEASURED, {})
        if SAME_AS in trial.user_attrs or not wanted <= measured.keys():
            continue
        unmet = {name: by for name, by in trial.constraints.items() if name not in given and by > 0}
        rows.append(Candidate(trial.number, label, measured, trial.params, experiment.references, unmet))
    return rows


def _conclude(
    experiment: Experiment, plan: StudyPlan, study: Study, directory: Path, command: Sequence[str]
) -> SweepResult:
    objectives, constraints = plan.objectives, plan.constraints
    candidates = _candidates(experiment, plan, study)
    contenders = front(candidates, objectives, constraints, _SLACK)
    again = {row.number: row for row in experiment.measure_again(contenders)}
    rows = [again.get(row.number, row) for row in candidates]
    found = front(again.values(), objectives, constraints)
    commands = (experiment.export_command(row.label, directory / "exported" / f"{row.number:04d}") for row in found)
    exports = tuple(command for command in commands if command is not None)
    files = write_outputs(Findings(experiment, plan, study, rows, found, tuple(command), exports), directory)
    done = len(done_trials(study))
    if not found:
        raise SweepError(_nothing_feasible(plan, rows, done, directory))
    return SweepResult(directory, tuple(found), done, files, exports, tally(study.trials))


def _nothing_feasible(plan: StudyPlan, rows: Sequence[Candidate], done: int, directory: Path) -> str:
    if not rows:
        return (
            f"after {done} trials there is no candidate: no trial was measured completely: see the reasons in "
            f"pareto.json, and allow milder choices. All results are in {directory}"
        )
    nearest = min(rows, key=lambda row: row.violation(plan.constraints))
    wanted = " and ".join([*(constraint.text for constraint in plan.constraints), *nearest.unmet])
    return (
        f"none of {done} trials meets {wanted}. Nearest is trial {nearest.number} ({nearest.label}), which misses by "
        f"{nearest.violation(plan.constraints):.1%}. Relax the constraint, widen the space or give more --trials; all "
        f"results are in {directory}"
    )
