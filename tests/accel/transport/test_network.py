"""Addresses of this host, and which of some hosts answers."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

import pytest

from accel.errors import TransportError
from accel.transport.network import addresses, door, reach

TOKEN = b"a token"


def test_the_first_door_with_the_token_is_taken_with_the_own_address_used_for_it() -> None:
    """A stranger's noise, and many connections that stay open and say nothing, change nothing."""
    with door(TOKEN) as port, ExitStack() as strangers:
        for number in range(300):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port), 5.0))
            if number % 2:
                with suppress(OSError):  # the door has shut it already
                    stranger.sendall(bytes(10_000))
        assert reach(["127.0.0.2", "127.0.0.1"], port, TOKEN) == ("127.0.0.2", "127.0.0.1")
        with pytest.raises(TransportError, match=r"127\.0\.0\.1: it is another program's"):
            reach(["127.0.0.1"], port, b"another")
    with pytest.raises(TransportError, match=r"127\.0\.0\.1: Connection refused"):
        reach(["127.0.0.1"], port, TOKEN)


def test_a_port_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TransportError, match=r"timed out"):
        reach(["127.0.0.1"], silent.getsockname()[1], TOKEN, timeout_s=0.2)


def test_a_hosts_addresses_end_with_loopback() -> None:
    found = addresses()
    assert found[-1].startswith("127.") and all(socket.inet_aton(address) for address in found)
