"""Learners of one run as a process group of torch: NCCL where each has a CUDA device of its own, else gloo.

Learners find each other through MPI, and where all are on one host they listen on its loopback address alone. Across
hosts number 0 opens a port for a moment, which reads nothing, and says where; the others try its addresses until one
answers with the token that number 0 gave them, and take part with the one of their own from which they reached it.
``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME`` choose an interface instead. A learner that dies closes its
connections, which ends whatever the others wait for on the host; one that is silent does so after ``timeout_s``. The
others' sums on the device are given up then.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel.algorithms.gradient_exchange import GradientExchange
from accel.errors import ConfigError, TransportError
from accel.json_object import Json
from accel.transport.learners import LearnerLink
from accel.transport.network import LOOPBACK, addresses, door, network_name, reach

Result = TypeVar("Result")
logger = logging.getLogger("accel")
_UUID_PARTS = 5
_TOKEN_BYTES = 32
_INTERFACE = "GLOO_SOCKET_IFNAME"


class _Group(Protocol):
    """torch's process groups, whose stubs lack their operations."""

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work: ...

    def allgather(self, found: list[list[Tensor]], own: list[Tensor], /) -> dist.Work: ...

    def broadcast(self, tensors: list[Tensor], options: dist.BroadcastOptions, /) -> dist.Work: ...

    def abort(self) -> None: ...


def own_gpus(identities: Sequence[Sequence[float]]) -> bool:
    """Whether every learner has a GPU for itself, as NCCL needs; by the numbers of each one's GPU, zeros for none."""
    return all(map(any, identities)) and len(set(map(tuple, identities))) == len(identities)


