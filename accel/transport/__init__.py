"""Unrolls from actors to the learner and policies back, in one process or over MPI. No torch; MPI only when joined.

info = detect_launch()
endpoint = join_world(info)                         # initialises MPI
transport = connect(endpoint, Topology.single_learner(endpoint.size), formats={"unroll": 1})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.transport.base import (
        Aborted,
        ActorTransport,
        Arrival,
        LearnerTransport,
        PolicyUpdate,
        Stopped,
        TransportOptions,
    )
    from accel.transport.join import connect, join_world
    from accel.transport.launcher import (
        LaunchInfo,
        LearnerGroup,
        Role,
        Topology,
        detect_launch,
        find_mpirun,
        is_actor,
        mpirun_command,
        verify_world,
    )
    from accel.transport.local import LocalTransport

_HOME = {
    "Aborted": "base",
    "ActorTransport": "base",
    "Arrival": "base",
    "LearnerTransport": "base",
    "PolicyUpdate": "base",
    "Stopped": "base",
    "TransportOptions": "base",
    "connect": "join",
    "join_world": "join",
    "LaunchInfo": "launcher",
    "detect_launch": "launcher",
    "find_mpirun": "launcher",
    "mpirun_command": "launcher",
    "verify_world": "launcher",
    "LocalTransport": "local",
    "LearnerGroup": "launcher",
    "Role": "launcher",
    "Topology": "launcher",
    "is_actor": "launcher",
}

__all__ = [
    "Aborted",
    "ActorTransport",
    "Arrival",
    "LaunchInfo",
    "LearnerGroup",
    "LearnerTransport",
    "LocalTransport",
    "PolicyUpdate",
    "Role",
    "Stopped",
    "Topology",
    "TransportOptions",
    "connect",
    "detect_launch",
    "find_mpirun",
    "is_actor",
    "join_world",
    "mpirun_command",
    "verify_world",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
