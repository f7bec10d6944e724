"""Heartbeats of ranks: what they tell the process that started them, through the output that mpirun forwards anyway.

Ranks on its own host leave them in files too: whoever connects to a port of prterun and says nothing keeps it from
forwarding anything. A status is an escape sequence that terminals ignore: one that is not filtered out does no harm. It
is short and ends a line, so that the launcher forwards it at once and in one piece, and repeated where it matters.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["started", "joined", "failed", "ended"]

DIRECTORY = "ACCEL_HEARTBEATS"
"""The environment variable that names the directory of the files."""
_START, _END = b"\x1b]accel;", b"\x07\n"
_LINE = re.compile(rb"\x1b]accel;[^\x1b\n]*\x07\n")
_MOST_BYTES = 1024
_PERIOD_S = 1.0


@dataclass(frozen=True)
class RankStatus:
    """What a rank says about itself.

    Attributes:
        rank, host, pid: who.
        phase: ``started``, then ``joined`` once MPI knows every rank, or ``failed`` before that; ``ended`` is the
            learner's last word.
        status: exit status to come, with ``failed`` and ``ended``.
        beat: how often it has said something before: what comes late, or twice, is no news.
    """

    rank: int
    host: str
    pid: int
    phase: Phase
    status: int = 0
    beat: int = 0

    @property
    def where(self) -> str:
        """For messages."""
        return f"rank {self.rank} on {self.host} (process {self.pid})"


def encode(status: RankStatus) -> bytes:
    """A status as it appears in the output."""
    return _START + json.dumps(asdict(status)).encode() + _END


class Heartbeat:
    """A rank's side: repeats what it said last, every second, from a thread of its own until ``stop``."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase: Phase = "started"
        self._status = self._beats = 0
        self._in_order = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._repeat, daemon=True).start()

    def say(self, phase: Phase, status: int = 0) -> None:
        """Enter a phase."""
        with self._in_order:
            self._phase, self._status = phase, status
            self._write()

    def stop(self) -> None:
        """Say nothing more."""
        self._over.set()

    def _repeat(self) -> None:
        while True:
            with self._in_order:
                self._write()
            if self._over.wait(_PERIOD_S):
                return

    def _write(self) -> None:
        self._beats += 1
        status = RankStatus(self._rank, socket.gethostname(), os.getpid(), self._phase, self._status, self._beats)
        line = encode(status)
        if directory := os.environ.get(DIRECTORY):
            with suppress(OSError):  # It is on another host, or gone.
                Path(directory, str(self._rank)).write_bytes(line)
        try:
            os.write(1, line)
        except OSError:
            self._over.set()  # Whoever listened is gone.


def read_statuses(directory: Path) -> list[RankStatus]:
    """What each rank wrote last to its file."""
    statuses = [_parse(path.read_bytes()) for path in directory.iterdir()]
    return [status for status in statuses if status is not None]


class HeartbeatReader:
    """The starter's side of the output: separates statuses from what is meant for the user."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> tuple[bytes, list[RankStatus]]:
        """(output for the user, statuses) in a chunk of mpirun's output; what may begin a status is held back."""
        found, text, end, content = list[RankStatus](), b"", 0, self._held + chunk
        for match in _LINE.finditer(content):
            if (status := _parse(match[0])) is not None:
                found.append(status)
                text, end = text + content[end : match.start()], match.end()
        begun = content[max(content.rfind(_START[:1]), end) :]
        is_open = begun.startswith(_START) and b"\n" not in begun and len(begun) <= _MOST_BYTES
        if not (is_open or _START.startswith(begun)):  # An environment may print half of one, and no more.
            begun = b""
        self._held = begun
        return text + content[end : len(content) - len(begun)], found

    def rest(self) -> bytes:
        """What was held back, at the end of the output."""
        held, self._held = self._held, b""
        return held


def _parse(line: bytes) -> RankStatus | None:
    try:
        return RankStatus(**json.loads(line.removeprefix(_START).removesuffix(_END)))
    except (ValueError, TypeError):
        return None
