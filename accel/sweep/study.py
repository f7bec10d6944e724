"""One study, shared by any number of workers: creating or joining it, running its trials, counting how they ended."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import BaseModel

from accel.compressors.errors import CompressorError
from accel.errors import AccelError, SweepError
from accel.sweep.directory import differences
from accel.sweep.experiment import Experiment
from accel.sweep.objectives import Values
from accel.sweep.recovery import ERROR, StaleTrials, heartbeats, queue_again
from accel.sweep.search import StudyPlan
from accel.sweep.storage import storage_errors, without_passwords

TOO_FAR, DOMINATED, UNBUILT = SKIPS = ("too far from fp32", "dominated", "could not be built")
"""How the reasons begin for which a trial ends before all objectives are measured."""
SAME_AS, DRAWN_AT_RANDOM = "same_as", "drawn_at_random"
_ORDER = ("played", "measured", *SKIPS[:2], "failed", UNBUILT)
MEASURED, SKIPPED, SUBJECT, RETURNS = "measured", "skipped", "sweep", "returns"
_WORKERS = "worker:"
_MAXIMAL_FAILURES = 3
_REPETITIONS_TO_DIVERSIFY = 2
_MAXIMAL_FRUITLESS = 50
_WAIT_S = 0.5

logger = logging.getLogger("accel")


class _StudyAttributes(BaseModel):
    """What a study's user attributes may hold."""

    sweep: dict[str, object] = {}
    references: dict[str, float] = {}
    returns: list[float] = []
    caveat: str = ""


class _Worker(BaseModel):
    node: str
    pid: int
    started: int


class _TrialAttributes(BaseModel):
    """What a trial's user attributes may hold."""

    measured: dict[str, float] = {}
    returns: list[float] = []
    same_as: int = 0
    worker: _Worker | None = None
    heartbeat: float = 0.0
    kills: int = 0
    scheme: str = ""
    run: str = ""
    skipped: str = ""
    error: str = ""


def open_study(plan: StudyPlan, storage: BaseStorage, subject: Mapping[str, object]) -> Study:
    """Join the study, or create it.

    Args:
        subject: plain JSON that identifies what is swept; a study has one subject.
    Raises:
        SweepError: the study of that name has another subject, or values that no sweep wrote.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    better = {"maximise": StudyDirection.MAXIMIZE, "minimise": StudyDirection.MINIMIZE}
    directions = [better[objective.direction] for objective in plan.objectives]
    try:
        study = optuna.create_study(storage=storage, study_name=plan.name, directions=directions, load_if_exists=True)
        found = _StudyAttributes.model_validate(study.user_attrs).sweep
        for trial in study.get_trials(deepcopy=False):
            _TrialAttributes.model_validate(trial.user_attrs)
        startup = max(5, min(20, plan.trials // 5))
        study.sampler = optuna.samplers.TPESampler(seed=_worker_seed(study, plan.seed), n_startup_trials=startup)
    except (AccelError, *storage_errors()):  # type: ignore[misc]
        raise
    except Exception as error:  # Optuna checks no values
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SweepError(
            f"study {plan.name!r} in {without_passwords(plan.url)} is damaged ({reason}): restore the storage, "
            "or give another"
        ) from error
    sought = {"objectives": [q.name for q in plan.objectives], "constraints": [c.text for c in plan.constraints]}
    wanted = json.loads(json.dumps({**sought, **subject}))
    if not found:
        study.set_user_attr(SUBJECT, wanted)
    elif what := differences(found, wanted):
        raise SweepError(
            f"study {plan.name!r} in {without_passwords(plan.url)} has another subject: {what}. Give another --study "
            "and another --out, or the study's own options"
        )
    return study


def work(study: Study, plan: StudyPlan, experiment: Experiment) -> None:
    """Run an experiment's trials until the study has all of them, from all workers together.

    Raises:
        SweepError: the first trials all failed; the message has the reason of the last one.
        KeyboardInterrupt: the current trial was queued again.
    """
    stale = StaleTrials(plan.grace_s)
    chosen, random = study.sampler, optuna.samplers.RandomSampler(plan.seed + len(study.trials))
    repeated = fruitless = 0
    stale.recover(study)
    while (missing := _is_missing(study, plan.trials)) or not stale.all_alive(study):
        if not missing:
            time.sleep(_WAIT_S)
            stale.recover(study)
            continue
        # a sampler that has converged to a few candidates proposes no new ones
        study.sampler = random if repeated >= _REPETITIONS_TO_DIVERSIFY else chosen
        trial = _run_one(study, plan, experiment, drawn_at_random=study.sampler is random)
        if trial is None:
            continue
        repeated = repeated + 1 if SAME_AS in trial.user_attrs else 0
        fruitless = fruitless + 1 if repeated or _skip(trial) == UNBUILT else 0
        if not repeated:
            _report(study, plan, experiment, trial)
        if repeated == _REPETITIONS_TO_DIVERSIFY:
            logger.info("the last %d proposals repeated others: sampling at random until there is a new one", repeated)
        if fruitless >= _MAXIMAL_FRUITLESS:
            logger.warning(
                "stopping: the last %d proposals repeated others or could not be built; the space is almost exhausted",
                fruitless,
            )
            break
        _give_up_if_nothing_works(study)
        stale.recover(study)


def _run_one(study: Study, plan: StudyPlan, experiment: Experiment, *, drawn_at_random: bool) -> FrozenTrial | None:
    """Run one trial; None if other workers took it over, as this one wrote no heartbeats."""
    trial = study.ask(dict(experiment.space))
    try:
        if drawn_at_random:
            trial.set_user_attr(DRAWN_AT_RANDOM, True)
        with heartbeats(trial, plan.grace_s):
            values = _measure(trial, plan, experiment)
        return study.tell(trial, values)
    except optuna.TrialPruned:
        return study.tell(trial, state=TrialState.PRUNED)
    except (AccelError, CompressorError) as error:
        trial.set_user_attr(ERROR, str(error))
        return study.tell(trial, state=TrialState.FAIL)
    except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
        if study.trials[trial.number].state == TrialState.RUNNING:
            raise
        logger.warning("this worker wrote no heartbeat for too long, and another one took its trial over; continuing")
        return None
    except KeyboardInterrupt:
        with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):  # another worker took it over
            queue_again(study, study.tell(trial, state=TrialState.FAIL), interrupted=True)
        raise


def _measure(trial: Trial, plan: StudyPlan, experiment: Experiment) -> tuple[float, ...]:
    """Evaluate a trial, and store its measurements."""
    outcome = experiment.evaluate(trial)
    measured = dict(outcome.measured)
    trial.set_user_attr(MEASURED, measured)
    for constraint in plan.constraints:
        if constraint.metric in measured:
            violation = constraint.violation(measured[constraint.metric], experiment.references)
            trial.set_constraint(constraint.text, violation)
    for name, violation in outcome.violations.items():
        trial.set_constraint(name, violation)
    if outcome.skipped is not None:
        trial.set_user_attr(SKIPPED, outcome.skipped)
        raise optuna.TrialPruned(outcome.skipped)
    return tuple(measured[objective.name] for objective in plan.objectives)


def _report(study: Study, plan: StudyPlan, experiment: Experiment, trial: FrozenTrial) -> None:
    done = min(len(done_trials(study)), plan.trials)
    parts = [f"trial {trial.number} ({done}/{plan.trials})", experiment.label(trial)]
    measured: Values = trial.user_attrs.get(MEASURED, {})
    parts += [
        f"{name} {measured[name]:.4g} {metric.unit}".rstrip()
        for name, metric in experiment.metrics.items()
        if name in measured
    ]
    if ERROR in trial.user_attrs:
        parts.append(f"failed: {trial.user_attrs[ERROR]}")
    elif SKIPPED in trial.user_attrs:
        parts.append(str(trial.user_attrs[SKIPPED]))
    logger.info(" | ".join(parts))


def done_trials(study: Study) -> list[FrozenTrial]:
    """Those that count towards the wanted number."""
    return [trial for trial in study.get_trials(deepcopy=False) if is_done(trial)]


def _is_missing(study: Study, wanted: int) -> bool:
    """Whether more trials are wanted than are done and running."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return len(done_trials(study)) + len(running) < wanted


