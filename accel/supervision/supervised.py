"""A process that does something for this one, and its replacements: one life cycle for all of them.

A process gets a socket for messages (``Channel``), and shows its progress in two integers of memory that both see
(``Activity``). It must be replaced when it has ended, or closed its socket and stayed; when it was stopped for longer
than ``STOPPED_S``; and when it makes no progress: a step has a limit, construction and resets have another one. Then
all that it has started ends with it (``ProcessTree``), and another one follows after exponential back-off, until it
fails too often in a row. Who uses this says what a message means, what is lost with a process, and when to give up.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from accel.json_object import Json
from accel.supervision.activity import PREPARING, Activity, HangDetector
from accel.supervision.channel import Channel, ChannelClosedError
from accel.supervision.process_tree import ProcessTree
from accel.supervision.processes import is_stopped

STOPPED_S = 10.0
STEADY_S = 10.0
"""Of work, after which a failure is the first one of a new row."""
FIRST_RESTARTS = 3
"""Of one that has done next to nothing yet: what fails at once, again and again, is the environment's."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
_GRACE_S = 5.0


class Supervised:
    """At most one process at a time. Times are seconds of the caller's clock, which must not count its own suspension.

    Args:
        command: starts a process, which finds the numbers of its files as one more word (``begin_child``).
        activity: where it shows its progress. files: that it inherits beside its socket.
        limits_s: how long a step may take, and construction or a reset. quiet: nothing that it prints is shown.
    Attributes:
        channel: to the process. incarnation: how many there were before this one. failures: in a row.
        up_s: when it began to work, as ``began_work`` was told; None: not yet.
        restart_s: when another one may be started; None while one runs.
        hangs: how long nothing was done. last_error: its message of the kind ``error`` (``error_report``), if any.
    """

    def __init__(
        self,
        command: Sequence[str],
        activity: Activity,
        files: Sequence[int] = (),
        *,
        limits_s: tuple[float, float] = (float("inf"), float("inf")),
        quiet: bool = False,
    ) -> None:
        self.command, self.activity = tuple(command), activity
        self.channel: Channel | None = None
        self.incarnation, self.failures = -1, 0
        self.up_s: float | None = None
        self.restart_s: float | None = 0.0
        self.hangs = HangDetector(activity, *limits_s)
        self.last_error: Json = {}
        self._files, self._quiet = tuple(files), quiet
        self._tree: ProcessTree | None = None
        self._why_none = ""
        self._running_s = 0.0
        self._closed_s: float | None = None
        self._is_heard = False

    def start(self, now_s: float, environment: Mapping[str, str] = os.environ) -> None:
        """Start the first process, or the next one; ``look`` says where the system starts no more."""
        ours, theirs = socket.socketpair()
        files = (theirs.fileno(), *self._files)
        quiet = subprocess.DEVNULL if self._quiet else None
        self.incarnation += 1
        self.activity.enter(PREPARING)
        self.up_s = self.restart_s = self._closed_s = None
        self.last_error, self._running_s, self._is_heard = {}, now_s, False
        self.hangs.since_s = now_s
        try:
            words = (*self.command, ",".join(map(str, files)))
            self._tree = ProcessTree(words, environment, files=files, stdout=quiet, stderr=quiet)
            self.channel = Channel(ours)
        except OSError as error:
            ours.close()
            self._tree, self._why_none = None, f"its process cannot be started: {error.strerror}"
        finally:
            theirs.close()

    @property
    def is_connected(self) -> bool:
        """Whether a process may still be told something, or say it."""
        return self.channel is not None and self.channel.fileno() >= 0

    @property
    def has_ended(self) -> bool:
        """Whether no process is left, not even one that the system holds."""
        return self._tree is None or self._tree.process.poll() is not None

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to start the next one: the pause is over, and the one before is gone."""
        return self.restart_s is not None and now_s >= self.restart_s and self.has_ended

    def wait(self, timeout_s: float) -> None:
        """Until it has ended by itself, or the time is up."""
        if self._tree is not None:
            with suppress(subprocess.TimeoutExpired):
                self._tree.process.wait(timeout_s)

    def began_work(self, now_s: float) -> None:
        """The process has done what it does first: from now on it is up."""
        self.up_s, self.hangs.longest_s = now_s, 0.0

    def is_steady(self, now_s: float) -> bool:
        """Whether the process had worked for so long that its failure says nothing about the next one."""
        return self.up_s is not None and now_s > self.up_s + STEADY_S

    def send(self, kind: str, body: Mapping[str, object] | None = None) -> None:
        """Send a message; to a process that is gone, nothing: ``look`` will tell."""
        if self.channel is not None and self.is_connected:
            with suppress(ChannelClosedError):
                self.channel.send(kind, body)

    def receive(self, now_s: float) -> list[tuple[str, Json]]:
        """What the process has said; at the end of it the channel is closed."""
        if self.channel is None or not self.is_connected:
            return []
        try:
            messages = self.channel.receive()
        except ChannelClosedError:
            self.channel.close()
            self._closed_s = now_s
            return []
        for kind, body in messages:
            self.hangs.since_s = now_s
            if kind == "error":
                self.last_error = body
        return messages

    def look(self, now_s: float) -> str:
        """Why the process must be replaced; empty where it need not.

        One that has ended is judged by the second look, so that what it had said is received before.
        """
        if self._tree is None or self.restart_s is not None:
            why, self._why_none = self._why_none, ""
            return why
        process = self._tree.process
        if (status := process.poll()) is not None:
            is_heard, self._is_heard = self._is_heard, True
            return describe_end(status, self.last_error) if is_heard else ""
        if self._closed_s is not None:
            if now_s > self._closed_s + _GRACE_S:
                self._tree.end(_GRACE_S)  # It closed what it shares, and stays.
            return ""
        with suppress(ChannelClosedError):
            if self.channel is not None:
                self.channel.flush()
        if not is_stopped(process.pid):
            self._running_s = now_s
        elif now_s > self._running_s + STOPPED_S:
            return f"its process was stopped for {STOPPED_S:g} s"
        return self.hangs.look(now_s)

    def fail(self, now_s: float, most: int) -> float | None:
        """End what is left of the process, and count its failure.

        Args:
            most: failures in a row after which another one is started.
        Returns:
            The pause until then, in seconds; None: there will be no other.
        """
        self.failures = 1 if self.is_steady(now_s) else self.failures + 1
        self.up_s = None
        self.end(now_s=now_s)
        if self.failures > most:
            self.restart_s = float("inf")
            return None
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self.failures - 1), _LONGEST_PAUSE_S)
        self.restart_s = now_s + pause_s
        return pause_s

    def end(self, *, now_s: float = 0.0, wait: bool = False) -> None:
        """End the process and all that it has started; more calls do nothing. The next one may start at once.

        Args:
            now_s: by the caller's clock.
            wait: until the system has let it go; one that cannot be interrupted ends when it returns.
        """
        self.restart_s = now_s if self.restart_s is None else self.restart_s
        if self._tree is not None:
            self._tree.end(_GRACE_S)
            if wait:
                self.wait(_GRACE_S)
        if self.channel is not None:
            self.channel.close()


def describe_end(status: int, last_error: Mapping[str, object]) -> str:
    """How a process ended.

    Args:
        status: as of ``subprocess.Popen.returncode``. last_error: its last message; ``error`` is what it raised.
    """
    if "error" in last_error:
        return f"it raised {last_error['error']}"
    if status >= 0:
        return f"its process left through exit({status})"
    names = {number.value: number.name for number in signal.Signals}
    return f"its process was ended by {names.get(-status, f'signal {-status}')}"
