"""One study shared by any number of workers: created or joined, resumed, recovered from killed workers, worked on."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.errors import AccelError, ConfigError
from accel.sweep.endings import DRAWN_AT_RANDOM, SAME_AS, SKIP, UNBUILT, Skip, is_done
from accel.sweep.errors import SweepError
from accel.sweep.quantities import Constraint, Quantity, Values
from accel.sweep.recovery import ERROR, GRACE_S, Attendance, is_mine, release_own, signs_of_life, was_taken_over
from accel.sweep.samplers import PrunerName, SamplerName, make_pruner, make_sampler
from accel.sweep.storage import public_url
from accel.transport.launcher import detect_launch
from compressors.errors import CompressorError

MEASURED, SKIPPED, SUBJECT, OWN_BOUNDS = "measured", "skipped", "sweep", "own_bounds"
CAVEAT = "caveat"
_WORKERS = "worker:"
_MAXIMAL_FAILURES = 3
_REPETITIONS_TO_DIVERSIFY = 2
_MAXIMAL_REPETITIONS = 30
_MAXIMAL_FRUITLESS = 100
_AWAIT_S = 0.5

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class Outcome:
    """What one trial measured.

    Attributes:
        measured: by quantity; other figures may be among them.
        references: what fp32 has, for relative constraints.
        violations: bounds of the sweep's own, above 0 where they are not met.
        skipped: why the trial ended before its objectives were all measured; None for a complete one.
        skip: the same in a word or two, for counting.
    """

    measured: Values
    references: Values
    violations: Values = field(default_factory=dict)
    skipped: str | None = None
    skip: Skip | None = None


@dataclass(frozen=True)
class StudyOptions:
    """How a study searches.

    Attributes:
        name: of the study within its storage.
        url: of the storage.
        objectives: at least one; several make a front.
        constraints: what feasible trials meet.
        trials: how many the study has at its end, all workers together; neither repeated ones nor candidates that
            cannot be built count.
        sampler, pruner: Optuna's.
        seed: of the sampler; every worker derives its own.
        max_seconds: this worker starts no trial after this time; None for no limit.
        report_interval: environment steps between intermediate values, ``REPORTS`` of them in a whole run.
        grace_s: seconds after which a worker elsewhere that gives no sign of life is gone.
    """

    name: str
    url: str
    objectives: tuple[Quantity, ...]
    constraints: tuple[Constraint, ...]
    trials: int
    sampler: SamplerName = "tpe"
    pruner: PrunerName = "none"
    seed: int = 0
    max_seconds: float | None = None
    report_interval: int = 1
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        """Raises ConfigError for options that do not go together."""
        if self.trials < 1:
            raise ConfigError(f"trials = {self.trials}: a sweep needs at least one")
        if self.pruner != "none" and len(self.objectives) > 1:
            names = ", ".join(objective.name for objective in self.objectives)
            costs = ", ".join(f"{objective.name}<=…" for objective in self.objectives[1:])
            raise ConfigError(
                f"pruner = {self.pruner!r} compares trials by one number, and there are {len(self.objectives)} "
                f"objectives ({names}): keep one objective and bound the others by constraints, such as objective "
                f"{self.objectives[0].name} under {costs}, or the reverse; or set pruner = 'none'"
            )


def open_study(options: StudyOptions, storage: BaseStorage, subject: Mapping[str, object]) -> Study:
    """Join the study, or create it.

    Args:
        options: how it searches.
        storage: where it lives.
        subject: plain JSON that says what the trials are; a study never mixes two subjects.
    Raises:
        SweepError: the study of that name is about something else.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    better = {"maximise": StudyDirection.MAXIMIZE, "minimise": StudyDirection.MINIMIZE}
    directions = [better[objective.direction] for objective in options.objectives]
    study = optuna.create_study(
        storage=storage,
        study_name=options.name,
        directions=directions,
        load_if_exists=True,
        pruner=make_pruner(options.pruner, options.trials, options.report_interval),
    )
    study.sampler = make_sampler(options.sampler, options.trials, _worker_entropy(study, options.seed))
    described = {
        "objectives": [objective.name for objective in options.objectives],
        "constraints": [constraint.text for constraint in options.constraints],
        **subject,
    }
    wanted = json.loads(json.dumps(described))
    found = study.user_attrs.get(SUBJECT)
    if found is None:
        study.set_user_attr(SUBJECT, wanted)
    elif found != wanted:
        differing = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        raise SweepError(
            f"study {options.name!r} in {public_url(options.url)} is about something else: "
            + "; ".join(f"{key} was {found.get(key)} and is {wanted.get(key)}" for key in differing)
            + ". Give another --study and another --out, or the options that it was begun with"
        )
    return study


