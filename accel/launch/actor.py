"""What ``accel.acting.supervisor`` starts to act for a rank: python -P -m accel.launch.actor LAUNCH FILES."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable

from accel.errors import EXIT_ABORTED
from accel.supervision.activity import STEPPING
from accel.supervision.channel import ChannelClosedError
from accel.supervision.child import begin_child, error_report
from accel.transport.base import ActorTransport, Stopped
from accel.transport.child_actor import ActorMemory, ChildActor
from accel.transport.launcher import LaunchInfo
from accel.transport.pinning import all_cores, pin_rank, use_cores

_ANSWER_S = 600.0  # for the configuration, and for what the learner says to an error

logger = logging.getLogger("accel")


def command(info: LaunchInfo) -> list[str]:
    """Starts a child of a rank, up to the files that it inherits."""
    launch = json.dumps([info.rank, info.size, info.local_rank, info.launcher, os.getpid(), all_cores()])
    return [sys.executable, "-P", "-m", "accel.launch.actor", launch]


def main() -> int:
    """Act until the rank says stop."""
    rank, size, local_rank, launcher, parent, cores = json.loads(sys.argv[1])
    channel, files = begin_child(500)  # above the rank's
    if os.getppid() != parent:
        return 1  # The rank died before it could be noticed.
    use_cores(cores)  # A learner that starts it may be pinned by now.
    transport = ChildActor(channel, ActorMemory(files))
    info = LaunchInfo(rank, size, local_rank, launcher)
    try:
        return run_actor(transport, lambda: pin_rank(info))
    except Stopped:
        return 0
    except ChannelClosedError:
        return 1  # The rank is gone, and nobody is left to tell.


def run_actor(transport: ActorTransport, pin: Callable[[], object]) -> int:
    """Serve a learner; returns the exit status of an actor that failed, which the learner was told.

    Args:
        transport: this actor's end. pin: see ``accel.acting.joining.join``.
    Raises:
        Stopped: the learner needs this actor no longer. ChannelClosedError: the rank is gone.
    """
    from accel.acting.joining import join

    actor = None
    try:
        actor = join(transport, _ANSWER_S, pin)
        actor.start()
        transport.activity.enter(STEPPING)
        while True:
            actor.step()
    except (Stopped, ChannelClosedError, SystemExit):
        raise
    except BaseException as error:
        if actor is None:  # The learner was told, and stops this actor.
            logger.debug("actor %d cannot start", transport.actor, exc_info=True)
            transport.wait_policy(_ANSWER_S)
        else:
            transport.report(error_report(error))
        return EXIT_ABORTED
    finally:
        if actor is not None:
            actor.close()


if __name__ == "__main__":
    sys.exit(main())
