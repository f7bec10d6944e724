"""Messages between two processes: whole, in order, none lost where the other side is slow or ends."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.supervision.channel import Channel, ChannelClosedError


@contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(connection) for connection in socket.socketpair()]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


@given(st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=3000), max_size=3), max_size=12))
def test_messages_arrive_whole_and_in_order(bodies: list[dict[str, str]]) -> None:
    with pair() as (ours, theirs):
        for body in bodies:
            ours.send("report", body)
        ours.flush(wait=True)
        found = []
        while len(found) < len(bodies):
            assert theirs.wait(10.0)
            found += theirs.receive()
        assert found == [("report", body) for body in bodies] and theirs.receive() == []


def test_a_process_of_many_files_waits_for_each() -> None:
    """As the learner of hundreds of actors, whose sockets have numbers beyond a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, other = Channel(fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)), Channel(theirs)
        assert not channel.wait(0.0)
        other.send("report")
        assert channel.wait(10.0) and channel.receive() == [("report", {})]
        channel.close()


def test_more_than_fits_waits_at_the_sender_and_is_not_lost() -> None:
    with pair() as (ours, theirs):
        for number in range(40):
            ours.send("report", {"number": number, "text": "x" * 50_000})
        found = []
        while len(found) < 40:
            found += theirs.receive()
            ours.flush()
        assert [body["number"] for _, body in found] == list(range(40))


def test_what_the_other_end_sent_before_it_was_closed_is_read_first() -> None:
    with pair() as (ours, theirs):
        theirs.send("unroll", {"buffer": 1})
        theirs.close()
        assert ours.receive() == [("unroll", {"buffer": 1})]
        with pytest.raises(ChannelClosedError):
            ours.receive()
        with pytest.raises(ChannelClosedError):
            ours.send("free")