def _give_up_if_nothing_works(study: Study) -> None:
    done = done_trials(study)
    if len(done) >= _MAXIMAL_FAILURES and all(ERROR in trial.user_attrs for trial in done):
        raise SweepError(f"all of the first {len(done)} trials failed, the last one with: {done[-1].user_attrs[ERROR]}")


def _worker_seed(study: Study, seed: int) -> int:
    """Different for every worker: of those that see equally many workers, each has another place among them."""
    key = f"{_WORKERS}{time.time_ns():020d}:{uuid.uuid4().hex}"
    study.set_user_attr(key, True)
    keys = sorted(name for name in study.user_attrs if name.startswith(_WORKERS))
    entropy = [seed, len(keys), keys.index(key), len(study.get_trials(deepcopy=False))]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def has_ended(trial: FrozenTrial) -> bool:
    """Whether a trial ended by itself, in whatever way; not killed ones, nor those that repeat another."""
    ended = trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or ERROR in trial.user_attrs
    return ended and SAME_AS not in trial.user_attrs


def is_done(trial: FrozenTrial) -> bool:
    """Whether a trial counts towards the wanted number: it ended, and its candidate could be built."""
    return has_ended(trial) and _skip(trial) != UNBUILT


def _skip(trial: FrozenTrial) -> str:
    """Which of ``SKIPS`` a trial's reason begins with; empty for none."""
    return str(trial.user_attrs.get(SKIPPED, "")).partition(":")[0]


def _ending(trial: FrozenTrial) -> str:
    if ERROR in trial.user_attrs:
        return "failed"
    if trial.state == TrialState.PRUNED:
        return _skip(trial)
    return "played" if RETURNS in trial.user_attrs else "measured"


def tally(trials: Iterable[FrozenTrial]) -> str:
    """``240 candidates: 18 played, 209 too far from fp32, 13 dominated, 0 could not be built; 17 proposals …``"""
    trials = list(trials)
    found = Counter(_ending(trial) for trial in trials if has_ended(trial))
    wanted = SKIPS if "played" in found else ()
    parts = [f"{found[name]} {name}" for name in _ORDER if name in found or name in wanted]
    candidates = sum(map(is_done, trials))
    repeated = sum(SAME_AS in trial.user_attrs for trial in trials)
    text = f"{candidates} candidate{'' if candidates == 1 else 's'}: {', '.join(parts) or 'none ended'}"
    text += f"; {repeated} proposals repeated others"
    drawn = sum(DRAWN_AT_RANDOM in trial.user_attrs for trial in trials)
    return text + (f", after which {drawn} proposals were sampled at random" if drawn else "")
