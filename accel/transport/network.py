"""This host's addresses, and which of another host's can be reached from here."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from accel.errors import TransportError

LOOPBACK = "127.0.0.1"
_REACH_S = 3.0


def addresses() -> list[str]:
    """IPv4 addresses of this host, those of loopback last."""
    known = (address for interface in psutil.net_if_addrs().values() for address in interface)
    unique = dict.fromkeys([*(one.address for one in known if one.family == socket.AF_INET), LOOPBACK])
    return sorted(unique, key=lambda address: address.startswith("127."))


def network_name() -> str:
    """What processes that reach each other over loopback have in common, and no others have."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel} {os.readlink('/proc/self/ns/net')}"
    except OSError:  # as elsewhere than on Linux
        return socket.gethostname()


@contextmanager
def door(token: bytes) -> Iterator[int]:
    """A port of this host that gives whoever connects the token, reads nothing, and is shut at the end."""
    with socket.create_server(("", 0)) as server:

        def answer() -> None:
            with suppress(OSError):  # the port is shut
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.setblocking(False)
                        connection.sendall(token)

        answers = threading.Thread(target=answer, daemon=True)
        answers.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            answers.join()


def reach(hosts: Sequence[str], port: int, token: bytes, timeout_s: float = _REACH_S) -> tuple[str, str]:
    """(host, own address) of the first of ``hosts`` whose door gives the token. Raises TransportError: none does."""
    problems = []
    for host in hosts:
        try:
            with socket.create_connection((host, port), timeout_s) as connection:
                if secrets.compare_digest(connection.recv(len(token), socket.MSG_WAITALL), token):
                    return host, str(connection.getsockname()[0])
                problems.append(f"{host}: it is another program's")
        except OSError as error:
            problems.append(f"{host}: {error.strerror or error}")
    raise TransportError(
        f"learner 0 cannot be reached on port {port} ({'; '.join(problems)}): let learners' nodes connect to each "
        "other, or choose an interface with GLOO_SOCKET_IFNAME"
    )