class ProcessGroup(GradientExchange):
    """Over torch's process groups. Learners that share a GPU go by way of the host.

    Args:
        store: where the group's members meet. learner, learners: this one's number, and how many there are.
        address: of this learner, which the others can reach; empty: torch's choice. device: the gradients'.
    """

    def __init__(
        self,
        store: Store,
        learner: int,
        learners: int,
        *,
        timeout_s: float,
        address: str = "",
        device: torch.device | None = None,
    ) -> None:
        self.learner, self.learners = learner, learners
        self.broken = False
        self._timeout_s = timeout_s
        self._store = store  # which torch uses as long as the group lives
        self._cuda: _Group | None = None
        self._cpu = self._guarded(lambda: _make_gloo(store, learner, learners, address, timeout_s))
        identities = self.gather(_gpu(device))
        if own_gpus(identities):
            self._cuda = self._guarded(lambda: _make_nccl(store, learner, learners, timeout_s))
            # NCCL connects at its first sum and waits for all without a limit: now, as all are here
            self.sum([torch.zeros(1, device=device)])
            torch.cuda.synchronize(device)
        elif learner == 0 and all(map(any, identities)):
            logger.warning("learners share a GPU: their gradients go by way of the host; one learner a GPU is faster")

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """In one message."""
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        if self._cuda is None:
            joined = joined.cpu()
        group = self._cuda if joined.is_cuda and self._cuda is not None else self._cpu
        self._guarded(lambda: group.allreduce([joined]).wait())
        parts = torch.split(joined, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every learner's numbers, by learner."""
        own = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.learners)]
        self._guarded(lambda: self._cpu.allgather([found], [own]).wait())
        return [theirs.tolist() for theirs in found]

    def share(self, content: bytes | None, learner: int = 0) -> bytes:
        """The content that this one of the learners gives, on all of them."""
        size = int(self.gather([len(content or b"")])[learner][0])
        if size == 0:
            return b""
        given = content if self.learner == learner and content else bytes(size)
        buffer = torch.frombuffer(bytearray(given), dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = learner
        self._guarded(lambda: self._cpu.broadcast([buffer], options).wait())
        return buffer.numpy().tobytes()

    def _guarded(self, action: Callable[[], Result]) -> Result:
        """What torch raises as RuntimeError is another learner's end, unless it is the device's.

        Sums that are under way on the device then never end unless they are given up.
        """
        try:
            return action()
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (RuntimeError, socket.gaierror) as error:
            if self._cuda is not None:
                self.broken = True
                self._cuda.abort()
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TransportError(
                f"another learner is gone, or was silent for {self._timeout_s:g} s; its own message says why ({reason})"
            ) from error


class _LinkStore(Store):
    """Where the group's members meet while it is made: each gives at most one value a turn, and all take part in it.

    torch's own store would be a server that anyone may connect to.
    """

    def __init__(self, link: LearnerLink) -> None:
        super().__init__()
        self._link = link
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch's stubs say text
        """On all learners, once their group stands on this one: torch has threads that may call it later."""
        self._values[key] = value
        if not self._link.joined:
            self._take_turn({key: value.hex()})

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """For the others' values, as long as the link waits for them."""
        if not self._link.joined and not self.check(keys):
            self._take_turn({})

    def get(self, key: str) -> bytes:
        """Another learner's value, or this one's."""
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return self._values.keys() >= set(keys)

    def _take_turn(self, told: Json) -> None:
        for values in self._link.gather(told):
            self._values |= {key: bytes.fromhex(str(value)) for key, value in values.items()}


def join_learners(link: LearnerLink, device: torch.device, *, timeout_s: float) -> ProcessGroup:
    """Meet the run's other learners. Raises TransportError, ConfigError: see ``ProcessGroup``."""
    address = _own_address(link)
    if address == LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    group = ProcessGroup(
        _LinkStore(link), link.learner, link.learners, timeout_s=timeout_s, address=address, device=device
    )
    link.joined = True
    return group


def _own_address(link: LearnerLink) -> str:
    """This learner's address that all others reach; empty: torch's choice. Raises TransportError: there is none."""
    networks = [told["network"] for told in link.gather({"network": network_name()})]
    if len(set(networks)) == 1:
        return LOOPBACK
    token = secrets.token_bytes(_TOKEN_BYTES)
    with door(token) if link.learner == 0 else nullcontext(0) as port:
        first = link.gather({"addresses": addresses(), "port": port, "token": token.hex()})[0]
        host, own = "", ""
        if networks[link.learner] != networks[0] and _INTERFACE not in os.environ:
            # one that both hosts have, such as a container bridge's, leads to this one
            theirs = [str(each) for each in cast(list[object], first["addresses"]) if each not in addresses()]
            host, own = reach(theirs, int(str(first["port"])), bytes.fromhex(str(first["token"])))
        reached = [str(told["reached"]) for told in link.gather({"reached": host})]
    return own or next(filter(None, reached), "")


def _gpu(device: torch.device | None) -> list[float]:
    """The five parts of a GPU's UUID, of 48 bits at most; zeros where the device is none."""
    if device is None or device.type != "cuda":
        return [0.0] * _UUID_PARTS
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    return [float(int(part, 16)) for part in uuid.split("-")]


def _make_gloo(store: Store, learner: int, learners: int, address: str, timeout_s: float) -> _Group:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout_s)
    interface = os.environ.get(_INTERFACE, "")
    device = (
        dist.ProcessGroupGloo.create_device(interface=interface)
        if interface or not address
        else dist.ProcessGroupGloo.create_device(hostname=address)
    )
    options._devices = [device]
    group = dist.ProcessGroupGloo(PrefixStore("gloo", store), learner, learners, options)
    return cast(_Group, group)


def _make_nccl(store: Store, learner: int, learners: int, timeout_s: float) -> _Group:
    if not dist.is_nccl_available():
        raise ConfigError("several learners on CUDA need a torch with NCCL: use --device cpu, or one learner")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    group = dist.ProcessGroupNCCL(PrefixStore("nccl", store), learner, learners, options)
    return cast(_Group, group)
