"""The newest policy, who still waits for it, and who leaves that to a relay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate
from accel.transport.wire import encode_policy


@dataclass
class PolicyBoard:
    """The newest policy, and who waits for it.

    ``offer`` answers with the newest policy only, so what is replaced before it is sent is never sent. An actor gets
    its own policy, or leaves that to a relay, which gets one copy for all that do. What a publication costs depends on
    those who are sent something, not on those who follow a relay.
    """

    actors: int
    version: int = -1
    publication: int = 0
    _payload: bytes | None = None
    _content: int = 0  # the publication that brought the payload
    _direct: dict[int, None] = field(default_factory=dict)
    _relay_of: dict[int, int] = field(default_factory=dict)
    _followers: Counter[int] = field(default_factory=Counter)
    _sent: dict[tuple[int, bool], int] = field(default_factory=dict)
    _waiting: dict[int, dict[bool, None]] = field(default_factory=dict)
    _news: dict[int, None] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _frames: dict[bool, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._direct = dict.fromkeys(range(self.actors))

    def publish(self, version: int, payload: bytes) -> None:
        """Makes ``payload`` the newest for every actor. Raises TransportError: the version goes down."""
        if version < self.version:
            raise TransportError(f"policy version {version} is older than the published {self.version}")
        self.version = version
        self.publication += 1
        if payload != self._payload:  # Comparing beats hashing: it ends at the first byte that differs.
            self._payload, self._content = payload, self.publication
        self._frames.clear()
        for actor in self._direct:
            self._wait(actor, relays=False)
        for relay in self._followers:
            self._wait(relay, relays=True)

    def forget(self, actor: int) -> None:
        """Drops an actor that is gone: it is offered nothing. Those who followed it are offered the newest policy."""
        if actor in self._gone:
            return
        self.dissolve(actor)
        if (relay := self._relay_of.pop(actor, None)) is not None:
            self._leave(relay)
        self._gone.add(actor)
        self._direct.pop(actor, None)
        self._waiting.pop(actor, None)
        for relays in (False, True):
            self._sent.pop((actor, relays), None)

    def remember(self, actor: int) -> None:
        """Takes an actor back that was forgotten; it is offered the newest policy."""
        self._gone.discard(actor)
        self._serve(actor)

    def follow(self, actor: int, relay: int) -> None:
        """Leaves an actor's policies to a relay, which may be the actor itself."""
        if actor in self._gone or relay in self._gone or self._relay_of.get(actor) == relay:
            return
        self.unfollow(actor)
        self._direct.pop(actor, None)
        self._stop_waiting(actor, relays=False)
        self._sent.pop((actor, False), None)
        self._relay_of[actor] = relay
        self._followers[relay] += 1
        if self._payload is not None and self._sent.get((relay, True)) != self.publication:
            self._wait(relay, relays=True)

    def unfollow(self, actor: int) -> None:
        """Offers an actor its own policies again, the newest one whole."""
        if (relay := self._relay_of.pop(actor, None)) is not None:
            self._leave(relay)
            self._serve(actor)

    def dissolve(self, relay: int) -> None:
        """All who follow a relay are offered their own policies again; what it relayed is forgotten."""
        if relay in self._followers:
            for actor in [actor for actor, other in self._relay_of.items() if other == relay]:
                self.unfollow(actor)
        self._sent.pop((relay, True), None)

    def take_news(self) -> tuple[int, ...]:
        """Receivers that wait for something new since the last call."""
        news, self._news = tuple(self._news), {}
        return news

    def has_offer(self, actor: int) -> bool:
        """Whether ``offer`` would answer for an actor's own policy."""
        return False in self._waiting.get(actor, ())

    def waits_for(self, actor: int) -> Iterator[bool]:
        """What a receiver waits for, longest first: its own policy (False), and the one that it relays (True)."""
        return iter(tuple(self._waiting.get(actor, ())))

    def offer(self, actor: int, *, relays: bool = False) -> PolicyUpdate | None:
        """What ``actor`` should be sent now, counted as sent; None when it has the newest.

        Args:
            relays: for those who follow it; otherwise its own policy.
        """
        if relays not in self._waiting.get(actor, ()):
            return None
        self._stop_waiting(actor, relays=relays)
        is_known = self._sent.get((actor, relays), -1) >= self._content
        self._sent[actor, relays] = self.publication
        return PolicyUpdate(self.version, None if is_known else self._payload, self.publication, self._content)

    def frame(self, update: PolicyUpdate) -> bytes:
        """The message for an update just offered, built once for all that get the same."""
        is_whole = update.payload is not None
        if is_whole not in self._frames:
            self._frames[is_whole] = encode_policy(update)
        return self._frames[is_whole]

    def _serve(self, actor: int) -> None:
        self._direct[actor] = None
        if self._payload is not None:
            self._wait(actor, relays=False)

    def _leave(self, relay: int) -> None:
        self._followers[relay] -= 1
        if not self._followers[relay]:
            del self._followers[relay]
            self._stop_waiting(relay, relays=True)

    def _wait(self, actor: int, *, relays: bool) -> None:
        self._waiting.setdefault(actor, {})[relays] = None
        self._news[actor] = None

    def _stop_waiting(self, actor: int, *, relays: bool) -> None:
        waiting = self._waiting.get(actor, {})
        waiting.pop(relays, None)
        if not waiting:
            self._waiting.pop(actor, None)
