"""Policies in memory that processes of one node share: one writer, which never waits, and any number of readers.

A ``PolicySlot`` has the newest policy of one scheme. A ``NodeMemory`` is what an actor that relays policies writes for
the others of its node, which read it through a ``NodeView``: a slot for every scheme that one of them uses, and a
table of these slots.

The files have no name, so that nothing outlives the processes, however they end. Other ranks open them through the
writer's ``/proc/PID/fd``, and a token tells them from files of a process that has its number by now. That takes Linux,
one user, and processes that see each other: those with the same ``node_name``.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accel.errors import TransportError
from accel.json_object import Json
from accel.system.memory import anonymous_memory, read_all, write_all
from accel.transport.base import PolicyUpdate

_SEQUENCE = struct.Struct("<q")
_HEADER = struct.Struct("<qqqqqII")
_SCHEME_AT, _PAYLOAD_AT = 64, 8192
_TRIES = 3


class PolicySlot:
    """The newest policy, in a file of memory: the writer never waits, and readers see whole ones.

    A sequence number that is odd while the writer writes tells a reader to look again.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._sequence = self._payload_sequence = self._size = 0
        self._seen = self._seen_payload = 0

    def write(self, update: PolicyUpdate, payload: memoryview | None = None) -> None:
        """Replace the policy; without a payload, the update's or one given apart, only its version.

        Raises TransportError: its name is too long.
        """
        scheme = update.scheme.encode()
        if len(scheme) > _PAYLOAD_AT - _SCHEME_AT:
            raise TransportError(f"a scheme's name of {len(scheme)} bytes is too long")
        if payload is None and update.payload is not None:
            payload = memoryview(update.payload)
        self._sequence += 1
        os.pwrite(self.file, _SEQUENCE.pack(self._sequence), 0)
        if payload is not None:
            self._payload_sequence, self._size = self._sequence, len(payload)
            write_all(self.file, payload, _PAYLOAD_AT)
        os.pwrite(self.file, scheme, _SCHEME_AT)
        self._sequence += 1
        fields = (self._sequence, update.publication, update.content, update.version, self._payload_sequence)
        os.pwrite(self.file, _HEADER.pack(*fields, len(scheme), self._size), 0)

    def read(self, known: int | None = None, *, patient: bool = True) -> PolicyUpdate | None:
        """A policy newer than the last one read; its payload too, unless that was read before.

        Args:
            known: the content (see ``PolicyUpdate``) whose payload is not needed; None: that which was read last.
            patient: wait while the writer writes; otherwise the answer is None then, as a writer may be gone.
        """
        tries = 0
        while patient or tries < _TRIES:
            tries += 1
            header = os.pread(self.file, _HEADER.size, 0)
            if len(header) < _HEADER.size:
                return None
            sequence, publication, content, version, payload_sequence, name_bytes, size = _HEADER.unpack(header)
            if sequence == self._seen and known is None:
                return None
            if sequence % 2 == 0:
                scheme = os.pread(self.file, name_bytes, _SCHEME_AT)
                is_known = payload_sequence == self._seen_payload if known is None else content == known
                payload = None if is_known else read_all(self.file, size, _PAYLOAD_AT)
                if os.pread(self.file, _HEADER.size, 0) == header:
                    self._seen, self._seen_payload = sequence, payload_sequence
                    return PolicyUpdate(version, scheme.decode(), payload, publication, content)
            os.sched_yield()
        return None

    def publication(self) -> int:
        """The number of the publication that it has, or is about to have; −1 while it is empty."""
        header = os.pread(self.file, _HEADER.size, 0)
        return -1 if len(header) < _HEADER.size else int(_HEADER.unpack(header)[1])


