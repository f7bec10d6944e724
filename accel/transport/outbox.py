"""The learner's sends under way: messages, and for each actor one policy at a time."""

from __future__ import annotations

from accel.transport.endpoint import Endpoint, PeerFailed, Request
from accel.transport.policies import PolicyBoard
from accel.transport.wire import TAG_MESSAGE, TAG_POLICY


class Outbox:
    """Starts and completes sends without ever waiting. ``board`` decides which policy an actor gets."""

    def __init__(self, endpoint: Endpoint, ranks: tuple[int, ...]) -> None:
        self.board = PolicyBoard(len(ranks))
        self._endpoint = endpoint
        self._ranks = ranks
        self._messages: list[tuple[int, Request]] = []
        self._policies: dict[int, Request] = {}
        self._abandoned: list[Request] = []
        self._found_dead = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._messages and not self._policies

    def post(self, actor: int, encoded: bytes) -> None:
        """Starts sending a message; ``advance`` tells should the actor be dead."""
        try:
            self._messages.append((actor, self._endpoint.send(encoded, self._ranks[actor], TAG_MESSAGE)))
        except PeerFailed:
            self._found_dead = True

    def advance(self) -> bool:
        """Forgets what is complete and starts the policies whose turn has come. Whether a receiver was found dead."""
        if self._messages:
            self._messages = [entry for entry in self._messages if not self._is_over(entry[1])]
        if self._policies:
            self._policies = {actor: send for actor, send in self._policies.items() if not self._is_over(send)}
        if not self.board.is_idle:
            self._offer_policies()
        found, self._found_dead = self._found_dead, False
        return found

    def forget(self, actor: int) -> None:
        """Stops waiting for a dead actor. MPI may still look at the buffers, which the requests keep alive."""
        self.board.forget(actor)
        self._abandoned += [send for receiver, send in self._messages if receiver == actor]
        self._messages = [entry for entry in self._messages if entry[0] != actor]
        if actor in self._policies:
            self._abandoned.append(self._policies.pop(actor))

    def _offer_policies(self) -> None:
        for actor in self.board.waiting():
            if actor in self._policies:
                continue
            update = self.board.offer(actor)
            if update is None:
                continue
            try:
                frame = self.board.frame(update)
                self._policies[actor] = self._endpoint.send(frame, self._ranks[actor], TAG_POLICY)
            except PeerFailed:
                self._found_dead = True

    def _is_over(self, request: Request) -> bool:
        """Whether a send is complete, or never will be because its receiver died."""
        try:
            return self._endpoint.is_done(request)
        except PeerFailed:
            self._found_dead = True
            return True
