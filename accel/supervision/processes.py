"""Other processes of this machine, as psutil knows them; nothing of those that are gone or somebody else's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def killing_descendants(before: Callable[[], object]) -> Iterator[None]:
    """At the end kill whatever this process has started and that still runs, daemons with nothing of their parents'
    too: on Linux they become children of this process meanwhile. Not in processes that this one forks.

    Args:
        before: called where something is left, before it is killed.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    mine, prctl = os.getpid(), ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        if os.getpid() == mine:
            if descendants(mine):
                before()
            for pid in descendants(mine):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            prctl(_PR_SET_CHILD_SUBREAPER, 0)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP."""
    return _status(pid) == psutil.STATUS_STOPPED


def is_running(pid: int, started: int = 0) -> bool:
    """Whether a process is there, and no zombie.

    Args:
        started: as of ``process_started``: another one may have its number by now; 0: whichever has it.
    """
    return _status(pid) not in ("", psutil.STATUS_ZOMBIE) and (not started or process_started(pid) == started)


def process_started(pid: int) -> int:
    """When a process started, in clock ticks since the machine did, which no change of the time of day moves: with its
    number, a name that is used once. 0 where it is not known."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def descendants(pid: int) -> frozenset[int]:
    """Children of a process, grandchildren and so on, that are there now; empty where they are not known."""
    try:
        return frozenset(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return frozenset()


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""
