"""The learner's device, precision and memory allocation."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

import torch

from accel.compressors.cpu import cpu_flags
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.monitor.timers import DevicePhases, Event, PhaseTimer, UpdatePhases
from accel.networks import parse_network

# Parameters of glibc's mallopt (malloc.h); a trim threshold of -1 is none.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# An AVX512 CPU without them computes bf16 by way of single precision, which is slower than single precision itself.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def choose_device(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one. Raises ConfigError for a device that is not there."""
    available = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device = 'cuda', but torch sees no CUDA device: use --device cpu, or look at accel doctor")
    if available:
        # torch says this once when the thread of its backward pass first multiplies; it means nothing to a user.
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")
    return torch.device("cuda" if available else "cpu")


def take_gpu(place: int) -> None:
    """Of several GPUs let this process see one, so that a node's learners do not share the first while others idle.

    CUDA reads what is visible when it starts: nothing of this process may have used it before. ``place`` counts the
    learners of a node from 0.
    """
    count = torch.cuda.device_count()
    if count > 1:
        os.environ[_VISIBLE] = gpu_at(place, count, os.environ.get(_VISIBLE, ""))


def gpu_at(place: int, count: int, visible: str) -> str:
    """The name of one of ``count`` GPUs, dealt out in turns; ``visible``: their names, with commas; empty: numbers."""
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[place % count].strip()


def choose_precision(config: TrainConfig, device: torch.device, cpuinfo: str | None = None) -> Literal["none", "bf16"]:
    """The learner's precision. ``auto`` follows measurements: with bf16 an update of a convolutional network takes 0.6
    of the time on a CPU that has it.

    Args:
        cpuinfo: the text of ``/proc/cpuinfo``; read from this machine when None.
    Raises:
        ConfigError: bf16 on a CPU without instructions for it.
    """
    on_cpu = device.type == "cpu"
    has_bf16 = on_cpu and not _BF16_FLAGS.isdisjoint(cpu_flags(cpuinfo))
    if config.learner.mixed_precision == "auto":
        network = parse_network(config.policy.network)
        suits = network.is_cnn and network.core is None and "qat" not in config.compression.compressor
        return "bf16" if suits and has_bf16 else "none"
    if config.learner.mixed_precision == "bf16" and on_cpu and not has_bf16:
        raise ConfigError(
            "mixed_precision = 'bf16', but the learner is on a CPU without bf16 instructions (AVX512-BF16 or AMX), "
            "where it is slower: use --mixed-precision none, or a CUDA device"
        )
    return config.learner.mixed_precision


def update_phases(device: torch.device, timer: PhaseTimer) -> UpdatePhases:
    """What times updates: the device's events, or on a CPU the host's clock."""
    if device.type != "cuda":
        return UpdatePhases(timer)
    make_event = cast(Callable[[], Event], partial(torch.cuda.Event, enable_timing=True, blocking=True))
    return DevicePhases(timer, make_event, rest="backward")


def keep_freed_memory() -> bool:
    """Let this process reuse freed blocks of any size instead of returning them to the kernel.

    By default glibc maps each large block anew, and the kernel zeroes its pages one fault at a time: for a learner,
    whose updates allocate and free the same activations each time, this takes a large part of the time. Memory in use
    stays at its peak between updates.

    Returns:
        Whether the C library accepted it; False if it is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, 0)
    return bool(kept)
