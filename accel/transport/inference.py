"""The inference rank's end of the questions that its actors ask: in from any of them, an answer back to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from accel.errors import TransportError
from accel.transport.base import Bytes
from accel.transport.endpoint import PeerFailed
from accel.transport.wire import TAG_ANSWER, TAG_QUESTION

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint, Request

MAX_QUESTION_BYTES = 1 << 30


class Questions:
    """Questions of many ranks, each of which asks again only when it has its answer. Never waits.

    Args:
        endpoint: this rank's. ranks: who may ask.
    """

    def __init__(self, endpoint: MpiEndpoint, ranks: Sequence[int]) -> None:
        self._endpoint = endpoint
        self._buffers = dict.fromkeys(ranks, np.empty(0, np.uint8))
        self._receipts: dict[int, Request] = {}
        self._answers: dict[int, tuple[Request, Bytes]] = {}

    def receive(self) -> list[tuple[int, Bytes]]:
        """(rank, question) of those that have become whole; a buffer is the rank's until it is answered.

        Raises:
            TransportError: a foreign or oversized question.
        """
        endpoint = self._endpoint
        try:
            while (incoming := endpoint.probe(endpoint.any_source, TAG_QUESTION)) is not None:
                rank = incoming.source
                if rank not in self._buffers or incoming.nbytes > MAX_QUESTION_BYTES:
                    raise TransportError(f"rank {rank} asked a foreign question of {incoming.nbytes} bytes")
                if self._buffers[rank].nbytes != incoming.nbytes:
                    self._buffers[rank] = np.empty(incoming.nbytes, np.uint8)
                self._receipts[rank] = incoming.receive(self._buffers[rank])
        except PeerFailed:
            endpoint.failed_ranks()  # From then on, others are heard again.
        whole = [rank for rank, request in tuple(self._receipts.items()) if self._is_done(rank, request)]
        for rank in whole:
            del self._receipts[rank]
        return [(rank, self._buffers[rank]) for rank in whole]

    def answer(self, rank: int, answer: Bytes) -> None:
        """Sends an answer, which the caller leaves alone until that rank asks again."""
        if rank in self._answers:
            # It is, as the rank asks again; but MPI keeps every request until somebody has asked.
            self._is_done(rank, self._answers[rank][0])
        try:
            self._answers[rank] = (self._endpoint.send(answer, rank, TAG_ANSWER), answer)
        except PeerFailed:
            self._endpoint.failed_ranks()

    def _is_done(self, rank: int, request: Request) -> bool:
        try:
            return self._endpoint.is_done(request)
        except PeerFailed:
            self._receipts.pop(rank, None)
            return False
