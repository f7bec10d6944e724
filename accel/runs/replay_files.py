"""A replay on disk: pieces of its rings, each written once and checksummed, and an index that says which belong to it.

``save`` writes the rows that came since the last time as new pieces, then everything else (priorities, counters) as one
file, then an index for the checkpoint that it belongs to, atomically. ``remove_older`` removes what that index does not
name, once the checkpoint is written: wherever a kill comes, the newest checkpoint has a replay of its own moment.
``load`` reads nothing that the index does not name, and nothing whose checksum is wrong.

    RUN/replay/index-MOMENT.json   {"sha256": …, "document": {"fingerprint", "rings", "pieces", "state", "values"}}
    RUN/replay/piece-…, state-…: safetensors

On disk a replay takes what it takes in memory, and up to one piece for each ring more; in memory a ``save`` takes three
times ``PIECE_BYTES``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as deserialise
from safetensors.numpy import save as serialise

from accel.errors import CheckpointError
from accel.experience.stores.base import Arrays, KeptStore, Ring
from accel.system.atomic import remove_partial_files, write_atomically
from accel.system.untrusted import read_file

PIECE_BYTES = 2**25
_MOST_INDEX_BYTES = 2**26


@dataclass(frozen=True)
class _Piece:
    """Rows ``start`` to before ``end`` of a ring, counted since its start."""

    ring: str
    start: int
    end: int
    file: str
    sha256: str


@dataclass(eq=False)
class ReplayFiles:
    """The files of one replay. Only one process writes at a time.

    Args:
        directory: made at the first ``save``.
        fingerprint: of everything that decides the replay's shape; another one's files are refused.
    """

    directory: Path
    fingerprint: str
    _pieces: list[_Piece] = field(default_factory=list)
    _saves: int = 0
    _named: set[str] = field(default_factory=set)

    def save(self, store: KeptStore, moment: str) -> None:
        """Write what is new, for the checkpoint of a moment; moments' names are in the order of time.

        Raises: OSError; what was saved before is then still whole.
        """
        self.directory.mkdir(exist_ok=True)
        remove_partial_files(self.directory)
        rings = dict(store.rings())
        pieces = [piece for piece in self._pieces if piece.end > rings[piece.ring].end - rings[piece.ring].length]
        for name, ring in rings.items():
            pieces += self._write_rows(name, ring, max((p.end for p in pieces if p.ring == name), default=0))
        values, arrays = store.state()
        content = serialise({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        state = f"state-{self._saves:06d}.safetensors"
        write_atomically(self.directory / state, content)
        document = {
            "fingerprint": self.fingerprint,
            "saves": self._saves + 1,
            "rings": {name: [ring.length, ring.end] for name, ring in rings.items()},
            "pieces": [asdict(piece) for piece in pieces],
            "state": [state, _checksum(content)],
            "values": values,
        }
        text = json.dumps(document, allow_nan=False, sort_keys=True)
        index = json.dumps({"sha256": _checksum(text.encode()), "document": text})
        write_atomically(self.directory / _index(moment), index.encode())
        self._pieces, self._saves = pieces, self._saves + 1
        self._named = {state, _index(moment), *(piece.file for piece in pieces)}

    def remove_older(self) -> None:
        """Remove what the newest ``save`` has not named, if there was one."""
        for path in self.directory.iterdir() if self._named else ():
            if path.name not in self._named:
                path.unlink(missing_ok=True)

    def load(self, store: KeptStore, moment: str) -> bool:
        """Restore what was saved for the checkpoint of a moment, or last before it; whether there was anything.

        Raises: CheckpointError: a file is missing, damaged, or of a replay of another shape; the store is as it was.
        """
        saved = sorted(path.name for path in self.directory.glob(_index("*")) if path.name <= _index(moment))
        if not saved:
            return False
        path = self.directory / saved[-1]
        try:
            index = json.loads(read_file(path, _MOST_INDEX_BYTES))
            text = index["document"]
            if _checksum(text.encode()) != index["sha256"]:
                raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
            document = json.loads(text)
            if document["fingerprint"] != self.fingerprint:
                raise CheckpointError(f"{self.directory} is of a replay of another size, environment or algorithm")
            pieces = [_Piece(**piece) for piece in document["pieces"]]
            most = 4 * max(store.nbytes, PIECE_BYTES)
            rings = {
                name: self._read_ring(name, int(length), int(end), pieces, most)
                for name, (length, end) in document["rings"].items()
            }
            (file, sha256), saves = document["state"], int(document["saves"])
            store.restore(rings, document["values"], self._read(file, sha256, most))
        except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CheckpointError(f"{self.directory} is damaged: {error!r}") from error
        self._pieces, self._saves = pieces, saves
        return True

    def _write_rows(self, name: str, ring: Ring, known: int) -> Iterator[_Piece]:
        """What is new since row ``known``, and what may have changed before it."""
        if known == ring.end:
            return
        start = max(known - ring.unsettled, ring.end - ring.length, 0)
        step = max(PIECE_BYTES // max(sum(array[:1].nbytes for array in ring.arrays.values()), 1), 1)
        for first in range(start, ring.end, step):
            last = min(first + step, ring.end)
            places = np.arange(first, last) % ring.length
            content = serialise({key: np.ascontiguousarray(array[places]) for key, array in ring.arrays.items()})
            file = f"piece-{name}-{self._saves:06d}-{first:012d}.safetensors"
            write_atomically(self.directory / file, content)
            yield _Piece(name, first, last, file, _checksum(content))

    def _read_ring(self, name: str, length: int, end: int, pieces: list[_Piece], most: int) -> Ring:
        arrays: dict[str, np.ndarray] = {}
        for piece in (piece for piece in pieces if piece.ring == name):
            if not 0 <= piece.start < piece.end <= end:
                raise ValueError(f"a piece of rows {piece.start} to {piece.end}, where there are {end}")
            places = np.arange(piece.start, piece.end)
            rows = np.flatnonzero(places >= end - length)
            for key, array in self._read(piece.file, piece.sha256, most).items():
                if array.shape[:1] != places.shape or length * (array.nbytes // len(places)) > most:
                    raise ValueError(f"{piece.file} has {array.shape} for {len(places)} of {length} rows")
                kept = arrays.setdefault(key, np.zeros((length, *array.shape[1:]), array.dtype))
                kept[places[rows] % length] = array[rows]
        return Ring(cast(Arrays, arrays), length, end)

    def _read(self, file: str, sha256: str, most: int) -> Arrays:
        content = read_file(self.directory / Path(file).name, most)
        if _checksum(content) != sha256:
            raise CheckpointError(f"{self.directory / file} is damaged: its checksum does not match its content")
        return cast(Arrays, deserialise(content))


def _index(moment: str) -> str:
    return f"index-{moment}.json"


def fingerprint(**facts: object) -> str:
    """Of what decides a replay's shape."""
    return _checksum(json.dumps(facts, sort_keys=True, default=str).encode())[:16]


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
