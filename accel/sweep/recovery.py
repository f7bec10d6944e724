"""Trials whose workers are gone: found, failed, and put back into the queue."""

from __future__ import annotations

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
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.sweep.errors import storage_errors

HEARTBEAT_S = 10
GRACE_S = 60
MAXIMAL_RETRIES = 3
# Attributes of a trial: who works on it, that worker's latest sign of life, how the trial failed by itself, and how
# often it was interrupted.
WORKER, SIGN, ERROR, INTERRUPTIONS = "worker", "sign_of_life", "error", "interruptions"

logger = logging.getLogger("accel")


class Attendance:
    """One worker's watch over the others: finds trials whose workers are gone.

    Workers on this host are known by their process. Those on others write a sign of life into their trial, whatever the
    storage; a trial on which it has not changed for the grace period, by this machine's clock alone, is lost. Databases
    have Optuna's heartbeats besides, by the server's clock.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Args: grace_s: seconds after which a worker without a sign of life is gone."""
        self._grace_s = grace_s
        # by trial: its last sign of life, when that was seen first, and whether it replaced another
        self._signs: dict[int, tuple[object, float, bool]] = {}
        self._has_told = False

    def recover(self, study: Study) -> None:
        """Fail what killed workers left running, and queue it again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        for trial in filter(self._is_lost, _running(study)):
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # another worker was quicker
            queue_again(study, trial)

    def settle(self, study: Study) -> bool:
        """Whether every running trial has a worker that is known to live; if not, it takes a while to find out."""
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
        """Whether a worker elsewhere was seen to give a sign of life within the grace period."""
        sign, now = (trial.user_attrs.get(WORKER), trial.user_attrs.get(SIGN)), time.monotonic()
        known = self._signs.get(trial.number)
        if known is None or known[0] != sign:
            self._signs[trial.number] = (sign, now, known is not None)
        _, since, is_renewed = self._signs[trial.number]
        return is_renewed and now - since <= self._grace_s


@contextmanager
def signs_of_life(trial: Trial, grace_s: float = GRACE_S) -> Iterator[None]:
    """Sign a trial, and write signs of life into it while this context lasts, several in a grace period."""
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
            except no_answer as error:  # the next sign may get through
                logger.debug("trial %d: no sign of life: %r", trial.number, error)

    thread = threading.Thread(target=write, daemon=True, name="sweep-signs-of-life")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def queue_again(study: Study, trial: FrozenTrial, *, interrupted: bool = False) -> None:
    """Put a trial whose worker is gone back into the queue, once, and up to ``MAXIMAL_RETRIES`` times in all.

    As Optuna's own ``RetryHeartbeatStaleTrialCallback``, but the new trial must not look like the old worker's, and
    orderly interruptions, of which a long trial may need many, do not count.

    Args:
        study, trial: which.
        interrupted: whether its worker was asked to end.
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
    """What a trial is signed with: host, what tells it from others of that name, process and its time of start."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "system": _system(), "pid": pid, "started": process_start(pid)}


def _system() -> str:
    """Tells hosts of one name, boots of a host, and containers with process numbers of their own; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


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


def _is_here(trial: FrozenTrial) -> bool:
    """Whether a trial's worker is a process that can be seen from here; not so before a trial is signed."""
    worker, mine = trial.user_attrs.get(WORKER), this_worker()
    return worker is not None and all(worker[name] == mine[name] for name in ("host", "system"))


def _running(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def was_taken_over(study: Study) -> bool:
    """Whether this process's last trial was failed and queued again by others."""
    trials = study.get_trials(deepcopy=False)
    mine = [trial for trial in trials if is_mine(trial)]
    return bool(mine) and any(mine[-1].number in trial.system_attrs.get("retry_history", []) for trial in trials)


def release_own(study: Study) -> None:
    """Put the trial that an interrupt ended, or caught at its end, back into the queue."""
    mine = [trial for trial in study.get_trials(deepcopy=False) if is_mine(trial)]
    if not mine or ERROR in mine[-1].user_attrs:
        return
    if mine[-1].state == TrialState.RUNNING:
        study.tell(mine[-1].number, state=TrialState.FAIL)
    elif mine[-1].state != TrialState.FAIL:
        return
    queue_again(study, mine[-1], interrupted=True)
