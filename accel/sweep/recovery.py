"""Trials whose workers are gone: found, failed, and put back into the queue."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

HEARTBEAT_S = 10
GRACE_S = 60
MAXIMAL_RETRIES = 3
# Attributes of a trial: who works on it, and how it failed by itself.
WORKER, ERROR = "worker", "error"

logger = logging.getLogger("accel")


def recover(study: Study) -> int:
    """Fail what killed workers left running and queue it again; returns how many trials.

    Workers on this host are known by their process, those on others by their heartbeat.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    lost = [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if _is_lost(trial)]
    recovered = 0
    for trial in lost:
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
            continue  # another worker was quicker
        queue_again(study, trial)
        recovered += 1
    if recovered:
        logger.info("%d trials of killed workers are queued again", recovered)
    return recovered


def queue_again(study: Study, trial: FrozenTrial) -> None:
    """Put a trial whose worker is gone back into the queue, up to ``MAXIMAL_RETRIES`` times.

    As Optuna's own ``RetryHeartbeatStaleTrialCallback``, but the new trial must not look like the old worker's.
    """
    system = {name: value for name, value in trial.system_attrs.items() if not name.startswith("constraints")}
    history = [*system.get("retry_history", []), trial.number]
    if len(history) > MAXIMAL_RETRIES:
        return
    study.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={name: value for name, value in trial.user_attrs.items() if name != WORKER},
            system_attrs={"failed_trial": trial.number, **system, "retry_history": history},
        )
    )


def this_worker() -> dict[str, object]:
    """What a trial is signed with: host, process number, and what tells the process from a later one."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}


def process_start(pid: int) -> str | None:
    """What tells a process from a later one of the same number; None if there is no such process, "" if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except FileNotFoundError:
        if sys.platform == "linux":
            return None
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def is_mine(trial: FrozenTrial) -> bool:
    """Whether this process signed a trial."""
    return bool(trial.user_attrs.get(WORKER) == this_worker())


def _is_lost(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is None:  # killed before it could sign; no heartbeat either
        began = trial.datetime_start or datetime.now()
        return datetime.now() - began > timedelta(seconds=GRACE_S)
    if worker["host"] != socket.gethostname():
        return False
    return bool(process_start(int(worker["pid"])) != worker["started"])


def release_own(study: Study) -> None:
    """Put the trial that an interrupt ended, or caught at its end, back into the queue."""
    mine = [trial for trial in study.get_trials(deepcopy=False) if is_mine(trial)]
    if not mine or ERROR in mine[-1].user_attrs:
        return
    if mine[-1].state == TrialState.RUNNING:
        study.tell(mine[-1].number, state=TrialState.FAIL)
    elif mine[-1].state != TrialState.FAIL:
        return
    queue_again(study, mine[-1])
