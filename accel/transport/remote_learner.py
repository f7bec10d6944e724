"""The learner's end over a carrier of messages: unrolls in from anyone, policies out, no waiting for any actor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.supervision.clock import AwakeClock
from accel.transport.base import Arrival, Bytes, LearnerTransport, TransportOptions, UnrollPool
from accel.transport.endpoint import Backoff, PeerFailed
from accel.transport.launcher import LearnerGroup
from accel.transport.node_memory import Place
from accel.transport.policy_board import PolicyBoard
from accel.transport.relays import Relays
from accel.transport.wire import (
    MAX_MESSAGE_BYTES,
    TAG_MESSAGE,
    TAG_POLICY,
    TAG_RELAY,
    TAG_UNROLL,
    WIRE_FORMAT,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint, MpiIncoming, Request

_INBOX_LIMIT = 4096
# A network may need this side's help to open connections, and nobody knows when the learner calls again.
_WELCOME_HELP_S = 0.1
_LISTENS_S = 0.5
_LOOKS = 64
_RELAY_SILENCE = 0.5  # Of the silence after which an actor is fenced off.


class RemoteLearner(LearnerTransport):
    """The end over an ``MpiEndpoint``.

    Attributes:
        others: takes messages of ranks that are none of this learner's actors; None: they are an error.
    """

    others: Callable[[MpiIncoming], None] | None = None

    def __init__(
        self,
        endpoint: MpiEndpoint,
        group: LearnerGroup,
        *,
        options: TransportOptions | None = None,
        formats: Mapping[str, int] | None = None,
    ) -> None:
        self.actors = len(group.actors)
        self.fault_tolerant = endpoint.fault_tolerant
        self._endpoint = endpoint
        ranks = group.actors if group.inference is None else (*group.actors, group.inference)
        self._ranks = ranks
        self._actor_of = {rank: actor for actor, rank in enumerate(ranks)}
        # It is told and watched like an actor, with the number after the last one's.
        self._inference = None if group.inference is None else len(group.actors)
        self._options = options or TransportOptions()
        self._formats: Json = {"transport": WIRE_FORMAT, **(formats or {})}
        self._alive = set(range(len(ranks)))
        self._alive_actors: frozenset[int] | None = None
        self._dead: set[int] = set()
        self._silent: dict[int, int] = {}
        self._invited: set[int] = set()
        self._lost: set[int] = set()
        self._fences = 0
        self._heard_s: dict[int, float] = {}
        self._clock, self._look_s = AwakeClock(2.0 * _LISTENS_S), 0.0
        self._told_to_stop: set[int] = set()
        self._outbox = _Outbox(endpoint, ranks)
        self._relays = self._outbox.relays
        if self._inference is not None:
            for actor in range(self.actors):
                self._outbox.board.forget(actor)  # policies go to the inference rank only
        self._receipts: deque[tuple[int, int, Request, Bytes]] = deque()
        self._inbox: list[tuple[int, Json]] = []
        self.pool = UnrollPool(self._options)
        self.stopping = False

    def alive(self) -> frozenset[int]:
        """Actors that have neither died nor said goodbye, and are not silent."""
        if self._alive_actors is None:  # Asked for at every turn, and changed hardly ever.
            self._alive_actors = frozenset(self._alive - {self._inference})
        return self._alive_actors

    def silent(self) -> frozenset[int]:
        """Actors that are fenced off; see ``LearnerTransport.silent``."""
        return frozenset(self._silent.keys() - {self._inference})

    def dead(self) -> frozenset[int]:
        """Actors that ended without a goodbye."""
        return frozenset(self._dead - {self._inference})

    @property
    def is_left(self) -> bool:
        """Whether every rank that it served, one for inference included, has died or said goodbye."""
        return not self._alive and not self._silent

    def welcome(self, message: Json) -> None:
        """Sends every actor a message, with the formats that this learner speaks; see ``LearnerTransport.welcome``."""
        for actor in sorted(self._alive):
            self._outbox.post(actor, "welcome", {"formats": self._formats, "message": message})
        backoff = Backoff(_WELCOME_HELP_S)
        while not self._outbox.is_empty and backoff.pause():
            self._advance_sends()

    def messages(self) -> list[tuple[int, Json]]:
        """Hellos and reports since the last call."""
        self.pump()
        inbox, self._inbox = self._inbox, []
        return inbox

    def receive(self, timeout_s: float = 0.0) -> Arrival | None:
        """The next unroll; see ``LearnerTransport.receive``."""
        self.pool.check_may_hold()
        self.pump()
        backoff = Backoff(timeout_s)
        while not self.pool.ready and backoff.pause():
            self.pump()
        return self.pool.hold()

    def publish(self, version: int, payload: bytes) -> None:
        """Offers every actor a policy; see ``LearnerTransport.publish``."""
        self._outbox.board.publish(version, payload)
        self._advance_sends()

    def stop(self, timeout_s: float = 30.0) -> frozenset[int]:
        """Stops the actors and drains; see ``LearnerTransport.stop``."""
        return self._end("stop", {}, timeout_s)

    def abort(self, message: str, timeout_s: float = 5.0) -> frozenset[int]:
        """Stops the actors with an error."""
        return self._end("abort", {"message": message}, timeout_s)

    def _end(self, kind: str, body: Json, timeout_s: float) -> frozenset[int]:
        self.stopping = True
        self._relays.close()
        self.pool.ready.clear()
        for actor in sorted(self._alive - {self._inference}):
            self._tell_to_stop(actor, kind, body)
        for actor in sorted(self._silent):  # Nobody waits for them; they end when they hear of it.
            self._tell_to_stop(actor, kind, body)
            self._outbox.forget(actor)
        backoff, failure = Backoff(timeout_s), None
        while True:
            try:
                self.pump()
            except TransportError as error:
                failure = error  # Whoever sent nonsense must not keep the others from an orderly end.
            if self._inference is not None and self._alive == {self._inference}:
                self._tell_to_stop(self._inference, kind, body)  # It answers as long as somebody may ask.
            # An actor's goodbye is taken after all that it sent; what others have under way may never arrive.
            if not self._alive and self._outbox.is_empty:
                break
            if not backoff.pause():
                break
        if failure is not None:
            raise failure
        return frozenset(self._alive)

    def pump(self) -> None:
        """Matches what has arrived, hands on what is complete, and moves sends along. Never waits."""
        try:
            while (incoming := self._endpoint.probe(self._endpoint.any_source, self._wanted_tag())) is not None:
                self._match(incoming)
            for actor in self._silent.keys() & self._invited:
                # Its late unrolls are dropped, so that they need no room, and it starts anew once they are taken.
                while (incoming := self._endpoint.probe(self._ranks[actor], TAG_UNROLL)) is not None:
                    self._match(incoming)
        except PeerFailed:
            self._forget_dead()
        if self._receipts:
            self._finish_receipts()
        self._advance_sends()
        if self._options.silence_s is not None:
            self._watch(self._options.silence_s)
        if self._inference is not None and self._inference not in self._alive and not self.stopping:
            how = "gives no sign of life" if self._inference in self._silent else "is gone"
            raise TransportError(f"the inference rank {how}, and actors cannot act without it; resume the run")

    def _set_alive(self, actor: int, is_alive: bool) -> None:
        (self._alive.add if is_alive else self._alive.discard)(actor)
        self._alive_actors = None

    def _watch(self, silence_s: float) -> None:
        """Fences silent actors off. Time in which this process itself did not listen is nobody's silence."""
        if time.monotonic() < self._look_s or self.stopping:
            return
        self._look_s = time.monotonic() + _LISTENS_S
        self._clock.look()
        for actor in self._relays.relays:
            if self._clock.s - self._heard_s.get(actor, self._clock.s) > _RELAY_SILENCE * silence_s:
                self._relays.leave(actor)  # Others would wait for it.
        for actor, heard_s in self._heard_s.items():
            silent_s = self._clock.s - heard_s
            if actor in self._alive and silent_s < _RELAY_SILENCE * silence_s:
                self._relays.come_back(actor)
            if actor in self._alive and silent_s > silence_s:
                self._set_alive(actor, False)
                self._fences += 1
                self._silent[actor] = self._fences
                self._invited.discard(actor)
                self._outbox.forget(actor)
            elif actor in self._silent and silent_s > max(self._options.lost_s, silence_s):
                self._lose(actor)

    def _hear_silent(self, actor: int, kind: str, body: Json) -> None:
        """A fenced actor starts anew before it is listened to: its messages in between are late ones."""
        fence = self._silent[actor]
        if kind == "rejoined" and body.get("fence") == fence:
            del self._silent[actor]
            self._set_alive(actor, True)
            if self._inference is None:
                self._outbox.board.remember(actor)
                self._relays.come_back(actor)
        elif kind == "goodbye":
            self._lose(actor)
            self._tell_to_stop(actor, "stop", {})
        elif kind == "beat" and actor not in self._invited:
            self._invited.add(actor)
            self._outbox.post(actor, "rejoin", {"fence": fence})

    def _lose(self, actor: int) -> None:
        del self._silent[actor]
        self._dead.add(actor)
        self._lost.add(actor)

    def _wanted_tag(self) -> int:
        """Anything while there is room for an unroll; otherwise messages only, which leaves unrolls at the actors."""
        if self.stopping:
            has_room = len(self._receipts) < 2 * len(self._actor_of)
        else:
            # What a silent actor has under way may never arrive, and must not keep the others out.
            coming = sum(tag == TAG_UNROLL and actor in self._alive for actor, tag, *_ in self._receipts)
            taken_ahead = coming + len(self.pool.ready)
            has_room = self.pool.unroll_bytes > 0 and taken_ahead < self._options.prefetch
        return self._endpoint.any_tag if has_room else TAG_MESSAGE

    def _match(self, incoming: MpiIncoming) -> None:
        actor = self._actor_of.get(incoming.source)
        if actor is None and self.others is not None:
            self.others(incoming)
            return
        if actor is None:
            raise TransportError(f"rank {incoming.source} is none of this learner's actors, but sent it a message")
        self._heard_s[actor] = self._clock.s
        # Even what is refused later is received first: its sender waits for that.
        pooled = incoming.tag == TAG_UNROLL and incoming.nbytes == self.pool.unroll_bytes
        buffer = self.pool.take() if pooled else np.empty(incoming.nbytes, np.uint8)
        self._receipts.append((actor, incoming.tag, incoming.receive(buffer), buffer))

    def _finish_receipts(self) -> None:
        """Takes what is complete, in the order in which each actor sent it."""
        busy, found_dead = set[int](), False
        refusal: TransportError | None = None
        for _ in range(len(self._receipts)):
            actor, tag, request, buffer = receipt = self._receipts.popleft()
            try:
                if actor in busy or not self._endpoint.is_done(request):
                    busy.add(actor)
                    self._receipts.append(receipt)
                else:
                    self._take(actor, tag, buffer)
            except PeerFailed:
                self.pool.put_back(buffer)
                found_dead = True
            except TransportError as error:
                refusal = refusal or error
        if found_dead:
            self._forget_dead()
        if refusal is not None:
            raise refusal

    def _take(self, actor: int, tag: int, buffer: Bytes) -> None:
        if actor in self._silent and tag == TAG_MESSAGE:
            self._hear_silent(actor, *decode_message(buffer.data))
        elif actor in self._silent or actor in self._lost:
            self.pool.put_back(buffer)
        elif tag == TAG_MESSAGE and buffer.nbytes <= MAX_MESSAGE_BYTES:
            self._take_message(actor, *decode_message(buffer.data))
        elif tag != TAG_UNROLL:
            raise TransportError(f"actor {actor} sent a foreign message (tag {tag}, {buffer.nbytes} bytes)")
        elif self.stopping:
            self.pool.put_back(buffer)
        elif buffer.nbytes != self.pool.unroll_bytes:
            sizes = f"{buffer.nbytes} bytes, not {self.pool.unroll_bytes}"
            raise TransportError(f"actor {actor} sent an unroll of {sizes}; the two ends were configured differently")
        else:
            self.pool.ready.append(Arrival(actor, buffer))

    def _take_message(self, actor: int, kind: str, body: Json) -> None:
        if kind == "goodbye":
            self._set_alive(actor, False)
            self._tell_to_stop(actor, "stop", {})
        elif actor == self._inference and kind == "report" and "error" in body:
            raise TransportError(f"the inference rank failed: {body['error']}")
        elif kind == "cannot-follow":
            self._relays.refuse(actor)
        elif kind in ("hello", "report"):
            if kind == "hello":
                if self._inference is None:
                    self._relays.join(actor, Place.of(body.get("place")))
                message = body.get("message")
                body = message if isinstance(message, dict) else {}
            if len(self._inbox) >= _INBOX_LIMIT:
                raise TransportError(f"{_INBOX_LIMIT} messages from actors are unread; call messages() now and then")
            self._inbox.append((actor, body))
        elif kind != "beat":
            raise TransportError(f"actor {actor} sent an unknown kind of message: {kind}")

    def _tell_to_stop(self, actor: int, kind: str, body: Json) -> None:
        """The last message that an actor gets."""
        if actor not in self._told_to_stop:
            self._told_to_stop.add(actor)
            self._relays.leave(actor)
            self._outbox.board.forget(actor)
            self._outbox.post(actor, kind, body)

    def _advance_sends(self) -> None:
        if self._outbox.advance():
            self._forget_dead()

    def _forget_dead(self) -> None:
        """Forgets the actors that have died: nothing waits for them any more."""
        for rank in self._endpoint.failed_ranks():
            actor = self._actor_of.get(rank)
            if actor is None or not (actor in self._alive or actor in self._silent):
                continue
            self._set_alive(actor, False)
            self._silent.pop(actor, None)
            self._dead.add(actor)
            self._outbox.forget(actor)


