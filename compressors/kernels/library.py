"""The compiled kernels of ``chain.c``: a shared library beside it, made when the package is installed. No torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import zlib
from pathlib import Path

PATH = Path(__file__).with_name("_chain.so")
SOURCES = ("chain.c", "dense.h")
MACHINES = ("x86_64", "AMD64")
SWITCH = "ACCEL_KERNELS"
"""Environment variable; ``0``: act without these kernels."""


@functools.cache
def load_kernels() -> ctypes.CDLL | None:
    """The library, or None: it was not compiled, it does not load here, or it is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        library = ctypes.CDLL(str(PATH))
        library.source.restype = ctypes.c_uint32
        if library.source() != checksum(PATH.parent):  # left over from other sources
            return None
    except (OSError, AttributeError):  # absent, for another machine, or no such function
        return None
    number, pointer, step = ctypes.c_int32, ctypes.c_void_p, ctypes.c_long
    library.pack_floats.argtypes = (pointer, number, number, step, step, number, pointer)
    library.pack_codes.argtypes = (pointer, number, number, step, step, number, number, pointer, pointer)
    library.pack_floats.restype = library.pack_codes.restype = None
    library.run_avx512.restype = library.run_avx2.restype = None
    return library


def checksum(directory: Path) -> int:
    """Of the sources, which the library made from them knows too."""
    return zlib.crc32(b"".join((directory / name).read_bytes() for name in SOURCES))


def lanes_here() -> int:
    """Floats in a vector of the best kernels that this CPU runs: 16 with AVX-512 and VNNI, 8 with AVX2, 0 for none."""
    library = load_kernels()
    return 0 if library is None else int(library.lanes())


def why_none() -> str:
    """Why no policy runs on these kernels here; "" where they can."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches them off"
    if load_kernels() is not None:
        return "" if lanes_here() else "this CPU has neither AVX2 nor AVX-512 with VNNI"
    if platform.machine() not in MACHINES:
        return f"there are none for {platform.machine()}"
    if PATH.exists():
        return "the library is of other sources, or does not load: install the package again"
    return "they were not compiled when the package was installed: install a C compiler, then the package again"
