"""Policies in memory that processes of one node share: one writer, which never waits, and any number of readers.

A ``PolicySlot`` has the newest policy. A ``NodeMemory`` is a slot that an actor that relays policies writes for the
others of its node, which read it through a ``NodeView``.

The files have no name, so that nothing outlives the processes, however they end. Other ranks open them through the
writer's ``/proc/PID/fd``, and a token tells them from files of a process that has its number by now. That takes Linux,
one user, and processes that see each other: those with the same ``node_name``.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from accel.errors import TransportError
from accel.system.memory import anonymous_memory, read_all, write_all
from accel.transport.base import PolicyUpdate

_SEQUENCE = struct.Struct("<q")
_HEADER = struct.Struct("<qqqqq")
_TOKEN_BYTES, _PAYLOAD_AT = 8, 4096
_TRIES = 3


class PolicySlot:
    """The newest policy, in a file of memory: the writer never waits, and readers see whole ones.

    A sequence number that is odd while the writer writes tells a reader to look again.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._sequence = self._size = 0

    def write(self, update: PolicyUpdate, payload: memoryview | None = None) -> None:
        """Replace the policy; without a payload, the update's or one given apart, it has the same content as before."""
        if payload is None and update.payload is not None:
            payload = memoryview(update.payload)
        self._sequence += 1
        os.pwrite(self.file, _SEQUENCE.pack(self._sequence), 0)
        if payload is not None:
            self._size = len(payload)
            write_all(self.file, payload, _PAYLOAD_AT)
        self._sequence += 1
        fields = (self._sequence, update.publication, update.content, update.version, self._size)
        os.pwrite(self.file, _HEADER.pack(*fields), 0)

    def read(self, last: PolicyUpdate, *, patient: bool = False) -> PolicyUpdate | None:
        """The policy, unless it is the last one or older.

        Args:
            last: the last policy, from wherever it came; its payload does not matter.
            patient: wait while the writer writes; otherwise the answer is None then, as a writer may be gone.
        Returns:
            None: nothing newer. Without a payload it has the last one's.
        """
        tries = 0
        while patient or tries < _TRIES:
            tries += 1
            header = os.pread(self.file, _HEADER.size, 0)
            if len(header) < _HEADER.size:
                return None
            sequence, publication, content, version, size = _HEADER.unpack(header)
            if publication <= last.publication:
                return None
            if sequence % 2 == 0:
                payload = None if content == last.content else read_all(self.file, size, _PAYLOAD_AT)
                if os.pread(self.file, _HEADER.size, 0) == header:
                    return PolicyUpdate(version, payload, publication, content)
            os.sched_yield()
        return None

    def close(self) -> None:
        """Give the file back; readers keep what they have opened."""
        os.close(self.file)


class Place(NamedTuple):
    """Where an actor's memory is; a list in JSON.

    Attributes:
        node: ``node_name`` of its process. process, file: their numbers. token: what stands in it, hexadecimal.
    """

    node: str
    process: int
    file: int
    token: str

    @classmethod
    def of(cls, told: object) -> Place | None:
        """From a message; None where that has none."""
        return cls(*told) if isinstance(told, list | tuple) else None


class NodeMemory(PolicySlot):
    """An actor's memory for the policies of its node: it writes, others read.

    Attributes:
        place: where others find it.
    """

    def __init__(self, node: str) -> None:
        super().__init__(anonymous_memory())
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(self.file, bytes(_HEADER.size) + token, 0)
        self.place = Place(node, os.getpid(), self.file, token.hex())


class NodeView(PolicySlot):
    """A reader of another's ``NodeMemory``, or of its own.

    Raises:
        TransportError: it cannot be opened from here.
    """

    def __init__(self, place: Place) -> None:
        try:
            super().__init__(os.open(f"/proc/{place.process}/fd/{place.file}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise TransportError(f"memory of process {place.process} cannot be opened: {error.strerror}") from error
        if os.pread(self.file, _TOKEN_BYTES, _HEADER.size).hex() != place.token:
            self.close()
            raise TransportError(f"process {place.process} is not the one that shares its policies")


def node_name() -> str | None:
    """What processes that may open each other's files have in common; None where they may not."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {kernel} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return None
