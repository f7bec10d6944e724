"""CPU features that decide between int8 variants. No torch."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

# x86 with VNNI sums 8-bit products without saturation; AVX2 alone saturates pairs of U8·S8 products at 16 bits.
VNNI = "vnni"
AVX2 = "avx2"
ARM = "arm"
_VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx512vnni", "avxvnni"})
_ARM_MACHINES = ("arm", "aarch64")


@functools.cache
def cpu_features(cpuinfo: str | None = None, machine: str | None = None) -> frozenset[str]:
    """Features of a CPU: a subset of ``VNNI``, ``AVX2`` and ``ARM``; reading them takes as long as loading a policy.

    Args:
        cpuinfo: the text of ``/proc/cpuinfo``; read from this machine when None (empty where there is none).
        machine: the architecture's name; this machine's when None.
    """
    machine = platform.machine() if machine is None else machine
    if machine.lower().startswith(_ARM_MACHINES):
        return frozenset({ARM})
    flags = cpu_flags(cpuinfo)
    found = {AVX2} & flags
    if flags & _VNNI_FLAGS:
        found.add(VNNI)
    return frozenset(found)


def cpu_flags(cpuinfo: str | None = None) -> set[str]:
    """What an x86 CPU says that it has, by ``/proc/cpuinfo``; of this machine when None."""
    for line in (_read_cpuinfo() if cpuinfo is None else cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split())
    return set()


def _read_cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""
