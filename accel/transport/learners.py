"""Before training: rank 0 tells every rank its role, and learners tell each other what they need to work together.

Roles come over MPI, not from each rank's command line or files: only rank 0 needs to have either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.transport.base import Aborted
from accel.transport.endpoint import Backoff, Endpoint, PeerFailed, Request
from accel.transport.launcher import Role, Topology
from accel.transport.wire import MAX_MESSAGE_BYTES, TAG_LEARNER, TAG_ROLE, decode_message, encode_message

ROLE_TIMEOUT_S = 600.0
_ABORT_S = 2.0


@dataclass(frozen=True)
class Given:
    """Sends that last until their receivers have taken them; to be kept until then."""

    sends: tuple[Request, ...]


def give_roles(endpoint: Endpoint, topology: Topology, job: str = "") -> Given:
    """Tells every other rank how many learners there are, and learners the job. Returns at once."""
    sends = []
    for rank in range(1, endpoint.size):
        told: Json = {"learners": topology.learners, "central": topology.groups[0].inference is not None}
        if topology.role(rank) is Role.LEARNER:
            told["job"] = job
        try:
            sends.append(endpoint.send(encode_message("role", told), rank, TAG_ROLE))
        except PeerFailed:
            continue  # whoever waits for that rank notices
    return Given(tuple(sends))


def take_role(endpoint: Endpoint, timeout_s: float = ROLE_TIMEOUT_S) -> tuple[Topology, str]:
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
    """Messages between learners until their process group stands. One learner alone talks to nobody.

    Args:
        endpoint: this rank's. topology: says which ranks learn.
        timeout_s: how long to wait for another learner.
    Attributes:
        learner: this one's number, of ``learners``. joined: whether their process group stands.
    """

    def __init__(self, endpoint: Endpoint, topology: Topology, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._ranks = [group.learner for group in topology.groups]
        self._timeout_s = timeout_s
        self._sends: list[Request] = []
        self.learner = self._ranks.index(endpoint.rank)
        self.learners = len(self._ranks)
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
            self._sends = [send for send in self._sends if not self._is_over(send)]

    def _post(self, encoded: bytes) -> None:
        for rank in self._ranks:
            if rank != self._endpoint.rank:
                try:
                    self._sends.append(self._endpoint.send(encoded, rank, TAG_LEARNER))
                except PeerFailed:
                    continue  # the wait for its message says so

    def _is_over(self, request: Request) -> bool:
        try:
            return self._endpoint.is_done(request)
        except PeerFailed:
            return True


def _receive(endpoint: Endpoint, rank: int, tag: int, backoff: Backoff) -> tuple[str, Json | None]:
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
