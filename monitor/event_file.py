"""TensorBoard event files: TFRecord framing around TensorBoard's own Event messages, with tags in folders.

The writers of TensorBoard and torch take longer to start, and import TensorFlow where it is installed; tensorboardX
takes longer for a record.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

_FOLDERS = (
    (re.compile(r"return_(mean/.+)"), r"returns/\1"),
    (re.compile(r"return_(mean)|(length_mean|episodes)"), r"returns/\1\2"),
    (re.compile(r"(evaluation_\w+)"), r"returns/\1"),
    (re.compile(r"(\w+)_loss"), r"losses/\1"),
    (re.compile(r"loss"), r"losses/total"),
    (re.compile(r"(entropy|explained_variance|gradient_norm|td_error|q_mean)"), r"losses/\1"),
    (re.compile(r"((?:learner|actor)_\w+_share|env_steps_per_s|elapsed_s|dropped_unrolls|actors_alive)"), r"speed/\1"),
    (re.compile(r"(actor_steps_per_s[_/]\w+|slowest_actor)"), r"speed/\1"),
    (re.compile(r"((?:staleness|compression|total|lag|rho|mismatch)_.+|behaviour_kl|kl_from_batch)"), r"mismatch/\1"),
    (re.compile(r"(policy_bytes|[^/]+/.+)"), r"compression/\1"),
)
_CRC32C_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


@functools.lru_cache(maxsize=1024)
def event_tag(metric: str) -> str:
    """A metric's tag, in a folder: ``returns/mean``, ``losses/policy``, ``speed/learner_backward_share``,
    ``mismatch/compression_kl/int8``; what a scheme's artifacts are and cost is in ``compression``, the rest in
    ``training``.
    """
    for pattern, tag in _FOLDERS:
        if match := pattern.fullmatch(metric):
            return match.expand(tag)
    return f"training/{metric}"


class EventFile:
    """One ``events.out.tfevents.*`` file, appended to record by record. Imports TensorBoard when it is opened."""

    def __init__(self, directory: Path, *, purge_step: int | None = None) -> None:
        """Args: directory: exists; purge_step: TensorBoard hides older files' points from this step on (a resume).

        Raises: OSError; ImportError without TensorBoard.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]

        self._event_class = event_pb2.Event
        self._summary_class = summary_pb2.Summary
        self._crc_table = _crc32c_table()
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        self._file: IO[bytes] = open(directory / name, "xb")
        self._append(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            event = event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start)
            self._append(event.SerializeToString())

    def add_scalars(self, wall_time_s: float, step: int, scalars: Mapping[str, float]) -> None:
        """Append one event with all ``scalars`` under their ``event_tag``; wall_time_s in Unix seconds."""
        value_class = self._summary_class.Value
        values = [value_class(tag=event_tag(name), simple_value=value) for name, value in scalars.items()]
        summary = self._summary_class(value=values)
        event = self._event_class(wall_time=wall_time_s, step=step, summary=summary)
        self._append(event.SerializeToString())

    def flush(self) -> None:
        """Pass everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close; what was not flushed and cannot be written is lost. Closing twice is fine."""
        with suppress(OSError):
            self._file.close()

    def _append(self, record: bytes) -> None:
        length = struct.pack("<Q", len(record))
        self._file.write(length + self._masked_crc(length) + record + self._masked_crc(record))

    def _masked_crc(self, content: bytes) -> bytes:
        """CRC-32C, rotated and offset as TFRecord wants it (tensorflow/core/lib/hash/crc32c.h)."""
        crc = 0xFFFFFFFF
        table = self._crc_table
        for byte in content:
            crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_CRC32C_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
