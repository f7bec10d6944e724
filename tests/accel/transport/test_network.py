"""Addresses of this host, and which of some hosts answers."""

from __future__ import annotations

import socket

import pytest

from accel.errors import TransportError
from accel.transport.network import addresses, reach


def test_the_first_address_that_answers_is_taken_with_the_own_one_used_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach(["127.0.0.2", "127.0.0.1"], port) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(TransportError, match=r"127\.0\.0\.1: Connection refused"):
        reach(["127.0.0.1"], port)


def test_a_hosts_addresses_end_with_loopback() -> None:
    found = addresses()
    assert found[-1].startswith("127.") and all(socket.inet_aton(address) for address in found)
