"""Recovery of trials whose workers are dead: they are found, failed and queued again.

A trial whose worker has shown no sign of life for a minute, by the watcher's clock, is queued again; signs are written
into trials, so that any storage carries them.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

HEARTBEAT_S = 10
GRACE_S = 60
MAXIMAL_RETRIES = 3
# Attributes of a trial: its worker, that worker's latest sign of life, its own error, the number of interruptions.
WORKER, SIGN, ERROR, INTERRUPTIONS = "worker", "sign_of_life", "error", "interruptions"

logger = logging.getLogger("accel")


class Attendance:
    """Finds trials whose workers are dead.

    Workers on this host are identified by their process. Those on other hosts write a sign of life into their trial, in
    any storage; a trial whose sign has not changed for the grace period, by this machine's clock, is lost. Databases
    have Optuna's heartbeats too, by the server's clock.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Args: grace_s: seconds without a sign of life after which a worker counts as dead."""
        self._grace_s = grace_s
        # by trial: its last sign of life, when this was first seen, and whether it replaced another
        self._signs: dict[int, tuple[object, float, bool]] = {}
        self._has_told = False

    def recover(self, study: Study) -> None:
        """Fail trials that killed workers left running, and queue them again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        for trial in filter(self._is_lost, _running(study)):
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # another worker was faster
            queue_again(study, trial)

    def settle(self, study: Study) -> bool:
        """Whether the worker of every running trial is known to be alive."""
        trials = [t for t in _running(study) if not (is_mine(t) or _is_here(t) or self._shows_life(t))]
        if trials and not self._has_told:
            hosts = ", ".join(sorted({str(trial.user_attrs.get(WORKER, {}).get("host", "?")) for trial in trials}))
            logger.info("waiting for a sign of life of workers on %s, at most %.0f s", hosts, self._grace_s)
            self._has_told = True
        return not trials

    def _is_lost(self, trial: FrozenTrial) -> bool:
        if _is_here(trial):
            worker = trial.user_attrs[WORKER]
            return bool(process_start(int(worker["pid"])) != worker["started"])
        return not self._shows_life(trial) and time.monotonic() - self._signs[trial.number][1] > self._grace_s

    def _shows_life(self, trial: FrozenTrial) -> bool:
        """Whether a worker on another host renewed its sign of life within the grace period."""
        sign, now = (trial.user_attrs.get(WORKER), trial.user_attrs.get(SIGN)), time.monotonic()
        known = self._signs.get(trial.number)
        if known is None or known[0] != sign:
            self._signs[trial.number] = (sign, now, known is not None)
        _, since, is_renewed = self._signs[trial.number]
        return is_renewed and now - since <= self._grace_s


@contextmanager
def signs_of_life(trial: Trial, grace_s: float = GRACE_S) -> Iterator[None]:
    """Mark a trial as this worker's, and write signs of life into it within this context, several per grace period."""
    trial.set_user_attr(WORKER, this_worker())
    ended = threading.Event()
    no_answer: tuple[type[Exception], ...] = (*storage_errors(), OSError)

    def write() -> None:
        for count in itertools.count(1):
            if ended.wait(grace_s * HEARTBEAT_S / GRACE_S):
                return
            try:
                trial.set_user_attr(SIGN, count)
            except optuna.exceptions.UpdateFinishedTrialError:
                return
            except no_answer as error:  # the next sign may succeed
                logger.debug("trial %d: no sign of life: %r", trial.number, error)

    thread = threading.Thread(target=write, daemon=True, name="sweep-signs-of-life")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def queue_again(study: Study, trial: FrozenTrial, *, interrupted: bool = False) -> None:
    """Queue a dead worker's trial again, once, and up to ``MAXIMAL_RETRIES`` times in total.

    Like Optuna's ``RetryHeartbeatStaleTrialCallback``, but the new trial is not marked as the old worker's, and orderly
    interruptions, of which a long trial may have many, do not count.

    Args:
        study, trial: which.
        interrupted: whether its worker was asked to stop.
    """
    system = {name: value for name, value in trial.system_attrs.items() if not name.startswith("constraints")}
    history = [*system.get("retry_history", []), trial.number]
    queued = [other.system_attrs.get("retry_history") for other in study.get_trials(deepcopy=False)]
    if history in queued:
        return
    interruptions = trial.user_attrs.get(INTERRUPTIONS, 0) + interrupted
    if len(history) - interruptions > MAXIMAL_RETRIES:
        logger.warning(
            "trial %d is given up: its worker was killed for the %dth time", trial.number, len(history) - interruptions
        )
        return
    logger.info("trial %d is queued again, because its worker ended", trial.number)
    study.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={
                **{name: value for name, value in trial.user_attrs.items() if name not in (WORKER, SIGN)},
                **({INTERRUPTIONS: interruptions} if interruptions else {}),
            },
            system_attrs={"failed_trial": trial.number, **system, "retry_history": history},
        )
    )


def this_worker() -> dict[str, object]:
    """This worker's identity: host, its boot and container, process number and start time."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "system": _system(), "pid": pid, "started": process_start(pid)}


def _system() -> str:
    """Identifies the boot of a host and the container with its own process numbers; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_start(pid: int) -> str | None:
    """Start time of a process, which a later one of the same number does not share; None without it, "" if unknown."""
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
    """Whether a trial is this process's."""
    return bool(trial.user_attrs.get(WORKER) == this_worker())


def _is_here(trial: FrozenTrial) -> bool:
    """Whether a trial's worker is a process on this host; False for a trial without a worker."""
    worker, mine = trial.user_attrs.get(WORKER), this_worker()
    return worker is not None and all(worker[name] == mine[name] for name in ("host", "system"))


def _running(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def was_taken_over(study: Study) -> bool:
    """Whether other workers failed this process's last trial and queued it again."""
    trials = study.get_trials(deepcopy=False)
    mine = [trial for trial in trials if is_mine(trial)]
    return bool(mine) and any(mine[-1].number in trial.system_attrs.get("retry_history", []) for trial in trials)


def release_own(study: Study) -> None:
    """Queue this process's trial again after an interrupt, unless it failed by itself."""
    mine = [trial for trial in study.get_trials(deepcopy=False) if is_mine(trial)]
    if not mine or ERROR in mine[-1].user_attrs:
        return
    if mine[-1].state == TrialState.RUNNING:
        study.tell(mine[-1].number, state=TrialState.FAIL)
    elif mine[-1].state != TrialState.FAIL:
        return
    queue_again(study, mine[-1], interrupted=True)


def storage_errors() -> tuple[type[Exception], ...]:
    """The errors that Optuna's storages raise when their server does not answer."""
    errors: list[type[Exception]] = [StorageInternalError, SQLAlchemyError]
    if importlib.util.find_spec("redis") is not None:
        errors.append(importlib.import_module("redis").RedisError)
    return tuple(errors)
