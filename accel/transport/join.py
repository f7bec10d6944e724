"""Joins MPI's world, where mpi4py and an MPI library are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.errors import LaunchError, MissingExtraError
from accel.transport.launcher import LaunchInfo

if TYPE_CHECKING:
    from accel.transport.mpi import MpiEndpoint

START_TIMEOUT_S = 120.0


def join_world(info: LaunchInfo, timeout_s: float = START_TIMEOUT_S) -> MpiEndpoint:
    """Initialises MPI, which waits for every rank, and checks that it sees the announced ranks.

    A rank that waits longer than ``timeout_s`` for another ends with a message. Raises MissingExtraError without
    mpi4py, LaunchError without a working MPI library or with fewer ranks than announced.
    """
    try:
        from accel.transport import mpi
    except ModuleNotFoundError as error:
        if error.name != "mpi4py":
            raise
        raise MissingExtraError("running on several ranks needs mpi4py: pip install 'accel-rl[openmpi]'") from error
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpi4py cannot load an MPI library ({error}); install one: pip install 'accel-rl[openmpi]'"
        ) from error
    return mpi.join_world(info, timeout_s)