class _Outbox:
    """The learner's sends under way: messages, and for each rank one policy at a time. Never waits.

    ``board`` decides which policy a rank gets, and ``relays`` for whom else. What a call costs depends on what has
    changed, not on how many ranks there are: sends under way are looked at ``_LOOKS`` at a time, in turns.
    """

    def __init__(self, endpoint: MpiEndpoint, ranks: tuple[int, ...]) -> None:
        self.board = PolicyBoard(len(ranks))
        self.relays = Relays(self.board, self.post)
        self._endpoint = endpoint
        self._ranks = ranks
        self._under_way: deque[tuple[int, bool, Request]] = deque()
        self._busy: set[int] = set()
        self._abandoned: list[Request] = []
        self._found_dead = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def post(self, actor: int, kind: str, body: Json) -> None:
        """Starts sending a message; ``advance`` reports it if the actor is dead."""
        self._send(actor, encode_message(kind, body), TAG_MESSAGE)

    def advance(self) -> bool:
        """Forgets what is complete and starts the policies whose turn has come. Whether a receiver was found dead."""
        if self._under_way:
            for actor in self._completed():
                self._busy.discard(actor)
                self._offer(actor)
        news, self.board.news = self.board.news, {}
        for actor in news:
            self._offer(actor)
        found, self._found_dead = self._found_dead, False
        return found

    def forget(self, actor: int) -> None:
        """Stops waiting for a dead actor. MPI may still look at the buffers, which the requests keep alive."""
        self.relays.leave(actor)
        self.board.forget(actor)
        self._abandoned += [send for receiver, _, send in self._under_way if receiver == actor]
        self._under_way = deque(entry for entry in self._under_way if entry[0] != actor)
        self._busy.discard(actor)

    def _completed(self) -> list[int]:
        """Whose policies have been taken, among those looked at."""
        looked_at = [self._under_way.popleft() for _ in range(min(len(self._under_way), _LOOKS))]
        places, found_dead = self._endpoint.over([send for _, _, send in looked_at])
        self._found_dead |= found_dead
        over = set(places)
        self._under_way.extend(entry for place, entry in enumerate(looked_at) if place not in over)
        return [looked_at[place][0] for place in sorted(over) if looked_at[place][1]]

    def _offer(self, actor: int) -> None:
        if actor in self._busy:
            return
        for relays in self.board.waits_for(actor):
            if (update := self.board.offer(actor, relays=relays)) is not None:
                self._send(actor, self.board.frame(update), TAG_RELAY if relays else TAG_POLICY)
                return

    def _send(self, actor: int, encoded: bytes, tag: int) -> None:
        try:
            send = self._endpoint.send(encoded, self._ranks[actor], tag)
        except PeerFailed:
            self._found_dead = True
            return
        self._under_way.append((actor, tag != TAG_MESSAGE, send))
        if tag != TAG_MESSAGE:
            self._busy.add(actor)
