"""The actor's end of the transport in a child process of the rank, which talks MPI for it (``accel.acting.host``).

An unroll is written where the rank sends it from, and the newest policy is read where the rank has put it: a message
passes between the two for each unroll, none for a step.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from accel.errors import TransportError
from accel.json_object import Json
from accel.system.pulse import WAITING, Pulse
from accel.transport.base import Bytes, PolicyUpdate, Stopped
from accel.transport.channel import Link
from accel.transport.unroll_pool import check_unroll_bytes

_LOOK_S = 0.005


class ChildActor:
    """``ActorTransport`` over a ``Link``. ``actor`` is known from the first welcome on."""

    def __init__(self, link: Link) -> None:
        self.actor = -1
        self.stopping = False
        self.pulse: Pulse = link.pulse
        self._link = link
        self._welcomes: deque[Json] = deque()
        self._ring: list[Bytes] = []
        self._numbers: dict[int, int] = {}
        self._free: list[Bytes] = []

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message of the handshake, as the rank hands it on."""
        if not self._until(lambda: bool(self._welcomes), timeout_s):
            raise TransportError(f"no word from the learner within {timeout_s:g} s; is it stuck?")
        return self._welcomes.popleft()

    def hello(self, message: Json) -> None:
        """Answers the welcome."""
        self._link.send("hello", message)
        self._link.flush(wait=True)

    def report(self, message: Json) -> None:
        """A late message to the learner, or the last one to the rank."""
        self._link.send("report", message)
        self._link.flush(wait=True)

    def configure(self, unroll_bytes: int, in_flight: int | None = None) -> None:
        """Fixes the size of an unroll; the rank and this process map the same buffers."""
        check_unroll_bytes(unroll_bytes, self._ring[0].nbytes if self._ring else None)
        count = (in_flight or 2) + 1
        self._ring = self._link.buffers(unroll_bytes, count)
        self._numbers = {id(buffer): number for number, buffer in enumerate(self._ring)}
        self._link.send("configure", {"unroll_bytes": unroll_bytes, "buffers": count})

    def acquire(self) -> Bytes:
        """A free buffer; see ``ActorTransport.acquire``."""
        self._progress()
        self._raise_if_over()
        if not self._free:
            self._until(lambda: bool(self._free), None)
        return self._free.pop()

    def push(self, buffer: Bytes) -> None:
        """Hands an acquired buffer to the rank."""
        self._link.send("unroll", {"buffer": self._numbers[id(buffer)]})
        self._link.flush(wait=True)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        self._progress()
        return self._link.policies.read()

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """Waits for a policy."""
        found: list[PolicyUpdate] = []

        def arrived() -> bool:
            if (update := self._link.policies.read()) is not None:
                found.append(update)
            return bool(found)

        if not self._until(arrived, timeout_s, look_s=_LOOK_S):
            raise TransportError(f"no policy from the learner within {timeout_s:g} s")
        return found[-1]

    def pump(self) -> None:
        """Nothing to do: the rank sees to transfers."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Nothing to do: the rank says goodbye."""

    def _until(self, ready: Callable[[], bool], timeout_s: float | None, look_s: float | None = None) -> bool:
        """Waits for ``ready``, which messages bring about; what comes without one is looked for every ``look_s``.

        Raises Stopped, LinkLostError.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        before = self.pulse.enter(WAITING)
        try:
            while True:
                self._progress()
                self._raise_if_over()
                if ready():
                    return True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0.0:
                    return False
                self._link.wait(min((limit for limit in (left, look_s) if limit is not None), default=None))
        finally:
            self.pulse.enter(before)

    def _progress(self) -> None:
        for kind, body in self._link.receive():
            if kind == "free":
                self._free.append(self._ring[int(str(body["buffer"]))])
            elif kind == "welcome":
                self.actor = int(str(body["actor"]))
                message = body["message"]
                self._welcomes.append(message if isinstance(message, dict) else {})
            elif kind == "stop":
                self.stopping = True
            elif kind != "policy":  # A wake-up: the policy itself is in the slot.
                raise TransportError(f"the rank sent an unknown kind of message: {kind}")

    def _raise_if_over(self) -> None:
        if self.stopping:
            raise Stopped("the learner asked this actor to stop")


def adopt_link(files: str) -> Link:
    """The child's end of what it inherited, as the rank wrote it on the command line."""
    socket, ring, policy, pulse = (int(number) for number in files.split(","))
    for number in (socket, ring, policy, pulse):
        os.set_inheritable(number, False)
    return Link.adopt((socket, ring, policy, pulse))
