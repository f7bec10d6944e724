"""Which policy each actor should have, what it was sent last, and the bytes of a policy message. For all transports."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate

_POLICY_HEADER = struct.Struct("<4sBxHqQ")
_POLICY_MAGIC = b"ACPO"
_HAS_PAYLOAD = 1


@dataclass(eq=False)
class _Content:
    """A payload as last published under one scheme; the object's identity says whether the payload is the same."""

    payload: bytes


@dataclass
class PolicyBoard:
    """The newest policy of every scheme, the scheme of every actor, and who still waits for which.

    ``offer`` answers with the newest policy only, so what is replaced before it is sent is never sent.
    """

    actors: int
    version: int = -1
    _assigned: dict[int, str] = field(default_factory=dict)
    _contents: dict[str, _Content] = field(default_factory=dict)
    _default: str | None = None
    _sent_content: dict[int, _Content] = field(default_factory=dict)
    _sent_scheme: dict[int, str] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)
    _gone: set[int] = field(default_factory=set)
    _frames: dict[tuple[str, bool], bytes] = field(default_factory=dict)

    def publish(self, version: int, policies: Mapping[str, bytes]) -> None:
        """Makes ``policies`` the newest for every actor. Raises TransportError: one missing, version going down."""
        if not policies:
            raise TransportError("publish() needs the policy of at least one scheme")
        if version < self.version:
            raise TransportError(f"policy version {version} is older than the published {self.version}")
        missing = sorted({scheme for scheme in self._assigned.values() if scheme not in policies})
        if missing:
            raise TransportError(
                f"publish() lacks {', '.join(missing)}, assigned to actors; it got {', '.join(policies)}"
            )
        self._contents = {scheme: self._content(scheme, payload) for scheme, payload in policies.items()}
        self._default = next(iter(policies))
        self.version = version
        self._frames.clear()
        self._waiting = set(range(self.actors)) - self._gone

    def assign(self, actor: int, scheme: str) -> None:
        """Gives ``actor`` another scheme, with the next offer or, if it is not published yet, the next ``publish``."""
        if not 0 <= actor < self.actors:
            raise TransportError(f"there is no actor {actor}, only 0 … {self.actors - 1}")
        if actor in self._gone or self._assigned.get(actor) == scheme:
            return
        self._assigned[actor] = scheme
        if scheme in self._contents and self._sent_scheme.get(actor, scheme) != scheme:
            self._waiting.add(actor)

    def forget(self, actor: int) -> None:
        """Drops an actor that is gone: it is offered nothing, and its scheme need not be published any more."""
        self._gone.add(actor)
        self._assigned.pop(actor, None)
        self._sent_content.pop(actor, None)
        self._waiting.discard(actor)

    def remember(self, actor: int) -> None:
        """Takes an actor back that was forgotten; it is offered the newest policy."""
        self._gone.discard(actor)
        if self._contents:
            self._waiting.add(actor)

    def waiting(self) -> Iterator[int]:
        """Actors with something newer to get; a snapshot."""
        return iter(tuple(self._waiting))

    @property
    def is_idle(self) -> bool:
        """Whether no actor waits for anything."""
        return not self._waiting

    def has_offer(self, actor: int) -> bool:
        """Whether ``offer`` would answer."""
        return actor in self._waiting and self._assigned.get(actor, self._default) in self._contents

    def offer(self, actor: int) -> PolicyUpdate | None:
        """What ``actor`` should be sent now, counted as sent; None when it has the newest."""
        scheme = self._assigned.get(actor, self._default)
        if actor not in self._waiting or scheme is None or scheme not in self._contents:
            return None
        content = self._contents[scheme]
        self._waiting.discard(actor)
        known = self._sent_content.get(actor) is content
        self._sent_content[actor] = content
        self._sent_scheme[actor] = scheme
        return PolicyUpdate(self.version, scheme, None if known else content.payload)

    def frame(self, update: PolicyUpdate) -> bytes:
        """The message for an update just offered, built once for all actors that get the same."""
        key = (update.scheme, update.payload is None)
        if key not in self._frames:
            self._frames[key] = encode_policy(update.version, update.scheme, update.payload)
        return self._frames[key]

    def _content(self, scheme: str, payload: bytes) -> _Content:
        # Comparing beats hashing: it ends at the first byte that differs, and cannot collide.
        last = self._contents.get(scheme)
        return last if last is not None and last.payload == payload else _Content(payload)


def encode_policy(version: int, scheme: str, payload: bytes | None) -> bytes:
    """One policy message; without ``payload`` a version notice."""
    name = scheme.encode()
    header = _POLICY_HEADER.pack(
        _POLICY_MAGIC, 0 if payload is None else _HAS_PAYLOAD, len(name), version, len(payload or b"")
    )
    return b"".join((header, name, payload or b""))


def decode_policy(frame: memoryview) -> PolicyUpdate:
    """Inverse of ``encode_policy``. Raises TransportError for anything else."""
    if len(frame) < _POLICY_HEADER.size:
        raise TransportError(f"a policy message of {len(frame)} bytes is too short")
    magic, flags, name_bytes, version, payload_bytes = _POLICY_HEADER.unpack_from(frame)
    start = _POLICY_HEADER.size + name_bytes
    if magic != _POLICY_MAGIC or len(frame) != start + payload_bytes:
        raise TransportError("a foreign or damaged policy message arrived; do all ranks run the same version?")
    scheme = bytes(frame[_POLICY_HEADER.size : start]).decode(errors="replace")
    return PolicyUpdate(version, scheme, bytes(frame[start:]) if flags & _HAS_PAYLOAD else None)
