"""What a rank and the child process that acts for it share: a socket for messages, memory for unrolls and policies.

Everything is inherited by the child and has no name, so that nothing outlives the two, however they end.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import tempfile
from collections.abc import Mapping
from typing import Self

import numpy as np

from accel.errors import TransportError
from accel.json_object import Json
from accel.system.pulse import PREPARING, WORDS, Pulse
from accel.transport.base import Bytes, PolicyUpdate
from accel.transport.wire import decode_message, encode_message

_LENGTH = struct.Struct("<I")
_SEQUENCE = struct.Struct("<q")
_POLICY = struct.Struct("<qqqII")
_SCHEME_AT, _PAYLOAD_AT = 64, 8192


class LinkLostError(TransportError):
    """The other process is gone."""

    def __init__(self) -> None:
        super().__init__("the other process of this actor is gone")


class Link:
    """One end of all that is shared. ``files`` are the numbers that ``adopt`` takes in the child.

    Args:
        connection: this end's socket. ring, policy, pulse: files of memory.
    """

    def __init__(self, connection: socket.socket, ring: int, policy: int, pulse: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._files: tuple[int, ...] = (ring, policy, pulse)
        self._received, self._unsent = bytearray(), bytearray()
        self.pulse = Pulse(memoryview(mmap.mmap(pulse, 8 * WORDS)).cast("q"))
        self.policies = PolicySlot(policy)

    @classmethod
    def make(cls) -> tuple[Self, socket.socket]:
        """A rank's end, and the socket for its first child."""
        ours, theirs = socket.socketpair()
        files = [_memory() for _ in range(3)]
        os.ftruncate(files[2], 8 * WORDS)
        link = cls(ours, *files)
        link.pulse.enter(PREPARING)
        return link, theirs

    def renew(self) -> socket.socket:
        """The socket for another child: what the last one may still have written is never read."""
        self._socket.close()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._received.clear()
        self._unsent.clear()
        self.pulse.enter(PREPARING)
        return theirs

    def files(self, theirs: socket.socket) -> tuple[int, int, int, int]:
        """What a child inherits and gives to ``adopt``."""
        ring, policy, pulse = self._files
        return theirs.fileno(), ring, policy, pulse

    @classmethod
    def adopt(cls, files: tuple[int, int, int, int]) -> Self:
        """The child's end."""
        return cls(socket.socket(fileno=files[0]), *files[1:])

    def close(self) -> None:
        """Give everything back but the memory, which lives as long as somebody has a buffer of it."""
        self._socket.close()
        for file in self._files:
            os.close(file)
        self._files = ()

    def buffers(self, unroll_bytes: int, count: int) -> list[Bytes]:
        """The unrolls' memory: the same at both ends, each buffer on pages of its own."""
        stride = -(-unroll_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        ring = self._files[0]
        if os.fstat(ring).st_size < stride * count:
            os.ftruncate(ring, stride * count)
        memory = mmap.mmap(ring, stride * count)
        return [np.frombuffer(memory, np.uint8, unroll_bytes, stride * i) for i in range(count)]

    def send(self, kind: str, body: Mapping[str, object]) -> None:
        """Queue a message and send what can be sent."""
        encoded = encode_message(kind, dict(body))
        self._unsent += _LENGTH.pack(len(encoded)) + encoded
        self.flush()

    def flush(self, wait: bool = False) -> None:
        """Send what is queued, or as much as fits. Raises LinkLostError."""
        try:
            while self._unsent:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    if not wait:
                        return
                    select.select([], [self._socket], [])
        except OSError as error:
            raise LinkLostError from error

    def receive(self) -> list[tuple[str, Json]]:
        """Every whole message that has come. Raises LinkLostError: the other process is gone, and all was read."""
        found: list[tuple[str, Json]] = []
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except BlockingIOError:
                return found
            except OSError:
                chunk = b""
            if not chunk:
                if found:
                    return found
                raise LinkLostError
            self._received += chunk
            while len(self._received) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
                if len(self._received) < end:
                    break
                found.append(decode_message(bytes(self._received[_LENGTH.size : end])))
                del self._received[:end]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something has come; False when the time is up."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])


class PolicySlot:
    """The newest policy, in a file of memory: one writer, which never waits, and one reader, which sees whole ones.

    A sequence number that is odd while the writer writes tells the reader to look again.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._sequence = self._payload_sequence = self._size = 0
        self._seen = self._seen_payload = 0

    def write(self, update: PolicyUpdate) -> None:
        """Replace the policy; without a payload, only its version. Raises TransportError: its name is too long."""
        scheme = update.scheme.encode()
        if len(scheme) > _PAYLOAD_AT - _SCHEME_AT:
            raise TransportError(f"a scheme's name of {len(scheme)} bytes is too long")
        self._sequence += 1
        os.pwrite(self._file, _SEQUENCE.pack(self._sequence), 0)
        size = self._size
        if update.payload is not None:
            self._payload_sequence = self._sequence
            size = self._size = len(update.payload)
            written = 0
            while written < size:
                written += os.pwrite(self._file, memoryview(update.payload)[written:], _PAYLOAD_AT + written)
        os.pwrite(self._file, scheme, _SCHEME_AT)
        self._sequence += 1
        header = (self._sequence, update.version, self._payload_sequence, len(scheme), size)
        os.pwrite(self._file, _POLICY.pack(*header), 0)

    def read(self) -> PolicyUpdate | None:
        """A policy newer than the last one read; its payload too, unless that was read before."""
        while True:
            header = os.pread(self._file, _POLICY.size, 0)
            if len(header) < _POLICY.size:
                return None
            sequence, version, payload_sequence, name_bytes, size = _POLICY.unpack(header)
            if sequence == self._seen:
                return None
            if sequence % 2 == 0:
                scheme = os.pread(self._file, name_bytes, _SCHEME_AT)
                payload = None if payload_sequence == self._seen_payload else _read(self._file, size, _PAYLOAD_AT)
                if os.pread(self._file, _POLICY.size, 0) == header:
                    break
            os.sched_yield()
        self._seen, self._seen_payload = sequence, payload_sequence
        return PolicyUpdate(version, scheme.decode(), payload)


def _read(file: int, size: int, start: int) -> bytes:
    found = os.pread(file, size, start)
    while len(found) < size:  # Linux reads 2 GiB at most at once
        more = os.pread(file, size - len(found), start + len(found))
        if not more:
            break
        found += more
    return found


def _memory() -> int:
    """A file of memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("accel")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
