"""MPI as a carrier of messages. The only file that imports mpi4py; its buffer methods only, so nothing is pickled.

Importing this file does not initialise MPI: ``join_world`` does. The world communicator is used as it is: a duplicate
would cost a collective call, in which a rank that died early would hang all others. Our tags keep other users apart.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

from accel.errors import EXIT_ABORTED, LaunchError, TransportError  # noqa: E402
from accel.system.deadline import deadline  # noqa: E402
from accel.transport.base import Bytes  # noqa: E402
from accel.transport.endpoint import PeerFailed  # noqa: E402
from accel.transport.launcher import LaunchInfo, verify_library, verify_world  # noqa: E402
from accel.transport.pinning import local_size  # noqa: E402

# With these, Open MPI 5 really survives dead ranks. Its TCP pipeline of remote writes to a dead rank spins for ever;
# sends don't, and are no slower. The fence in its MPI_Finalize sometimes waits for the dead; our stopping protocol does
# what that is for. Fault tolerance does not work over libfabric, whose search for networks would take a second.
_ULFM_SETTINGS = {"OMPI_MCA_btl_tcp_flags": "send", "OMPI_MCA_async_mpi_finalize": "1", "OMPI_MCA_btl": "^ofi"}
# Its TCP transport, and that of UCX, which MPICH's wheel uses, listen on the network, even where every rank is on one
# host and nobody uses it.
_ONE_HOST_SETTINGS = {"OMPI_MCA_btl": "self,sm", "UCX_TLS": "self,sm"}

LEAVE_S = 10.0
"""The longest time that leaving MPI takes when nothing is wrong."""
_OPEN_MPI_BYTES = (1 << 31) - 1


Request: TypeAlias = MPI.Request
"""A transfer under way."""


@dataclass(slots=True)
class MpiIncoming:
    """A matched MPI message."""

    endpoint: MpiEndpoint
    message: MPI.Message
    source: int
    tag: int
    nbytes: int

    def receive(self, buffer: Bytes) -> Request:
        """Starts receiving into ``buffer`` [at least nbytes], which must stay alive and untouched until done."""
        try:
            return self.message.Irecv([buffer, self.nbytes, MPI.BYTE])
        except MPI.Exception as error:
            self.endpoint.fail(error)


class MpiEndpoint:
    """One rank's link to the others, over one communicator. Not thread-safe; nothing here blocks.

    Messages between two ranks are matched in the order sent. Every method raises PeerFailed for a dead rank, where Open
    MPI runs with ULFM, and TransportError.

    Attributes:
        largest_bytes: of a message. roles: sends of ``give_roles``, kept until their receivers have taken them.
    """

    any_source: int = MPI.ANY_SOURCE
    any_tag: int = MPI.ANY_TAG

    def __init__(self, comm: MPI.Intracomm) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = comm
        self._status = MPI.Status()
        self._failed: frozenset[int] = frozenset()
        self.roles: list[Request] = []
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.fault_tolerant = _has_ulfm()
        self.largest_bytes = _OPEN_MPI_BYTES if MPI.get_vendor()[0] == "Open MPI" else sys.maxsize

    def send(self, buffer: bytes | Bytes, rank: int, tag: int) -> Request:
        """Starts sending; done when the receiver has matched *and* the buffer is free, so messages do not accumulate.

        Synchronous-mode: a small one would otherwise count as done while it still queues at the receiver.
        """
        if len(buffer) > self.largest_bytes:
            raise TransportError(
                f"a message of {len(buffer):,} bytes is too large for Open MPI, which ends the job beyond "
                f"{self.largest_bytes:,}: make the network smaller, use MPICH, or on one machine no --launcher mpirun"
            )
        try:
            return self._comm.Issend([buffer, MPI.BYTE], rank, tag)
        except MPI.Exception as error:
            self.fail(error)

    def probe(self, source: int, tag: int) -> MpiIncoming | None:
        """Matches the next message, or None. Open MPI looks *before* it lets things progress: hence a second look."""
        status = self._status
        try:
            message = self._comm.Improbe(source, tag, status) or self._comm.Improbe(source, tag, status)
        except MPI.Exception as error:
            self.fail(error)
        if message is None:
            return None
        return MpiIncoming(self, message, status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE))

    def is_done(self, request: Request) -> bool:
        """Whether a transfer is complete; lets it progress."""
        try:
            return request.Test()
        except MPI.Exception as error:
            self.fail(error)

    def over(self, requests: Sequence[Request]) -> tuple[Sequence[int], bool]:
        """Places of the sends that are complete or never will be, and whether one never will be: its receiver died.

        One call for many; more calls find those that had not progressed yet.
        """
        try:
            found = MPI.Request.Testsome(requests)
        except MPI.Exception:
            return self._over_one_by_one(requests), True
        return range(len(requests)) if found is None else found, False

    def _over_one_by_one(self, requests: Sequence[Request]) -> list[int]:
        """After an error, which does not say whose it is. Requests that are complete already are so again."""
        places = []
        for place, request in enumerate(requests):
            try:
                if self.is_done(request):
                    places.append(place)
            except PeerFailed:
                places.append(place)
        return places

    def failed_ranks(self) -> frozenset[int]:
        """Ranks known to have died; from then on probing any source works again."""
        if not self.fault_tolerant:
            return self._failed
        self._comm.Ack_failed()
        failed = self._comm.Get_failed()
        world = self._comm.Get_group()
        try:
            ranks = MPI.Group.Translate_ranks(failed, range(failed.Get_size()), world)
            self._failed = frozenset(int(rank) for rank in ranks)
        finally:
            failed.Free()
            world.Free()
        return self._failed

    def abort_job(self, exit_code: int) -> None:
        """Kills every rank, this one included. A node that does not answer cannot keep this process."""
        with deadline(LEAVE_S, f"MPI_Abort did not return within {LEAVE_S:g} s", exit_code):
            _library().MPI_Abort(ctypes.c_void_p(MPI._handleof(self._comm)), exit_code)
        os._exit(exit_code)

    def fail(self, error: MPI.Exception) -> NoReturn:
        """Raises what an MPI error means."""
        if self.fault_tolerant and error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            raise PeerFailed("an MPI rank has died") from error
        raise TransportError(f"MPI failed: {error.Get_error_string()}") from error


def join_world(info: LaunchInfo, timeout_s: float) -> MpiEndpoint:
    """Initialises MPI unless it is already, and checks that it sees the ranks that the launcher announced.

    MPI_Init waits for every rank. When it takes longer than ``timeout_s``, the process ends with a message. Raises
    LaunchError (see ``verify_library`` and ``verify_world``).
    """
    verify_library(info, mpi_library())
    if not MPI.Is_initialized():
        for name, value in _settings(info).items():
            os.environ.setdefault(name, value)
        late = (
            f"rank {info.rank} on {socket.gethostname()} waited {timeout_s:g} s in MPI_Init: another rank did not "
            "start, or died while starting; see its message, or raise --peer-timeout-s where nodes start slowly"
        )
        with deadline(timeout_s, late, EXIT_ABORTED):
            _initialise()
        atexit.register(_finalise)
    verify_world(info, MPI.COMM_WORLD.Get_size(), mpi_library())
    return MpiEndpoint(MPI.COMM_WORLD)


def _settings(info: LaunchInfo) -> dict[str, str]:
    """Variables that Open MPI and UCX read in MPI_Init."""
    ulfm = _ULFM_SETTINGS if _has_ulfm() else {}
    return ulfm | (_ONE_HOST_SETTINGS if info.size is not None and info.size == local_size(os.environ) else {})


def _initialise() -> None:
    """MPI_Init_thread, past mpi4py, which holds the interpreter lock in it: other threads go on importing and watching.

    One thread at a time talks to MPI: the full thread level would take a lock in every call.
    """
    provided = ctypes.c_int()
    status = _library().MPI_Init_thread(None, None, ctypes.c_int(MPI.THREAD_SERIALIZED), ctypes.byref(provided))
    if status != MPI.SUCCESS:
        raise LaunchError(f"MPI_Init failed with status {status}; see the messages of MPI above")


def _finalise() -> None:
    """MPI_Finalize, which may wait for ranks that are gone, or have more to do.

    Whoever gets here has ended in order as far as others are concerned. A status other than 0 would make mpirun end
    them too, a learner that still writes its summary among them; only rank 0 speaks for the job.
    """
    if not MPI.Is_finalized():
        speaks = MPI.COMM_WORLD.Get_rank() == 0
        late = f"MPI_Finalize did not return within {LEAVE_S:g} s" if speaks else ""
        with deadline(LEAVE_S, late, EXIT_ABORTED if speaks else 0):
            _library().MPI_Finalize()


def _library() -> ctypes.CDLL:
    """The MPI library that mpi4py is linked with."""
    return ctypes.CDLL(MPI.__file__)


def mpi_library() -> str:
    """Name and version of the MPI that mpi4py runs on, e.g. ``Open MPI 5.0.11``."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(str(part) for part in version)}"


def _has_ulfm() -> bool:
    """Whether this job survives dead ranks: Open MPI >= 5 whose launcher switched its fault tolerance on."""
    name, version = MPI.get_vendor()
    enabled = os.environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "on", "t", "y")
    return enabled and name == "Open MPI" and version >= (5, 0, 0)
