"""The actor's end in a child process of its rank: messages over a socket, unrolls and policies in memory. No torch.

The memory is inherited and without a name, so that nothing outlives the two, however they end. The child writes an
unroll where the rank sends it from: a message passes between the two for each unroll, none for a step.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.activity import WAITING, Activity, shared_activities
from accel.supervision.channel import Channel
from accel.system.memory import anonymous_memory, map_buffers
from accel.transport.base import Bytes, PolicyUpdate, Stopped, check_unroll_bytes
from accel.transport.node_memory import PolicySlot
from accel.transport.wire import encode_message

Found = TypeVar("Found")

_POLICY_LOOK_S = 0.005


class ActorMemory:
    """What a rank and its child have in common: unrolls, the newest policy, the activity, questions and answers.

    Args:
        files: of memory; the child inherits their numbers.
    """

    def __init__(self, files: Sequence[int]) -> None:
        self.files = tuple(files)
        self._ring, policy, activity, self._inference = self.files
        (self.activity,) = shared_activities(activity)
        self.policies = PolicySlot(policy)

    @classmethod
    def make(cls) -> Self:
        """New memory."""
        return cls([anonymous_memory() for _ in range(4)])

    def close(self) -> None:
        """Give the files back; the memory lives as long as somebody has a buffer of it."""
        for file in self.files:
            os.close(file)
        self.files = ()

    def buffers(self, unroll_bytes: int, count: int) -> list[Bytes]:
        """The unrolls' memory: the same at both ends, each buffer on pages of its own."""
        return map_buffers(self._ring, [unroll_bytes] * count)

    def inference(self, question_bytes: int, answer_bytes: int) -> list[Bytes]:
        """The memory of a question to the inference rank and of its answer, the same at both ends."""
        return map_buffers(self._inference, [question_bytes, answer_bytes])


class ChildActor:
    """``ActorTransport`` of a child. ``actor`` is known from the first welcome on."""

    def __init__(self, channel: Channel, memory: ActorMemory) -> None:
        self.actor = -1
        self.stopping = False
        self.activity: Activity = memory.activity
        self._channel, self._memory = channel, memory
        self._welcomes: deque[Json] = deque()
        self._ring: list[Bytes] = []
        self._numbers: dict[int, int] = {}
        self._free: list[Bytes] = []
        self._answers = 0
        self._last = PolicyUpdate(-1, None)

    def welcome(self, timeout_s: float) -> Json:
        """The learner's next message of the handshake, as the rank hands it on."""
        message = self._until(lambda: self._welcomes.popleft() if self._welcomes else None, timeout_s)
        if message is None:
            raise TransportError(f"no word from the learner within {timeout_s:g} s; is it stuck?")
        return message

    def hello(self, message: Json) -> None:
        """Answers the welcome."""
        self._tell("hello", message)

    def report(self, message: Json) -> None:
        """A late message to the learner, or the last one to the rank."""
        self._tell("error" if "error" in message else "report", message)

    def configure(self, unroll_bytes: int, in_flight: int) -> None:
        """Fixes the size of an unroll; the rank and this process map the same buffers."""
        check_unroll_bytes(unroll_bytes)
        self._ring = self._memory.buffers(unroll_bytes, in_flight + 1)
        self._numbers = {id(buffer): number for number, buffer in enumerate(self._ring)}
        self._channel.send("configure", {"unroll_bytes": unroll_bytes, "buffers": in_flight + 1})

    def acquire(self) -> Bytes:
        """A free buffer; see ``ActorTransport.acquire``."""
        self._progress()
        self._raise_if_over()
        if not self._free:
            self._until(lambda: self._free or None, None)
        return self._free.pop()

    def push(self, buffer: Bytes) -> None:
        """Hands an acquired buffer to the rank."""
        self._channel.send("unroll", {"buffer": self._numbers[id(buffer)]})
        self._channel.flush(wait=True)

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        self._progress()
        return self._newer()

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """Waits for a policy."""
        if (update := self._until(self._newer, timeout_s, look_s=_POLICY_LOOK_S)) is None:
            raise TransportError(f"no policy from the learner within {timeout_s:g} s")
        return update

    def open_inference(self, question_bytes: int, answer_bytes: int) -> tuple[Bytes, Bytes]:
        """The buffers of every question to the inference rank and of its answer. Once, before ``ask``."""
        question, answer = self._memory.inference(question_bytes, answer_bytes)
        self._channel.send("inference", {"question_bytes": question_bytes, "answer_bytes": answer_bytes})
        return question, answer

    def ask(self, timeout_s: float) -> None:
        """Sends the question and waits until its answer is whole. Raises Stopped, TransportError (timeout included)."""
        self._answers = 0
        self._channel.send("question")
        if self._until(lambda: self._answers or None, timeout_s) is None:
            raise TransportError(f"no answer from the inference rank within {timeout_s:g} s")

    def _newer(self) -> PolicyUpdate | None:
        if (update := self._memory.policies.read(self._last, patient=True)) is not None:
            self._last = replace(update, payload=None)
        return update

    def _tell(self, kind: str, message: Json) -> None:
        encode_message(kind, message)  # Raises TransportError here rather than where it is passed on.
        self._channel.send(kind, message)
        self._channel.flush(wait=True)

    def _until(
        self, look: Callable[[], Found | None], timeout_s: float | None, look_s: float | None = None
    ) -> Found | None:
        """Looks for what messages bring, again after each of them; for what comes without one, every ``look_s``.

        Returns:
            What was found; None: nothing in time.
        Raises:
            Stopped, ChannelClosedError.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        before = self.activity.enter(WAITING)
        try:
            while True:
                self._progress()
                self._raise_if_over()
                if (found := look()) is not None:
                    return found
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0.0:
                    return None
                self._channel.wait(min((limit for limit in (left, look_s) if limit is not None), default=None))
        finally:
            self.activity.enter(before)

    def _progress(self) -> None:
        for kind, body in self._channel.receive():
            if kind == "free":
                self._free.append(self._ring[int(str(body["buffer"]))])
            elif kind == "welcome":
                self.actor = int(str(body["actor"]))
                message = body["message"]
                self._welcomes.append(message if isinstance(message, dict) else {})
            elif kind == "answer":
                self._answers += 1
            elif kind == "stop":
                self.stopping = True
            elif kind != "policy":  # A wake-up: the policy itself is in the slot.
                raise TransportError(f"the rank sent an unknown kind of message: {kind}")

    def _raise_if_over(self) -> None:
        if self.stopping:
            raise Stopped("the learner asked this actor to stop")
