"""Learner and actor in one process and one thread (``--actors 0``), in turns: deterministic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from accel.errors import EXIT_ABORTED, EnvError, contained
from accel.launch.outcome import how_to_continue, noting_how_to_continue
from accel.launch.starting import initialiser
from accel.supervision.activity import Activity, Seen, Watchdog
from accel.system.signals import Interrupted, StopRequest, interruptible
from accel.transport.base import TransportOptions
from accel.transport.pinning import all_cores

if TYPE_CHECKING:
    from accel.acting.joining import InlineActor
    from accel.runs.job import Job
    from accel.runs.summary import Summary

_CLOSE_S = 5.0
"""How long environments in the learner's process may take to close."""
_REMEDY = ", and ended the run: mend it; with --actors 1 it is in a process of its own, which is replaced"

logger = logging.getLogger("accel")


def learn_in_one_process(
    job: Job, *, leave: Callable[[int], NoReturn] | None, activity: Activity | None = None
) -> Summary:
    """Learner and actor in one process and one thread, in turns: deterministic.

    Args:
        leave: ends this process with a status where its environments hang for good; None: it may not be ended.
        activity: where progress is shown to another process that watches too.
    """
    from accel.acting.joining import InlineActor
    from accel.learning.handshake import LearnerPlace
    from accel.learning.run import run_session
    from accel.transport.local import LocalActor, LocalLearner

    stop, initialise = StopRequest(), initialiser(job)
    with stop.installed():
        options = TransportOptions(max_held=job.config.store.held_unrolls + 1)
        learner = LocalLearner(options=options)
        end = LocalActor(learner, 0)
        end.activity = activity or end.activity
        inline = InlineActor(end)
        if job.config.environment.backend == "device":
            from accel.acting.device import DeviceActor
            from accel.learning.device import choose_device

            inline = InlineActor(end, partial(DeviceActor, device=choose_device(job.config.learner.device)))
        limits_s = job.config.acting.actor_timeout_s, job.config.run.peer_timeout_s
        with interruptible(end.activity.now) as interrupt:
            hung = partial(_end_hang, job, interrupt, leave)

            def interrupted(seen: Seen) -> bool:
                asked = inline.is_over
                if is_over := asked is not None and bool(asked()):
                    interrupt(Interrupted(), seen)
                return is_over

            try:
                watched = Watchdog(end.activity, *limits_s, hung, interrupted)
                with watched, noting_how_to_continue(job), contained(_REMEDY):
                    place = LearnerPlace(learner, stop, all_cores()[:1])
                    return run_session(job, place, inline, initialise)
            finally:
                late = f"closing the environments took longer than {_CLOSE_S:g} s"
                with Watchdog(end.activity, _CLOSE_S, _CLOSE_S, lambda _, *how: hung(late, *how)):
                    _close(inline)


def _close(inline: InlineActor) -> None:
    """Environments that cannot be closed cost nobody what was learned."""
    try:
        if inline.actor is not None:
            inline.actor.close()
    except BaseException as error:  # noqa: BLE001 - somebody else's code
        logger.warning("the environments could not be closed: %s", error)


def _end_hang(
    job: Job,
    interrupt: Callable[[BaseException, Seen], None],
    leave: Callable[[int], NoReturn] | None,
    why: str,
    times: int,
    seen: Seen,
) -> None:
    """Raise in the environment's step, which costs that environment; code that is not Python may never hear of it."""
    if times == 1 or leave is None:
        interrupt(EnvError(why), seen)
        if times == 2:
            logger.error("accel: %s, and cannot be interrupted; train() waits for them. %s", why, how_to_continue(job))
    else:
        logger.error("accel: %s, and cannot be interrupted. %s", why, how_to_continue(job))
        leave(EXIT_ABORTED)
