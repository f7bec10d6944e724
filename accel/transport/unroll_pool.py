"""The buffers that the learner receives unrolls into: a bounded pool."""

from __future__ import annotations

import numpy as np

from accel.errors import TransportError
from accel.transport.base import Arrival, Bytes, TransportOptions


class UnrollPool:
    """Buffers of one size, each free, being received into, or held by the learner.

    Made on first need and reused: never more than ``max_held`` plus what the learner takes ahead.
    """

    def __init__(self, unroll_bytes: int, options: TransportOptions) -> None:
        self.unroll_bytes = unroll_bytes
        self._max_held = options.max_held
        self._free: list[Bytes] = []
        self._held: dict[int, Bytes] = {}

    def take(self) -> Bytes:
        """A free buffer."""
        return self._free.pop() if self._free else np.empty(self.unroll_bytes, np.uint8)

    def put_back(self, buffer: Bytes) -> None:
        """Returns a buffer that the learner never saw."""
        self._free.append(buffer)

    def check_may_hold(self) -> None:
        """Raises TransportError when the learner holds as many arrivals as it may."""
        if len(self._held) >= self._max_held:
            raise TransportError(
                f"{self._max_held} arrivals are held and none was released; release() some, or raise max_held"
            )

    def hold(self, arrival: Arrival) -> Arrival:
        """Notes that the learner owns the arrival's buffer now."""
        self._held[id(arrival.buffer)] = arrival.buffer
        return arrival

    def release(self, arrival: Arrival) -> None:
        """Takes a buffer back from the learner."""
        if self._held.pop(id(arrival.buffer), None) is None:
            raise TransportError("release() takes an arrival from receive(), once")
        self._free.append(arrival.buffer)


def check_unroll_bytes(unroll_bytes: int, configured: int | None) -> None:
    """Raises TransportError for a size that cannot be sent, or a second ``configure``."""
    if configured is not None:
        raise TransportError(f"the transport is configured already, for unrolls of {configured} bytes")
    if not 0 < unroll_bytes < 1 << 31:
        raise TransportError(f"an unroll of {unroll_bytes} bytes cannot be sent; it must have 1 … 2³¹-1")
