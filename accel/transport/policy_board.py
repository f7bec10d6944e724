"""The newest policy, who still waits for it, and who leaves that to a relay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate
from accel.transport.wire import encode_policy

Stream: TypeAlias = tuple[int, bool]
"""An actor's own policies (False), or those that it relays (True)."""


@dataclass
class PolicyBoard:
    """The newest policy, and who waits for it.

    ``offer`` answers with the newest policy only, so what is replaced before it is sent is never sent. An actor gets
    its own policy, or leaves that to a relay, which gets one copy for all that do. What a publication costs depends on
    those who are sent something, not on those who follow a relay.

    Attributes:
        news: receivers that wait for something new, until somebody takes them out.
    """

    actors: int
    version: int = -1
    publication: int = 0
    _payload: bytes | None = None
    _content: int = 0  # the publication that brought the payload
    _sent: dict[Stream, int] = field(default_factory=dict)  # every stream there is; the last publication, 0: none
    _relay_of: dict[int, int] = field(default_factory=dict)
    news: dict[int, None] = field(default_factory=dict)
    _frames: dict[bool, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sent = {(actor, False): 0 for actor in range(self.actors)}

    def publish(self, version: int, payload: bytes) -> None:
        """Makes ``payload`` the newest for every actor. Raises TransportError: the version goes down."""
        if version < self.version:
            raise TransportError(f"policy version {version} is older than the published {self.version}")
        self.version = version
        self.publication += 1
        if payload != self._payload:  # Comparing beats hashing: it ends at the first byte that differs.
            self._payload, self._content = payload, self.publication
        self._frames.clear()
        self.news |= dict.fromkeys(actor for actor, _ in self._sent)

    def forget(self, actor: int) -> None:
        """Drops an actor that is gone: it is offered nothing. Those who followed it are offered the newest policy."""
        self.dissolve(actor)
        self.unfollow(actor)
        self._sent.pop((actor, False), None)

    def remember(self, actor: int) -> None:
        """Takes an actor back that was forgotten; it is offered the newest policy."""
        self._open((actor, False))

    def follow(self, actor: int, relay: int) -> None:
        """Leaves an actor's policies to a relay, which may be the actor itself."""
        if self._is_gone(actor) or self._is_gone(relay) or self._relay_of.get(actor) == relay:
            return
        self.unfollow(actor)
        del self._sent[actor, False]
        self._relay_of[actor] = relay
        if (relay, True) not in self._sent:
            self._open((relay, True))

    def unfollow(self, actor: int) -> None:
        """Offers an actor its own policies again, the newest one whole."""
        if (relay := self._relay_of.pop(actor, None)) is not None:
            self._open((actor, False))
            if relay not in self._relay_of.values():
                del self._sent[relay, True]

    def dissolve(self, relay: int) -> None:
        """All who follow a relay are offered their own policies again; what it relayed is forgotten."""
        for actor in [actor for actor, other in self._relay_of.items() if other == relay]:
            self.unfollow(actor)

    def has_offer(self, actor: int) -> bool:
        """Whether ``offer`` would answer for an actor's own policy."""
        return self._sent.get((actor, False), self.publication) < self.publication

    def waits_for(self, actor: int) -> list[bool]:
        """What a receiver waits for, longest first: its own policy (False), and the one that it relays (True)."""
        sent = {relays: self._sent.get((actor, relays), self.publication) for relays in (False, True)}
        return sorted((relays for relays, last in sent.items() if last < self.publication), key=sent.__getitem__)

    def offer(self, actor: int, *, relays: bool = False) -> PolicyUpdate | None:
        """What ``actor`` should be sent now, counted as sent; None when it has the newest.

        Args:
            relays: for those who follow it; otherwise its own policy.
        """
        last = self._sent.get((actor, relays), self.publication)
        if last == self.publication:
            return None
        self._sent[actor, relays] = self.publication
        payload = None if last >= self._content else self._payload
        return PolicyUpdate(self.version, payload, self.publication, self._content)

    def frame(self, update: PolicyUpdate) -> bytes:
        """The message for an update just offered, built once for all that get the same."""
        is_whole = update.payload is not None
        if is_whole not in self._frames:
            self._frames[is_whole] = encode_policy(update)
        return self._frames[is_whole]

    def _is_gone(self, actor: int) -> bool:
        return actor not in self._relay_of and (actor, False) not in self._sent

    def _open(self, stream: Stream) -> None:
        """Begin a stream, with the newest policy whole."""
        self._sent[stream] = 0
        if self.publication:
            self.news[stream[0]] = None