def work(
    study: Study,
    options: StudyOptions,
    evaluate: Callable[[Trial], Outcome],
    report: Callable[[Study, FrozenTrial], None],
) -> None:
    """Run trials until the study has as many as it should, all workers together.

    Args:
        study: joined.
        options: how it searches.
        evaluate: measures one trial; may raise ``optuna.TrialPruned``, and AccelError for a trial that fails.
        report: called after each trial of this worker.
    Raises:
        SweepError: the first trials all failed; the message has the reason of the last one.
        KeyboardInterrupt: the trial under way was put back into the queue.
    """
    started = time.monotonic()
    others = Attendance(options.grace_s)

    def objective(trial: Trial) -> tuple[float, ...]:
        if study.sampler is scattered:
            trial.set_user_attr(DRAWN_AT_RANDOM, True)
        with signs_of_life(trial, options.grace_s):
            return _measure(trial, options, evaluate)

    others.recover(study)
    chosen, scattered = study.sampler, optuna.samplers.RandomSampler(options.seed + len(study.trials))
    repeated = fruitless = 0
    while _remaining(study, options.trials) > 0 or _await_signs(study, options.trials, others):
        if options.max_seconds is not None and time.monotonic() - started >= options.max_seconds:
            logger.warning(
                "stopping after %.0f s, as asked; start the same command again to go on", options.max_seconds
            )
            break
        if repeated >= _MAXIMAL_REPETITIONS:
            logger.warning("stopping: the last %d trials all repeated others; the space has hardly more", repeated)
            break
        if fruitless >= _MAXIMAL_FRUITLESS:
            logger.warning(
                "stopping: the last %d proposals repeated others or could not be built; allow milder choices", fruitless
            )
            break
        if _remaining(study, options.trials) <= 0:
            continue
        if repeated == _REPETITIONS_TO_DIVERSIFY and study.sampler is chosen and options.sampler != "random":
            logger.info("the last %d proposals repeated others: drawing at random until there is a new one", repeated)
        # a sampler that has settled on a few candidates finds no new ones by itself
        at_random = repeated >= _REPETITIONS_TO_DIVERSIFY and options.sampler != "random"
        study.sampler = scattered if at_random else chosen
        if not _run_one(study, objective):
            continue
        mine = [trial for trial in study.get_trials(deepcopy=False) if is_mine(trial) and trial.state.is_finished()]
        repeated = repeated + 1 if SAME_AS in mine[-1].user_attrs else 0
        unbuilt = mine[-1].user_attrs.get(SKIP) == UNBUILT
        fruitless = fruitless + 1 if repeated or unbuilt else 0
        if not repeated:
            report(study, mine[-1])
        _give_up_if_nothing_works(study)
        others.recover(study)
    others.recover(study)


def _measure(trial: Trial, options: StudyOptions, evaluate: Callable[[Trial], Outcome]) -> tuple[float, ...]:
    """Evaluate a trial, and write into it what came of it."""
    try:
        outcome = evaluate(trial)
    except (AccelError, CompressorError) as error:
        trial.set_user_attr(ERROR, str(error))
        raise
    measured = dict(outcome.measured)
    trial.set_user_attr(MEASURED, measured)
    for constraint in options.constraints:
        if constraint.quantity in measured:
            violation = constraint.violation(measured[constraint.quantity], outcome.references)
            trial.set_constraint(constraint.text, violation)
    trial.set_user_attr(OWN_BOUNDS, list(outcome.violations))
    for name, violation in outcome.violations.items():
        trial.set_constraint(name, violation)
    if outcome.skipped is not None:
        trial.set_user_attr(SKIPPED, outcome.skipped)
        if outcome.skip is not None:
            trial.set_user_attr(SKIP, outcome.skip)
        raise optuna.TrialPruned(outcome.skipped)
    return tuple(measured[quantity.name] for quantity in options.objectives)


def _run_one(study: Study, objective: Callable[[Trial], tuple[float, ...]]) -> bool:
    """Run one trial; False if others took it over meanwhile, because this worker gave no sign of life."""
    try:
        study.optimize(objective, n_trials=1, catch=(AccelError, CompressorError))
    except KeyboardInterrupt:
        release_own(study)
        raise
    except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
        if not was_taken_over(study):
            raise
        logger.warning("others took this worker's trial over, because it gave no sign of life for too long; going on")
        return False
    return True


def _await_signs(study: Study, trials: int, others: Attendance) -> bool:
    """Once all trials are done or under way: whether to look again, since a worker elsewhere may be gone."""
    others.recover(study)
    if _remaining(study, trials) <= 0:
        if others.settle(study):
            return False
        time.sleep(_AWAIT_S)
    return True


def counts(study: Study) -> tuple[int, int]:
    """(trials that are done, trials under way)."""
    trials = study.get_trials(deepcopy=False)
    return sum(map(is_done, trials)), sum(trial.state == TrialState.RUNNING for trial in trials)


def remaining_seconds(study: Study, trials: int) -> float | None:
    """An estimate of the time until the study is complete, from its trials' durations; None before the first."""
    durations = [
        trial.duration.total_seconds()
        for trial in study.get_trials(deepcopy=False)
        if is_done(trial) and trial.duration is not None
    ]
    if not durations:
        return None
    done, running = counts(study)
    workers = max(running + 1, 1)
    return max(trials - done, 0) * float(np.mean(durations)) / workers


def _remaining(study: Study, trials: int) -> int:
    return trials - sum(counts(study))


def _give_up_if_nothing_works(study: Study) -> None:
    done = [trial for trial in study.get_trials(deepcopy=False) if is_done(trial)]
    if len(done) >= _MAXIMAL_FAILURES and all(ERROR in trial.user_attrs for trial in done):
        raise SweepError(f"all of the first {len(done)} trials failed, the last one so: {done[-1].user_attrs[ERROR]}")


def _worker_entropy(study: Study, seed: int) -> list[int]:
    """(seed, rank or array task, how many workers came before, trials so far): no two workers draw the same."""
    rank = detect_launch().rank or int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    key = f"{_WORKERS}{time.time_ns():020d}:{socket.gethostname()}:{os.getpid()}"
    study.set_user_attr(key, {"rank": rank})
    keys = sorted(name for name in study.user_attrs if name.startswith(_WORKERS))
    return [seed, rank, keys.index(key), len(study.get_trials(deepcopy=False))]
