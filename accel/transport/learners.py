"""Before training: rank 0 tells every rank its role, and learners tell each other what they need to work together.

Roles come over MPI, not from each rank's command line or files: only rank 0 needs to have either. Learners that
exchange gradients asynchronously send each other messages all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.transport.base import Aborted, Bytes
from accel.transport.endpoint import Backoff, PeerFailed
from accel.transport.launcher import Role, Topology
from accel.transport.wire import MAX_MESSAGE_BYTES, TAG_GRADIENTS, TAG_LEARNER, TAG_ROLE, decode_message, encode_message

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint, MpiIncoming, Request

ROLE_TIMEOUT_S = 600.0
_ABORT_S = 2.0
_HELP_S = 0.01


def give_roles(endpoint: MpiEndpoint, topology: Topology, job: str = "") -> None:
    """Tells every other rank how many learners there are, and learners the job; waits for none of them."""
    for rank in range(1, endpoint.size):
        told: Json = {"learners": topology.learners, "central": topology.groups[0].inference is not None}
        if topology.role(rank) is Role.LEARNER:
            told["job"] = job
        try:
            endpoint.roles.append(endpoint.send(encode_message("role", told), rank, TAG_ROLE))
        except PeerFailed:
            continue  # whoever waits for that rank notices


def take_role(endpoint: MpiEndpoint, timeout_s: float = ROLE_TIMEOUT_S) -> tuple[Topology, str]:
    """Every rank's role, as rank 0 says, and the job where this one learns. Raises TransportError: no word in time."""
    try:
        body = _receive(endpoint, 0, TAG_ROLE, Backoff(timeout_s))[1]
    except PeerFailed as error:
        raise TransportError("the learner (rank 0) is gone; this rank cannot go on without it") from error
    if body is None:
        raise TransportError(f"no word from the learner (rank 0) within {timeout_s:g} s; is it stuck?")
    topology = Topology.of(endpoint.size, int(str(body["learners"])), bool(body["central"]))
    return topology, str(body.get("job", ""))


class LearnerLink:
    """Messages between learners, until their process group stands where they have one. A single one talks to nobody.

    Args:
        endpoint: this rank's. topology: says which ranks learn.
        timeout_s: how long to wait for another learner.
    Attributes:
        learner: this one's number, of ``learners``. joined: whether their process group stands.
        largest_bytes: of a message.
    """

    def __init__(self, endpoint: MpiEndpoint, topology: Topology, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._ranks = [group.learner for group in topology.groups]
        self._timeout_s = timeout_s
        self._sends: list[Request] = []
        self._incoming: list[tuple[MpiIncoming, Request, Bytes]] = []
        self.learner = self._ranks.index(endpoint.rank)
        self.learners = len(self._ranks)
        self.largest_bytes = endpoint.largest_bytes
        self.joined = False

    def gather(self, message: Json) -> list[Json]:
        """Every learner's message, by learner. Raises Aborted: one gave up; TransportError: one is gone or silent."""
        self._post(encode_message("prepare", message))
        backoff = Backoff(self._timeout_s)
        found = []
        for learner, rank in enumerate(self._ranks):
            if rank == self._endpoint.rank:
                found.append(message)
                continue
            try:
                kind, body = _receive(self._endpoint, rank, TAG_LEARNER, backoff)
            except PeerFailed as error:
                raise TransportError(f"learner {learner} (rank {rank}) died before training began") from error
            if body is None:
                raise TransportError(f"learner {learner} (rank {rank}) did not answer within {self._timeout_s:g} s")
            if kind == "abort":
                raise Aborted(f"learner {learner}: {body['message']}")
            found.append(body)
        return found

    def abort(self, message: str) -> None:
        """Lets the other learners' ``gather`` raise Aborted; waits a moment for them to hear it. Never raises.

        Nothing where their process group stands: its end tells them.
        """
        if self.joined:
            return
        self._post(encode_message("abort", {"message": message}))
        backoff = Backoff(_ABORT_S)
        while self._sends and backoff.pause():
            self._forget_taken()

    def post(self, learner: int, content: bytes) -> None:
        """Send another learner a message that its ``poll`` gives. Helps it along for a moment, and waits for nobody."""
        self._forget_taken()
        with self._alive(learner) as rank:
            self._sends.append(send := self._endpoint.send(content, rank, TAG_GRADIENTS))
            self._help(send)

    def poll(self, learner: int) -> bytes | None:
        """The next message that another learner has posted; None while there is none.

        Raises Aborted: it gave up; TransportError: it is gone.
        """
        with self._alive(learner) as rank:
            for tag in (TAG_LEARNER, TAG_GRADIENTS):
                if (found := self._endpoint.probe(rank, tag)) is not None:
                    self.take(found)
            for place, (incoming, request, buffer) in enumerate(self._incoming):
                if incoming.source == rank:
                    if not self._help(request):
                        return None
                    del self._incoming[place]
                    if incoming.tag == TAG_LEARNER:
                        raise Aborted(f"learner {learner}: {decode_message(buffer.data)[1]['message']}")
                    return buffer.tobytes()
        return None

    def take(self, incoming: MpiIncoming) -> None:
        """Receive a message that another has matched, for ``poll`` to give."""
        if incoming.source not in self._ranks or incoming.tag not in (TAG_LEARNER, TAG_GRADIENTS):
            raise TransportError(f"rank {incoming.source} sent a message that is for no learner (tag {incoming.tag})")
        buffer = np.empty(incoming.nbytes, np.uint8)
        self._incoming.append((incoming, incoming.receive(buffer), buffer))

    def _help(self, request: Request) -> bool:
        """Whether a transfer is complete. A large one needs both ends, and this one may compute for long afterwards."""
        backoff = Backoff(_HELP_S)
        while not (done := self._endpoint.is_done(request)) and backoff.pause():
            pass
        return done

    @contextmanager
    def _alive(self, learner: int) -> Iterator[int]:
        """A learner's rank, for messages to it and from it."""
        try:
            yield self._ranks[learner]
        except PeerFailed as error:
            raise TransportError(f"learner {learner} is gone; its own message says why") from error

    def _post(self, encoded: bytes) -> None:
        for rank in self._ranks:
            if rank != self._endpoint.rank:
                try:
                    self._sends.append(self._endpoint.send(encoded, rank, TAG_LEARNER))
                except PeerFailed:
                    continue  # the wait for its message says so

    def _forget_taken(self) -> None:
        over = self._endpoint.over(self._sends)[0]
        self._sends = [send for place, send in enumerate(self._sends) if place not in over]


def _receive(endpoint: MpiEndpoint, rank: int, tag: int, backoff: Backoff) -> tuple[str, Json | None]:
    """The next message of a rank; no body when the time is up."""
    while (incoming := endpoint.probe(rank, tag)) is None:
        if rank in endpoint.failed_ranks():
            raise PeerFailed(f"rank {rank} has died")
        if not backoff.pause():
            return "", None
    if incoming.nbytes > MAX_MESSAGE_BYTES:
        raise TransportError(f"rank {rank} sent a message of {incoming.nbytes} bytes")
    buffer = np.empty(incoming.nbytes, np.uint8)
    request = incoming.receive(buffer)
    while not endpoint.is_done(request):
        if not backoff.pause():
            return "", None
    return decode_message(buffer.data)
