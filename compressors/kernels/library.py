"""The compiled kernels of ``chain.c``: a shared library beside it, made when the package is installed. No torch."""

from __future__ import annotations

import ctypes
import functools
import platform
import zlib
from pathlib import Path

PATH = Path(__file__).with_name("_chain.so")
SOURCES = ("chain.c", "dense.h")
MACHINES = ("x86_64",)


def load_kernels() -> ctypes.CDLL | None:
    """The library; None where there is none that loads here."""
    return load_or_why()[0]


@functools.cache
def load_or_why() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none."""
    if platform.machine() not in MACHINES:
        return None, f"there are none for {platform.machine()}"
    if not PATH.exists():
        return None, (
            "they were not compiled when the package was installed, as there was no C compiler or it failed: "
            "pip install --verbose tells"
        )
    try:
        library = ctypes.CDLL(str(PATH))
        library.source.restype = ctypes.c_uint32
        if library.source() != checksum(PATH.parent):
            return None, "the library was compiled from other sources: install the package again"
    except (OSError, AttributeError) as error:
        return None, f"the library does not load ({error}): install the package again"
    number, pointer, step = ctypes.c_int32, ctypes.c_void_p, ctypes.c_long
    library.pack_floats.argtypes = (pointer, number, number, step, step, number, pointer)
    library.pack_codes.argtypes = (pointer, number, number, step, step, number, number, pointer, pointer)
    library.pack_floats.restype = library.pack_codes.restype = None
    library.run_avx512.restype = library.run_avx2.restype = None
    return library, ""


def checksum(directory: Path) -> int:
    """Of the sources, which the library made from them knows too."""
    return zlib.crc32(b"".join((directory / name).read_bytes() for name in SOURCES))


def lanes_here() -> int:
    """Floats in a vector of the best kernels that this CPU runs: 16 with AVX-512 and VNNI, 8 with AVX2, 0 for none."""
    library = load_kernels()
    return 0 if library is None else int(library.lanes())


def why_none() -> str:
    """Why no policy runs on these kernels here; "" where they can."""
    library, reason = load_or_why()
    if library is not None and not lanes_here():
        return "this CPU has neither AVX2 nor AVX-512 with VNNI"
    return reason
