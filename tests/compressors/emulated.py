"""The compiled kernels that tests run: those of this CPU, and others emulated.

Those for ARM run under qemu, where it is installed; those for AVX-VNNI with its one instruction written out in AVX2.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import platform
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, cast

import pytest

from accel.compressors.kernels import library
from accel.compressors.kernels.library import KERNELS, Kernels, kernels_here

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
# the last has no dot products
CPUS = {"dot_products": "max", "neon": "cortex-a72"}
_CODES, _WIDE, _NORM, _INPUT, _CONSTANT, _CONVOLUTION = 1, 2, 3, 11, 12, 13

_AVX_VNNI = "avx_vnni"

needs_emulator = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"needs Debian's packages {PACKAGES}"
)

_needs_avx2 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("cc"), reason="needs x86 and a C compiler"
)


@functools.cache
def _compiled(compiler: str, name: str, *flags: str) -> str:
    """A file of this folder, which includes the kernels' source, compiled."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory)
    path, all_flags = f"{directory}/made", ("-O3", "-std=c11", "-Wall", "-Werror", "-DSOURCE=0u", *flags)
    sources = (f"-I{library.PATH.parent}", str(Path(__file__).with_name(name)))
    subprocess.run([compiler, *all_flags, *sources, "-o", path], check=True, timeout=300)
    return path


class Emulator:
    """A library for x86 whose chains run on an emulated ARM; ``runs`` are the bits of what that CPU runs."""

    def __init__(self, suffix: str) -> None:
        packing = kernels_here()[0].library
        self.pack_floats, self.pack_codes = packing.pack_floats, packing.pack_codes
        command = [EMULATOR, "-cpu", CPUS[suffix], _compiled(COMPILER, "run_chain.c", "-static"), suffix]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(process.communicate)  # the end of its input ends it
        self._to, self._from = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        (self.runs,) = struct.unpack("<i", self._from.read(4))

    def run(self, reference: Any, rows: Any, pointers: Any) -> None:
        """As the library's, with what ``bind`` hands to it."""
        chain, rows = reference._obj, rows.value
        steps = [chain.each[index] for index in range(chain.steps)]
        results = [chain.made[index] for index in range(chain.results)]
        columns = 4 * chain.stride
        arrays = [(chain.mean, columns), (chain.factor, columns)]
        for count, each in ((chain.steps, chain.each), (chain.results, chain.made)):
            arrays += [(ctypes.addressof(each.contents), count * ctypes.sizeof(each.contents))]
        widths = [chain.features, *(step.inputs for step in steps if step.kind == _INPUT)]
        arrays += [(pointer, 4 * rows * width) for pointer, width in zip(pointers, widths, strict=False)]
        if chain.channels:  # images of bytes
            arrays[4] = (pointers[0], rows * chain.features)
        for step in steps:
            integers, vector = step.kind in (_CODES, _WIDE, _CONVOLUTION), 4 * step.outputs * (1 + (step.kind == _WIDE))
            weights = vector if step.kind in (_NORM, _CONSTANT) else step.outputs * step.inputs * (1 if integers else 4)
            arrays += [(step.weights, weights), (step.bias, vector), (step.scale, vector)]
        self._to.write(struct.pack("<i", rows) + bytes(chain))
        for address, size in arrays:
            self._to.write(struct.pack("<q", size if address else 0))
            self._to.write(ctypes.string_at(address, size) if address else b"")
        self._to.flush()
        for pointer, result in zip(pointers[chain.inputs :], results, strict=True):
            made = self._from.read(4 * rows * result.columns)
            ctypes.memmove(pointer, made, len(made))

    run_neon = run_dot_products = run


@functools.cache
def emulated(suffix: str) -> Kernels:
    """Kernels for other CPUs than this one."""
    kernels = next(kernels for kernels in KERNELS if kernels.suffix == suffix)
    own = kernels_here()[0].library
    if suffix in CPUS or own is None:
        return Kernels(*kernels[:-1], library=cast(ctypes.CDLL, Emulator(suffix)))
    made = ctypes.CDLL(_compiled("cc", "avx_vnni.c", "-shared", "-fPIC"))
    for function in ("pack_floats", "pack_codes"):
        getattr(made, function).argtypes = getattr(own, function).argtypes
    return Kernels(*kernels[:-1], library=made)


def every_kernels() -> list[Any]:
    """Suffixes of the kernels that tests run here, for ``kernels_of``."""
    here = [kernels.suffix for kernels in kernels_here()]
    others = {_AVX_VNNI: _needs_avx2, **dict.fromkeys(CPUS, needs_emulator)}
    return [
        *here,
        *(pytest.param(suffix, marks=mark) for suffix, mark in others.items() if here and suffix not in here),
    ]


def kernels_of(suffix: str) -> Kernels:
    """The kernels with this suffix: this CPU's, or emulated ones."""
    own = [kernels for kernels in kernels_here() if kernels.suffix == suffix]
    return own[0] if own else emulated(suffix)
