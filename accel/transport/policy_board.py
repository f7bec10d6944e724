"""Who gets which policy next: the newest of every scheme, the scheme of every actor, and who waits for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate
from accel.transport.wire import encode_policy


@dataclass(eq=False)
class _Content:
    """A payload as last published under one scheme; the object's identity says whether the payload is the same."""

    payload: bytes
    publication: int


@dataclass
class PolicyBoard:
    """The newest policy of every scheme, the scheme of every actor, and who still waits for which.

    ``offer`` answers with the newest policy only, so what is replaced before it is sent is never sent. An actor gets
    its own policy, or leaves that to a relay, which gets one copy of every scheme that somebody leaves to it. What a
    publication costs depends on those who are sent something, not on those who follow a relay.
    """

    actors: int
    version: int = -1
    publication: int = 0
    _assigned: dict[int, str] = field(default_factory=dict)
    _assigned_to: Counter[str] = field(default_factory=Counter)
    _contents: dict[str, _Content] = field(default_factory=dict)
    _default: str | None = None
    _direct: dict[int, None] = field(default_factory=dict)
    _relay_of: dict[int, int] = field(default_factory=dict)
    _carried: dict[int, Counter[str | None]] = field(default_factory=dict)
    _sent: dict[tuple[int, str | None], tuple[int, _Content]] = field(default_factory=dict)
    _sent_scheme: dict[int, str] = field(default_factory=dict)
    _waiting: dict[int, dict[str | None, None]] = field(default_factory=dict)
    _news: dict[int, None] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _frames: dict[tuple[str, bool], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._direct = dict.fromkeys(range(self.actors))

    def publish(self, version: int, policies: Mapping[str, bytes]) -> None:
        """Makes ``policies`` the newest for every actor. Raises TransportError: one missing, version going down."""
        if not policies:
            raise TransportError("publish() needs the policy of at least one scheme")
        if version < self.version:
            raise TransportError(f"policy version {version} is older than the published {self.version}")
        missing = sorted(scheme for scheme in self._assigned_to if scheme not in policies)
        if missing:
            raise TransportError(
                f"publish() lacks {', '.join(missing)}, assigned to actors; it got {', '.join(policies)}"
            )
        self.version = version
        self.publication += 1
        self._contents = {scheme: self._content(scheme, payload) for scheme, payload in policies.items()}
        self._default = next(iter(policies))
        self._frames.clear()
        for actor in self._direct:
            self._wait(actor, None)
        for relay in self._carried:
            for scheme in self._schemes_of(relay):
                self._wait(relay, scheme)

    def assign(self, actor: int, scheme: str) -> None:
        """Gives ``actor`` another scheme, with the next offer or, if it is not published yet, the next ``publish``."""
        if not 0 <= actor < self.actors:
            raise TransportError(f"there is no actor {actor}, only 0 … {self.actors - 1}")
        if actor in self._gone or self._assigned.get(actor) == scheme:
            return
        relay = self._relay_of.get(actor)
        if relay is not None:
            self._leave(actor, relay)
        self._unassign(actor)
        self._assigned[actor] = scheme
        self._assigned_to[scheme] += 1
        if relay is not None:
            self._join(actor, relay)
        elif scheme in self._contents and self._sent_scheme.get(actor, scheme) != scheme:
            self._wait(actor, None)

    def assigned(self, actor: int) -> str | None:
        """The actor's own scheme; None: it gets the first of what is published."""
        return self._assigned.get(actor)

    def forget(self, actor: int) -> None:
        """Drops an actor that is gone: it is offered nothing, and its scheme need not be published any more.

        Those who followed it are offered the newest policy themselves.
        """
        if actor in self._gone:
            return
        self.dissolve(actor)
        if (relay := self._relay_of.pop(actor, None)) is not None:
            self._leave(actor, relay)
        self._gone.add(actor)
        self._unassign(actor)
        self._direct.pop(actor, None)
        self._waiting.pop(actor, None)
        for key in [key for key in self._sent if key[0] == actor]:
            del self._sent[key]

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
        self._stop_waiting(actor, None)
        self._sent.pop((actor, None), None)
        self._relay_of[actor] = relay
        self._join(actor, relay)

    def unfollow(self, actor: int) -> None:
        """Offers an actor its own policies again, the newest one whole."""
        if (relay := self._relay_of.pop(actor, None)) is not None:
            self._leave(actor, relay)
            self._serve(actor)

    def dissolve(self, relay: int) -> None:
        """All who follow a relay are offered their own policies again; what it relayed is forgotten."""
        if relay in self._carried:
            for actor in [actor for actor, other in self._relay_of.items() if other == relay]:
                self.unfollow(actor)
        for key in [key for key in self._sent if key[0] == relay and key[1] is not None]:
            del self._sent[key]

    def take_news(self) -> tuple[int, ...]:
        """Receivers that wait for something new since the last call."""
        news, self._news = tuple(self._news), {}
        return news

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._waiting

    def has_offer(self, actor: int) -> bool:
        """Whether ``offer`` would answer for an actor's own policy."""
        return None in self._waiting.get(actor, ()) and self._assigned.get(actor, self._default) in self._contents

    def waits_for(self, actor: int) -> Iterator[str | None]:
        """What a receiver waits for, longest first: its own policy (None), and schemes that it relays."""
        return iter(tuple(self._waiting.get(actor, ())))

    def offer(self, actor: int, relayed: str | None = None) -> PolicyUpdate | None:
        """What ``actor`` should be sent now, counted as sent; None when it has the newest.

        Args:
            relayed: a scheme that it relays; None: its own policy.
        """
        scheme = self._assigned.get(actor, self._default) if relayed is None else relayed
        if relayed not in self._waiting.get(actor, ()) or scheme is None or scheme not in self._contents:
            return None
        self._stop_waiting(actor, relayed)
        content = self._contents[scheme]
        known = self._sent.get((actor, relayed), (0, None))[1] is content
        self._sent[actor, relayed] = self.publication, content
        if relayed is None:
            self._sent_scheme[actor] = scheme
        payload = None if known else content.payload
        return PolicyUpdate(self.version, scheme, payload, self.publication, content.publication)

    def frame(self, update: PolicyUpdate) -> bytes:
        """The message for an update just offered, built once for all that get the same."""
        key = (update.scheme, update.payload is None)
        if key not in self._frames:
            is_default = update.scheme == self._default
            self._frames[key] = encode_policy(update, is_default)
        return self._frames[key]

    def _serve(self, actor: int) -> None:
        self._direct[actor] = None
        if self._contents:
            self._wait(actor, None)

    def _join(self, actor: int, relay: int) -> None:
        """Has a relay carry an actor's scheme, which it is offered unless it has the newest."""
        scheme = self._assigned.get(actor)
        self._carried.setdefault(relay, Counter())[scheme] += 1
        name = self._default if scheme is None else scheme
        if name in self._contents and self._sent.get((relay, name), (0, None))[0] != self.publication:
            self._wait(relay, name)

    def _leave(self, actor: int, relay: int) -> None:
        carried, scheme = self._carried[relay], self._assigned.get(actor)
        carried[scheme] -= 1
        if not carried[scheme]:
            del carried[scheme]
        if not carried:
            del self._carried[relay]
        for name in set(self._waiting.get(relay, ())) - self._schemes_of(relay) - {None}:
            self._stop_waiting(relay, name)

    def _schemes_of(self, relay: int) -> set[str | None]:
        return {self._default if scheme is None else scheme for scheme in self._carried.get(relay, ())}

    def _wait(self, actor: int, relayed: str | None) -> None:
        self._waiting.setdefault(actor, {})[relayed] = None
        self._news[actor] = None

    def _stop_waiting(self, actor: int, relayed: str | None) -> None:
        waiting = self._waiting.get(actor, {})
        waiting.pop(relayed, None)
        if not waiting:
            self._waiting.pop(actor, None)

    def _unassign(self, actor: int) -> None:
        if (scheme := self._assigned.pop(actor, None)) is not None:
            self._assigned_to[scheme] -= 1
            if not self._assigned_to[scheme]:
                del self._assigned_to[scheme]

    def _content(self, scheme: str, payload: bytes) -> _Content:
        # Comparing beats hashing: it ends at the first byte that differs, and cannot collide.
        last = self._contents.get(scheme)
        return last if last is not None and last.payload == payload else _Content(payload, self.publication)
