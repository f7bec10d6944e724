"""Tags and formats of what travels between ranks, and the bytes of messages: control (JSON) and policies."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import cast

from accel.errors import TransportError
from accel.json_object import Json
from accel.transport.base import PolicyUpdate

WIRE_FORMAT = 5
MAX_MESSAGE_BYTES = 1 << 20

# Away from the small numbers that other code on the same communicator tends to use.
TAG_UNROLL = 2101
TAG_MESSAGE = 2102
TAG_POLICY = 2103
TAG_ROLE = 2104
TAG_LEARNER = 2105
TAG_QUESTION = 2106
TAG_ANSWER = 2107
TAG_GRADIENTS = 2108
TAG_RELAY = 2109

_POLICY_HEADER = struct.Struct("<4sBxxxqqqQ")
_POLICY_MAGIC = b"ACPO"


def encode_message(kind: str, body: Json) -> bytes:
    """JSON (UTF-8) of one control message. Raises TransportError when it is too long or not JSON."""
    try:
        encoded = json.dumps({"kind": kind, "body": body}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise TransportError(f"a {kind} message must be plain JSON: {error}") from error
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise TransportError(f"a {kind} message of {len(encoded)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    return encoded


def decode_message(buffer: bytes | memoryview) -> tuple[str, Json]:
    """(kind, body) of ``encode_message``. Raises TransportError for anything else."""
    try:
        value = json.loads(bytes(buffer))
        kind, body = value["kind"], value["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise TransportError(
            f"a foreign control message arrived; do all ranks run the same version? {error}"
        ) from error
    if not isinstance(kind, str) or not isinstance(body, dict):
        raise TransportError("a foreign control message arrived; do all ranks run the same version?")
    return kind, cast(Json, body)


def encode_policy(update: PolicyUpdate) -> bytes:
    """One policy message; without a payload a version notice."""
    payload = update.payload
    numbers = (update.publication, update.content, update.version, len(payload or b""))
    return b"".join((_POLICY_HEADER.pack(_POLICY_MAGIC, payload is not None, *numbers), payload or b""))


def decode_policy(frame: memoryview) -> tuple[PolicyUpdate, memoryview | None]:
    """(update without its payload, the payload within the frame).

    Raises TransportError for anything that is not ``encode_policy``'s.
    """
    if len(frame) < _POLICY_HEADER.size:
        raise TransportError(f"a policy message of {len(frame)} bytes is too short")
    magic, has_payload, publication, content, version, payload_bytes = _POLICY_HEADER.unpack_from(frame)
    if magic != _POLICY_MAGIC or len(frame) != _POLICY_HEADER.size + payload_bytes:
        raise TransportError("a foreign or damaged policy message arrived; do all ranks run the same version?")
    payload = frame[_POLICY_HEADER.size :] if has_payload else None
    return PolicyUpdate(version, None, publication, content), payload


def check_formats(learner: Mapping[str, object], actor: Mapping[str, object]) -> None:
    """Raises TransportError, naming both versions, unless both ends speak the same formats."""
    for name in sorted({*learner, *actor}):
        if learner.get(name) != actor.get(name):
            raise TransportError(
                f"{name} format: the learner has version {learner.get(name)}, the actor {actor.get(name)}; "
                "install the same accel on every host"
            )
