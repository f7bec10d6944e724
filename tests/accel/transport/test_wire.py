"""Messages and policies as bytes: round trips, and every damage a named error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate
from accel.transport.wire import (
    MAX_MESSAGE_BYTES,
    check_formats,
    decode_message,
    decode_policy,
    encode_message,
    encode_policy,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.text(), st.dictionaries(st.text(), json_values, max_size=4))
def test_message_round_trip(kind: str, body: dict[str, object]) -> None:
    assert decode_message(encode_message(kind, body)) == (kind, body)


numbers = st.integers(-(2**63), 2**63 - 1)
updates = st.builds(PolicyUpdate, numbers, st.none() | st.binary(max_size=300), numbers, numbers)


@given(updates)
def test_policy_round_trip(update: PolicyUpdate) -> None:
    frame = memoryview(encode_policy(update))
    about, payload = decode_policy(frame)
    assert about == replace(update, payload=None)
    assert (None if payload is None else bytes(payload)) == update.payload


@given(st.binary(max_size=80))
def test_foreign_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(TransportError, match="policy message"):
        decode_policy(memoryview(junk))


@given(st.integers(0, 49))
def test_cut_policy_is_refused(length: int) -> None:
    with pytest.raises(TransportError, match="policy message"):
        decode_policy(memoryview(encode_policy(PolicyUpdate(1, b"0123456789"))[:length]))


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b"{}", b'{"kind": 1, "body": {}}', b'{"kind": "x", "body": 3}', b"\xff"]
)
def test_foreign_messages_are_refused(junk: bytes) -> None:
    with pytest.raises(TransportError, match="foreign control message"):
        decode_message(junk)


@pytest.mark.parametrize("body", [{"a": object()}, {"a": float("nan")}, {"a": b"bytes"}])
def test_only_json_travels(body: dict[str, object]) -> None:
    with pytest.raises(TransportError, match="plain JSON"):
        encode_message("report", body)


def test_messages_are_small() -> None:
    with pytest.raises(TransportError, match="over the limit"):
        encode_message("report", {"text": "x" * MAX_MESSAGE_BYTES})


@pytest.mark.parametrize(
    ("theirs", "named"),
    [({"unroll": 2}, ("unroll", "1", "2")), ({}, ("unroll", "1", "None")), ({"unroll": 1, "x": 5}, ("x", "None", "5"))],
)
def test_formats(theirs: dict[str, object], named: tuple[str, ...]) -> None:
    check_formats({"unroll": 1}, {"unroll": 1})
    with pytest.raises(TransportError) as caught:
        check_formats({"unroll": 1}, theirs)
    assert all(part in str(caught.value) for part in named)
