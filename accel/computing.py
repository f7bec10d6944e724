"""Where and how the learner computes: its device, the precision of its passes, and what becomes of freed memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from accel.errors import ConfigError

# Parameters of glibc's mallopt (malloc.h); a trim threshold of -1 is none.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1

_CPUINFO = Path("/proc/cpuinfo")
# An AVX512 CPU without them computes bf16 by way of single precision, which is slower than single precision itself.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def choose_device(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one. Raises ConfigError for a device that is not there."""
    available = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device = 'cuda', but torch sees no CUDA device: use --device cpu, or look at accel doctor")
    return torch.device("cuda" if available else "cpu")


def check_precision(mixed_precision: str, device: torch.device, cpuinfo: str | None = None) -> None:
    """Refuse a precision that would only slow this learner down.

    Args:
        mixed_precision: as in the config. device: the learner's.
        cpuinfo: the text of ``/proc/cpuinfo``; read from this machine when None.
    Raises:
        ConfigError: bf16 on a CPU without instructions for it.
    """
    if mixed_precision == "none" or device.type != "cpu":
        return
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    if not flags & _BF16_FLAGS:
        raise ConfigError(
            f"mixed_precision = '{mixed_precision}', but the learner is on a CPU without bf16 instructions "
            f"(AVX512-BF16 or AMX), where it is slower: use --mixed-precision none, or a CUDA device"
        )


def keep_freed_memory() -> bool:
    """Let this process reuse freed blocks of any size instead of returning them to the kernel.

    By default glibc maps each large block anew, and the kernel zeroes its pages one fault at a time: for a learner,
    whose every update takes and frees the same activations, that is a good part of its time. Memory in use stays at its
    highest level instead of falling between updates.

    Returns:
        Whether the C library has taken it; False where it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, 0)
    return bool(kept)
