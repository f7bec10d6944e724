"""Signs of life: what ranks tell the process that started them, through the output that mpirun forwards anyway.

Ranks on its own host leave them in files too: whoever connects to a port of prterun and says nothing keeps it from
forwarding anything. A sign is an escape sequence that terminals ignore: one that is not filtered out does no harm. It
is short and ends a line, so that the launcher forwards it at once and in one piece, and repeated where it matters.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["started", "joined", "failed", "ended"]

DIRECTORY = "ACCEL_SIGNS_DIRECTORY"
"""The environment variable that names the directory of the files."""
_START, _END = b"\x1b]accel;", b"\x07\n"
_MAX_SIGN_BYTES = 1024
_PERIOD_S = 1.0


@dataclass(frozen=True)
class RankStatus:
    """What a rank says about itself.

    Attributes:
        rank, host, pid: who.
        phase: ``started``, then ``joined`` once MPI knows every rank, or ``failed`` before that; ``ended`` is the
            learner's last word.
        status: exit status to come, with ``failed`` and ``ended``.
    """

    rank: int
    host: str
    pid: int
    phase: Phase
    status: int = 0

    @property
    def where(self) -> str:
        """For messages."""
        return f"rank {self.rank} on {self.host} (process {self.pid})"


def encode(sign: RankStatus) -> bytes:
    """A sign as it appears in the output."""
    return _START + json.dumps(asdict(sign)).encode() + _END


class Heartbeat:
    """A rank's side: repeats what it said last, every second, from a thread of its own until ``stop``."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._phase: Phase = "started"
        self._status = 0
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
        sign = encode(RankStatus(self._rank, socket.gethostname(), os.getpid(), self._phase, self._status))
        if directory := os.environ.get(DIRECTORY):
            with suppress(OSError):  # It is on another host, or gone.
                Path(directory, str(self._rank)).write_bytes(sign)
        try:
            os.write(1, sign)
        except OSError:
            self._over.set()  # Whoever listened is gone.


class HeartbeatFiles:
    """The starter's side of the files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, int] = {}

    def read(self) -> list[RankStatus]:
        """Signs that are new, or were repeated."""
        found = []
        for path in self._directory.iterdir():
            written_at, content = path.stat().st_mtime_ns, path.read_bytes()
            sign = _parse(content.removeprefix(_START).removesuffix(_END))
            if sign is not None and self._seen.get(path.name) != written_at:
                self._seen[path.name] = written_at
                found.append(sign)
        return found


class HeartbeatReader:
    """The starter's side: separates signs from what is meant for the user."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> tuple[bytes, list[RankStatus]]:
        """(output for the user, signs) in a chunk of mpirun's output; what may be the start of a sign is held back."""
        signs: list[RankStatus] = []
        text, rest = b"", self._held + chunk
        while True:
            before, start, rest = rest.partition(_START)
            text += before
            if not start:
                break
            body, end, after = rest.partition(_END)
            is_open = not end and len(rest) <= _MAX_SIGN_BYTES and b"\n" not in rest
            if is_open and _START not in rest:  # An environment may print half of one, and no more.
                self._held = start + rest
                return text, signs
            sign = _parse(body) if end else None
            if sign is None:
                text += start
            else:
                signs.append(sign)
                rest = after
        kept = next((n for n in range(len(_START) - 1, 0, -1) if text.endswith(_START[:n])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], signs

    def rest(self) -> bytes:
        """What was held back, at the end of the output."""
        held, self._held = self._held, b""
        return held


def _parse(body: bytes) -> RankStatus | None:
    try:
        return RankStatus(**json.loads(body))
    except (ValueError, TypeError):
        return None
