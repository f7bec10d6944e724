"""Kill a subprocess tree when it or its parent exits.

Beside it a shell, its killer, waits until the parent is gone or closes a pipe, and then kills every process that has
inherited the process's mark, an environment variable, also those that lead a session of their own, as simulators do;
and its own process group, which a process that was started with it shares: what the system tells a process of its
parent's death does not reach further. Marks are found on Linux; elsewhere the group alone ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

MARK = "ACCEL_PROCESS_MARK"
_KILL_TREE = """read -r _
for found in $(grep -ls "$1" /proc/[0-9]*/environ); do found=${found#/proc/}; kill -KILL ${found%/environ}; done
kill -KILL 0"""


def new_mark() -> str:
    """A value of the variable ``MARK`` that no other process has."""
    return f"{os.getpid()}.{time.time_ns()}"


class TreeKiller:
    """Kills all processes with a mark, and its own group, when it is told to or this process is gone.

    Args:
        mark: their value of ``MARK``. group: the process group that it joins; 0: one of its own.
    """

    def __init__(self, mark: str, group: int = 0) -> None:
        # It has no mark of this process's: another killer would kill it before its work is done.
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            ("sh", "-c", _KILL_TREE, "sh", f"{MARK}={mark}"), env=environment, process_group=group,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self, patience_s: float) -> None:
        """Tell it to, and wait so long; more calls do nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            # While it is there, no other group has this number.
            os.killpg(os.getpgid(self._process.pid), signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)


class ProcessTree:
    """Starts a process in a group of its own.

    Args:
        words: the command. environment: its variables.
        files: which it inherits. stdout, stderr: as ``subprocess.Popen`` takes them.
        session: start it in a session of its own, without a terminal, where ssh asks nobody for a password. Its killer
            is in no group with it then, and finds all by their mark.
    Attributes:
        process: it.
    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        files: Sequence[int] = (),
        stdout: int | None = None,
        stderr: int | None = None,
        session: bool = False,
    ) -> None:
        mark = new_mark()
        self.process = subprocess.Popen(
            words, env={**environment, MARK: mark}, pass_fds=files, process_group=None if session else 0,
            start_new_session=session, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        try:
            self._killer = TreeKiller(mark, 0 if session else self.process.pid)
        except OSError:
            self.process.kill()
            self.process.wait()
            raise

    def end(self, patience_s: float) -> None:
        """Kill all of it, and wait so long for its killer; ``process`` may take longer, where the system holds it.

        More calls do nothing.
        """
        self._killer.end(patience_s)
        if self.process.poll() is None:  # Its killer was killed before.
            self.process.kill()
