"""Ranks' ends of the transport for scripted jobs: an actor that acts in its rank, and so waits there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from accel.errors import TransportError
from accel.transport.base import Aborted, Bytes, PolicyUpdate, Stopped, TransportOptions
from accel.transport.endpoint import Backoff
from accel.transport.launcher import Role, Topology
from accel.transport.remote_actor import RemoteActor
from accel.transport.remote_learner import RemoteLearner

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint

Found = TypeVar("Found")


class WaitingActor(RemoteActor):
    """``ActorTransport`` on a rank, with buffers of its own."""

    def welcome(self, timeout_s: float) -> dict[str, Any]:
        """See ``ActorTransport.welcome``."""
        return self._until(self.poll_welcome, timeout_s)

    def configure(self, unroll_bytes: int, in_flight: int) -> None:
        """See ``ActorTransport.configure``."""
        self.share([np.zeros(unroll_bytes, np.uint8) for _ in range(in_flight + 1)])

    def acquire(self) -> Bytes:
        """See ``ActorTransport.acquire``."""
        return self._until(self.try_acquire, None)

    def wait_policy(self, timeout_s: float) -> PolicyUpdate:
        """See ``ActorTransport.wait_policy``."""
        return self._until(self.pull, timeout_s)

    def _until(self, look: Callable[[], Found | None], timeout_s: float | None) -> Found:
        backoff = Backoff(timeout_s)
        while True:
            self.pump()
            if self._abort_text is not None:
                raise Aborted(self._abort_text)
            if self.stopping:
                raise Stopped
            if (found := look()) is not None:
                return found
            if not backoff.pause():
                raise TransportError(f"nothing from the learner within {timeout_s} s")


def connect(
    endpoint: MpiEndpoint, topology: Topology, options: TransportOptions, formats: Mapping[str, int] | None = None
) -> RemoteLearner | WaitingActor:
    """This rank's end, as ``topology`` says."""
    group = topology.group(endpoint.rank)
    if topology.role(endpoint.rank) is Role.LEARNER:
        return RemoteLearner(endpoint, group, options=options, formats=formats)
    return WaitingActor(endpoint, group, formats=formats)
