"""Messages between a process and one that it has started: lines of JSON, over a socket that the child inherits."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping

from accel.errors import TransportError
from accel.json_object import Json

_CHUNK = 1 << 16


class ChannelClosedError(TransportError):
    """The other process is gone, or has closed its end."""

    def __init__(self) -> None:
        super().__init__("the other process is gone")


class Channel:
    """One end. Args: connection: its socket, or the number of one that was inherited."""

    def __init__(self, connection: socket.socket | int) -> None:
        self._socket = connection if isinstance(connection, socket.socket) else socket.socket(fileno=connection)
        self._socket.setblocking(False)
        self._received, self._unsent = bytearray(), bytearray()

    def fileno(self) -> int:
        """For selectors; -1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, kind: str, body: Mapping[str, object] | None = None) -> None:
        """Queue a message and send what can be sent now. Raises ChannelClosedError."""
        self._unsent += json.dumps([kind, body or {}]).encode() + b"\n"
        self.flush()

    def flush(self, wait: bool = False) -> None:
        """Send what is queued, or as much as fits now. Raises ChannelClosedError."""
        try:
            while self._unsent:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    if not wait:
                        return
                    self._poll(select.POLLOUT, None)
        except OSError as error:
            raise ChannelClosedError from error

    def receive(self) -> list[tuple[str, Json]]:
        """Whole messages that have come. Raises ChannelClosedError: the other end is gone, and all was read."""
        chunk = bytes(_CHUNK)
        while len(chunk) == _CHUNK:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                chunk = b""
            self._received += chunk
        *lines, self._received = self._received.split(b"\n")
        if not (lines or chunk):
            raise ChannelClosedError
        return [(kind, body) for kind, body in map(json.loads, lines)]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something has come; False when the time is up."""
        return self._poll(select.POLLIN, timeout_s)

    def _poll(self, event: int, timeout_s: float | None) -> bool:
        """Not ``select``, which knows no file beyond the 1024th."""
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if timeout_s is None else 1000.0 * timeout_s))
