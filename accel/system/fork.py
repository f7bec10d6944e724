"""Work in a fork that outlives this process, and whoever kills its group or its session."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Collection

from accel.system.signals import ignore_stop_signals

_LIMIT_S = 120
"""After which the fork is killed: a lock that another thread held at the fork is never given back in it."""


class Fork:
    """A process that works beside this one. Args: pid: of it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wait(self) -> bool:
        """Until it has ended; whether its work was done."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]) == 0


def start_fork(work: Callable[[], object], keep: Collection[int]) -> Fork | None:
    """Do ``work`` in a fork, which has this thread only, and none of this process's files but ``keep``.

    Returns:
        It; None where the system starts no more processes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python from 3.12 on, of a process with threads
        try:
            pid = os.fork()
        except OSError:
            return None
    if pid:
        return Fork(pid)
    status = 1
    try:
        os.setsid()
        ignore_stop_signals()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        _leave_files(keep)
        work()
        status = 0
    finally:
        os._exit(status)


def _leave_files(keep: Collection[int]) -> None:
    """Others learn of the parent's end by the end of its pipes and sockets."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    first = 3
    for kept in (*sorted(keep), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, kept)
        first = kept + 1
