"""A rank's end for its actor, over a carrier of messages: a ring of unroll buffers out, the newest policy in.

Nothing here waits: the process that acts has an ``ActorTransport`` of its own (``child_actor``), and what hands its
unrolls on looks at both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.transport.base import Bytes, PolicyUpdate
from accel.transport.endpoint import Backoff, PeerFailed
from accel.transport.launcher import LearnerGroup
from accel.transport.node_memory import NodeMemory, NodeView, Place, node_name
from accel.transport.wire import (
    TAG_ANSWER,
    TAG_MESSAGE,
    TAG_POLICY,
    TAG_QUESTION,
    TAG_RELAY,
    TAG_UNROLL,
    WIRE_FORMAT,
    check_formats,
    decode_message,
    decode_policy,
    encode_message,
)

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint, Request

_MAX_REPORTS_UNDER_WAY = 16
_BEAT, _CANNOT_FOLLOW = encode_message("beat", {}), encode_message("cannot-follow", {})
_HELP_S = {"hello": 1.0, "report": 0.02, "rejoined": 0.02}


class RemoteActor:
    """An actor's messages over an ``MpiEndpoint``. The learner's stream ends with a stop, this actor's with a goodbye.

    Args:
        node: what actors have in common of which one relays policies to the others; None: ``node_name``.
    Attributes:
        fence: set when the learner, which had not heard of this actor for too long, asks it to start anew; ``rejoin``
            answers.
    """

    def __init__(
        self,
        endpoint: MpiEndpoint,
        group: LearnerGroup,
        *,
        formats: Mapping[str, int] | None = None,
        node: str | None = None,
    ) -> None:
        # The inference rank comes after all actors: it is sent the policies, and sends no unrolls.
        self.actor = (*group.actors, group.inference).index(endpoint.rank)
        self.stopping = False
        self._endpoint = endpoint
        self._learner, self._inference = group.learner, group.inference
        self.formats: Json = {"transport": WIRE_FORMAT, **(formats or {})}
        self._free: list[Bytes] = []
        self._sends: deque[tuple[Request, Bytes]] = deque()
        self._reports: deque[Request] = deque()
        self._scratch: Bytes = np.empty(0, np.uint8)
        self._receipt: tuple[int, Request, Bytes] | None = None
        self._welcomes: deque[Json] = deque()
        self._update: PolicyUpdate | None = None
        self._last = PolicyUpdate(-1, None)
        self._node = node or node_name()
        self._memory: NodeMemory | None = None
        self._view: NodeView | None = None
        self._abort_text: str | None = None
        self._learner_gone = False
        self._closed = False
        self._beat: Request | None = None
        self._question: tuple[Request, Bytes] | None = None
        self._answer: tuple[Request | None, Bytes] | None = None
        self.fence: int | None = None

    def poll_welcome(self) -> Json | None:
        """The learner's next message of the handshake, if any. Raises TransportError: it speaks other formats."""
        self.pump()
        if not self._welcomes:
            return None
        welcome = self._welcomes.popleft()
        theirs = welcome.get("formats")
        try:
            check_formats(theirs if isinstance(theirs, dict) else {}, self.formats)
        except TransportError as error:
            self.hello({"error": str(error)})
            raise
        message = welcome.get("message")
        return message if isinstance(message, dict) else {}

    def hello(self, message: Json) -> None:
        """Answers the welcome, and says where others of this node would find policies that this actor relays."""
        if self._memory is None and self._node is not None:
            self._memory = NodeMemory(self._node)
        place = None if self._memory is None else self._memory.place
        self._post("hello", {"place": place, "message": message})

    def report(self, message: Json) -> None:
        """Sends a late message; waits only when many earlier ones have not been taken yet."""
        self._post("report", message)

    def beat(self) -> None:
        """Tells the learner that this process lives, unless the last such message is still on its way."""
        if self._beat is None or self._is_done(self._beat):
            self._beat = self._guarded_send(_BEAT, TAG_MESSAGE)

    def rejoin(self) -> bool:
        """Tells the learner that this actor has started anew, once everything from before is with the learner."""
        self._reap()
        self._reap_reports()
        if self._sends or self._reports:
            return False
        self._post("rejoined", {"fence": self.fence})
        self.fence = None
        return True

    def share(self, ring: Sequence[Bytes]) -> None:
        """The buffers of unrolls, all of them free now."""
        self._free = list(ring)

    def try_acquire(self) -> Bytes | None:
        """A free buffer if there is one."""
        if not self._free:
            self._reap()
            if not self._free:
                return None
        return self._free.pop()

    def push(self, buffer: Bytes) -> None:
        """Sends an acquired buffer."""
        self._sends.append((self._guarded_send(buffer, TAG_UNROLL), buffer))

    def pull(self) -> PolicyUpdate | None:
        """The newest policy if one came since the last pull."""
        self.pump()
        update, self._update = self._update, None
        return update

    def ask(self, question: Bytes, answer: Bytes) -> None:
        """Sends a question to the inference rank; the caller leaves both buffers alone until ``is_answered``.

        A dead inference rank answers nothing: the learner notices, and ends the run.
        """
        if self._inference is None or self.is_asking:
            raise TransportError("ask() needs an inference rank, and one question at a time")
        self._answer = (None, answer)
        with suppress(PeerFailed):
            self._question = (self._endpoint.send(question, self._inference, TAG_QUESTION), question)

    @property
    def is_asking(self) -> bool:
        """Whether a question is under way."""
        return self._answer is not None

    def is_answered(self) -> bool:
        """Whether the answer has just become whole. Raises TransportError: it has another size than expected."""
        if self._answer is None or self._inference is None:
            return False
        request, buffer = self._answer
        try:
            if request is None:
                incoming = self._endpoint.probe(self._inference, TAG_ANSWER)
                if incoming is None:
                    return False
                if incoming.nbytes != buffer.nbytes:
                    raise TransportError(
                        f"the inference rank answered with {incoming.nbytes} bytes, not {buffer.nbytes}: its policy is "
                        "for another environment or network"
                    )
                request = incoming.receive(buffer)
                self._answer = (request, buffer)
            if not self._endpoint.is_done(request):
                return False
            if self._question is not None:
                # It is, as there is an answer; but MPI keeps every request until somebody has asked.
                self._endpoint.is_done(self._question[0])
        except PeerFailed:
            self._question = self._answer = None
            return False
        self._question = self._answer = None
        return True

    def close(self, timeout_s: float = 10.0) -> None:
        """Says goodbye after everything pushed has been taken, then waits for the learner's answer. Never raises; with
        a dead learner returns at once."""
        if self._closed:
            return
        self._closed = True
        try:
            self._say_goodbye(Backoff(timeout_s))
        except TransportError:
            pass  # The learner is gone, or what it sends is broken: there is nobody to say goodbye to.
        finally:
            self._follow(None)
            if self._memory is not None:
                self._memory.close()
                self._memory = None

    @property
    def has_news(self) -> bool:
        """Whether ``poll_welcome`` or ``pull`` would answer without looking for more."""
        return self._update is not None or bool(self._welcomes)

    @property
    def aborted(self) -> bool:
        """Whether the learner gave the run up."""
        return self._abort_text is not None

    def _say_goodbye(self, backoff: Backoff) -> None:
        while self.is_asking and not self.aborted and not self.is_answered() and backoff.pause():
            self.pump()  # MPI does not end well with a question under way.
        while self._sends:
            self.pump()
            self._reap()
            if self._sends and not backoff.pause():
                return
        self._reports.append(self._guarded_send(encode_message("goodbye", {}), TAG_MESSAGE))
        while self._reports or not self.stopping or self._receipt is not None:
            self.pump()
            self._reap_reports()
            if not backoff.pause():
                return

    def _post(self, kind: str, body: Json) -> None:
        encoded = encode_message(kind, body)
        backoff = Backoff(None)
        self._reap_reports()
        while len(self._reports) >= _MAX_REPORTS_UNDER_WAY:
            backoff.pause()
            self.pump()
            self._reap_reports()
        self._reports.append(self._guarded_send(encoded, TAG_MESSAGE))
        # A network may need this side's help to open a connection; nobody knows when this actor calls again.
        backoff = Backoff(_HELP_S[kind])
        while self._reports and backoff.pause():
            self.pump()
            self._reap_reports()

    def _guarded_send(self, buffer: bytes | Bytes, tag: int) -> Request:
        if self._learner_gone:
            raise self._learner_failed(None)
        try:
            return self._endpoint.send(buffer, self._learner, tag)
        except PeerFailed as error:
            raise self._learner_failed(error) from error

    def _is_done(self, request: Request) -> bool:
        try:
            return self._endpoint.is_done(request)
        except PeerFailed as error:
            raise self._learner_failed(error) from error

    def _reap(self) -> None:
        """Frees the buffers whose sends are complete; these end in the order in which they began, near enough."""
        while self._sends and self._is_done(self._sends[0][0]):
            self._free.append(self._sends.popleft()[1])

    def _reap_reports(self) -> None:
        while self._reports and self._is_done(self._reports[0]):
            self._reports.popleft()

    def pump(self) -> None:
        """Lets transfers progress: takes everything that the learner, or the relay of this node, has for this actor."""
        if self._learner_gone:
            raise self._learner_failed(None)
        self._hear_learner()
        if self._view is not None and (update := self._view.read(self._last)) is not None:
            self._accept(update)

    def _hear_learner(self) -> None:
        """Takes what the learner has sent, in order. A policy still under way holds up what follows it."""
        while not self.stopping:  # Nothing follows a stop.
            if self._receipt is not None:
                tag, request, buffer = self._receipt
                if not self._is_done(request):
                    return
                self._receipt = None
                self._take(tag, buffer)
            try:
                incoming = self._endpoint.probe(self._learner, self._endpoint.any_tag)
                if incoming is None:
                    return
                if incoming.nbytes > self._scratch.nbytes:
                    self._scratch = np.empty(incoming.nbytes, np.uint8)
                buffer = self._scratch[: incoming.nbytes]  # Reused, for a fresh page costs more than its bytes.
                self._receipt = (incoming.tag, incoming.receive(buffer), buffer)
            except PeerFailed as error:
                raise self._learner_failed(error) from error

    def _take(self, tag: int, buffer: Bytes) -> None:
        if tag == TAG_POLICY:
            self._take_own(*decode_policy(buffer.data))
        elif tag == TAG_RELAY and self._memory is not None:
            self._memory.write(*decode_policy(buffer.data))
        elif tag == TAG_MESSAGE:
            self._obey(*decode_message(buffer.data))
        else:
            raise TransportError(f"a message with the foreign tag {tag} arrived from the learner")

    def _take_own(self, update: PolicyUpdate, payload: memoryview | None) -> None:
        """A policy for this actor alone, which it may know from its relay already."""
        if self._view is not None and update.publication <= self._last.publication:
            return
        if payload is not None and update.content != self._last.content:
            update = replace(update, payload=bytes(payload))
        self._accept(update)

    def _accept(self, update: PolicyUpdate) -> None:
        self._last = replace(update, payload=None)
        if update.payload is None and self._update is not None:
            update = replace(update, payload=self._update.payload)
        self._update = update

    def _follow(self, place: Place | None) -> bool:
        """Reads the policies of whoever relays them from now on; False where its memory cannot be opened."""
        if self._view is not None:
            self._view.close()
            self._view = None
        if place is not None:
            with suppress(TransportError):
                self._view = NodeView(place)
        return self._view is not None

    def _obey(self, kind: str, body: Json) -> None:
        if kind == "welcome":
            self._welcomes.append(body)
        elif kind == "follow":
            if not self._follow(Place.of(body.get("place"))):
                self._reports.append(self._guarded_send(_CANNOT_FOLLOW, TAG_MESSAGE))
        elif kind == "rejoin":
            self.fence = int(str(body.get("fence")))
            self._follow(None)
        elif kind in ("stop", "abort"):
            self.stopping = True
            if kind == "abort":
                self._abort_text = str(body.get("message", ""))
        else:
            raise TransportError(f"the learner sent an unknown kind of message: {kind}")

    def _learner_failed(self, error: PeerFailed | None) -> TransportError:
        self._learner_gone = True
        failed = TransportError(f"the learner (rank {self._learner}) is gone; this actor cannot go on without it")
        failed.__cause__ = error
        return failed
