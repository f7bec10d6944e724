"""Recovery of trials whose workers died: they are found by missing heartbeats, failed, and queued again.

A worker writes heartbeats into its running trial, so that any storage carries them. A worker on this host is looked up
by its process; one on another host is dead when its heartbeat has not changed for a minute, by the watcher's clock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from accel.supervision.processes import is_running, process_started
from accel.sweep.storage import storage_errors
from accel.transport.node_memory import node_name

GRACE_S = 60
_BEATS = 6
"""Heartbeats in that time."""
MAXIMAL_RETRIES = 3
# Attributes of a trial: its worker, that worker's latest heartbeat, how many workers died of it, and the error that it
# failed with.
WORKER, HEARTBEAT, KILLS, ERROR = "worker", "heartbeat", "kills", "error"

logger = logging.getLogger("accel")


class StaleTrials:
    """Finds trials whose workers are dead."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """Args: grace_s: seconds without a heartbeat after which a worker on another host counts as dead."""
        self._grace_s = grace_s
        # by trial: its last heartbeat, when this was first seen, and whether it replaced another
        self._seen: dict[int, tuple[object, float, bool]] = {}
        self._has_announced = False

    def recover(self, study: Study) -> None:
        """Fail the trials of dead workers, and queue them again."""
        for trial in _running(study):
            if self._is_alive(trial) is False:
                try:
                    study.tell(trial.number, state=TrialState.FAIL)
                except (ValueError, UpdateFinishedTrialError):
                    continue  # another worker was faster
                queue_again(study, trial)

    def all_alive(self, study: Study) -> bool:
        """Whether the worker of every running trial is known to be alive."""
        unknown = [trial for trial in _running(study) if not self._is_alive(trial)]
        if unknown and not self._has_announced:
            nodes = [str(trial.user_attrs.get(WORKER, {}).get("node", "?")) for trial in unknown]
            hosts = ", ".join(sorted({node.partition(" ")[0] for node in nodes}))
            logger.info("waiting for heartbeats of workers on %s, at most %.0f s", hosts, self._grace_s)
            self._has_announced = True
        return not unknown

    def _is_alive(self, trial: FrozenTrial) -> bool | None:
        """Whether a trial's worker is alive; None as long as that is unknown."""
        worker = trial.user_attrs.get(WORKER)
        if worker is not None and worker["node"] == this_worker()["node"]:
            return is_running(worker["pid"], worker["started"])
        beat, now = (worker, trial.user_attrs.get(HEARTBEAT)), time.monotonic()
        last = self._seen.get(trial.number)
        if last is None or last[0] != beat:
            self._seen[trial.number] = last = (beat, now, last is not None)
        _, since, is_renewed = last
        return False if now - since > self._grace_s else is_renewed or None


@contextmanager
def heartbeats(trial: Trial, grace_s: float = GRACE_S) -> Iterator[None]:
    """Mark a trial as this worker's, and write heartbeats into it within this context, several per grace period."""
    trial.set_user_attr(WORKER, this_worker())
    trial.set_user_attr(HEARTBEAT, time.time())
    ended = threading.Event()
    lost: tuple[type[Exception], ...] = (*storage_errors(), OSError)

    def write() -> None:
        while not ended.wait(grace_s / _BEATS):
            try:
                trial.set_user_attr(HEARTBEAT, time.time())
            except UpdateFinishedTrialError:
                return
            except lost as error:  # the next one may succeed
                logger.debug("trial %d: no heartbeat: %r", trial.number, error)

    thread = threading.Thread(target=write, daemon=True, name="sweep-heartbeats")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def queue_again(study: Study, trial: FrozenTrial, *, interrupted: bool = False) -> None:
    """Queue a failed trial again; after ``MAXIMAL_RETRIES`` killed workers it is given up.

    Args: interrupted: whether its worker was asked to stop, as often as it likes.
    """
    attributes = {name: value for name, value in trial.user_attrs.items() if name not in (WORKER, HEARTBEAT)}
    if not interrupted:
        attributes[KILLS] = attributes.get(KILLS, 0) + 1
        if attributes[KILLS] > MAXIMAL_RETRIES:
            logger.warning("trial %d is given up: it was killed %d times", trial.number, attributes[KILLS])
            return
    logger.info("trial %d is queued again, because its worker ended", trial.number)
    study.enqueue_trial(trial.params, user_attrs=attributes)


def this_worker() -> dict[str, object]:
    """This worker's identity: its host with the boot and the container, its process and when that started."""
    pid = os.getpid()
    return {"node": node_name() or socket.gethostname(), "pid": pid, "started": process_started(pid)}


def _running(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