@dataclass(frozen=True)
class Place:
    """Where an actor's memory is.

    Attributes:
        node: ``node_name`` of its process. process, file: their numbers. token: what its table begins with.
    """

    node: str
    process: int
    file: int
    token: str

    def to_json(self) -> Json:
        """For a message."""
        return {"node": self.node, "process": self.process, "file": self.file, "token": self.token}

    @classmethod
    def from_json(cls, message: object) -> Place | None:
        """Inverse of ``to_json``; None for anything else."""
        if not isinstance(message, dict):
            return None
        try:
            return cls(str(message["node"]), int(message["process"]), int(message["file"]), str(message["token"]))
        except (KeyError, TypeError, ValueError):
            return None


class NodeMemory:
    """An actor's memory for the policies of its node: it writes, others read.

    Attributes:
        place: where others find it.
    """

    def __init__(self, node: str) -> None:
        self._table = PolicySlot(anonymous_memory())
        self.place = Place(node, os.getpid(), self._table.file, secrets.token_hex(8))
        self._slots: dict[str, PolicySlot] = {}
        self._default = ""
        self._write_table()

    def write(self, update: PolicyUpdate, payload: memoryview | None, is_default: bool) -> None:
        """Replace the policy of ``update``'s scheme.

        Args:
            update: without its payload. payload: None: only the version is new.
            is_default: whether actors without a scheme of their own get this one.
        """
        is_new = update.scheme not in self._slots
        if is_new:
            self._slots[update.scheme] = PolicySlot(anonymous_memory())
        self._slots[update.scheme].write(update, payload)
        if is_new or (is_default and update.scheme != self._default):
            self._default = update.scheme if is_default else self._default
            self._write_table()

    def close(self) -> None:
        """Give it back; readers keep what they have opened."""
        for slot in (self._table, *self._slots.values()):
            with suppress(OSError):
                os.close(slot.file)

    def _write_table(self) -> None:
        table = {"default": self._default, "slots": {scheme: slot.file for scheme, slot in self._slots.items()}}
        self._table.write(PolicyUpdate(0, self.place.token, json.dumps(table).encode()))


class NodeView:
    """A reader of another's ``NodeMemory``, or of its own.

    Raises:
        TransportError: it cannot be opened from here.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._table = PolicySlot(_open(place.process, place.file))
        self._slots: dict[str, PolicySlot] = {}
        self._default = ""
        self._files: dict[str, int] = {}
        table = self._table.read(patient=False)
        if table is None or table.scheme != place.token:
            self.close()
            raise TransportError(f"process {place.process} is not the one that shares its policies")
        self._take_table(table)

    def read(self, scheme: str | None, last: PolicyUpdate) -> PolicyUpdate | None:
        """The policy of ``scheme`` (None: of actors without one), unless it is the last one or older.

        Args:
            scheme: assigned to this actor. last: the last policy, from wherever it came; its payload does not matter.
        Returns:
            None: nothing newer, or it is being written. Without a payload it has the last one's.
        """
        if (table := self._table.read(patient=False)) is not None:
            self._take_table(table)
        name = self._default if scheme is None else scheme
        slot, is_same = self._slot(name), name == last.scheme
        if slot is None or slot.publication() < last.publication + is_same:
            return None
        return slot.read(last.content if is_same else 0, patient=False)

    def close(self) -> None:
        """Give back what was opened."""
        for slot in (self._table, *self._slots.values()):
            os.close(slot.file)
        self._slots.clear()

    def _slot(self, scheme: str) -> PolicySlot | None:
        if scheme not in self._slots and scheme in self._files:
            try:
                self._slots[scheme] = PolicySlot(_open(self._place.process, self._files[scheme]))
            except TransportError:
                return None  # Its writer is gone, which the learner notices.
        return self._slots.get(scheme)

    def _take_table(self, table: PolicyUpdate) -> None:
        told = json.loads(table.payload or b"{}")
        self._default, self._files = str(told["default"]), dict(told["slots"])


def node_name() -> str | None:
    """What processes that may open each other's files have in common; None where they may not."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {kernel} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return None


def _open(process: int, file: int) -> int:
    try:
        return os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TransportError(f"memory of process {process} cannot be opened: {error.strerror}") from error
