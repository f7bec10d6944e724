"""The compiled kernels of ``chain.c``: a shared library beside it, made when the package is installed. No torch."""

from __future__ import annotations

import ctypes
import functools
import platform
import zlib
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).with_name("_chain.so")
SOURCES = ("chain.c", "dense.h", "tower.h")
MACHINES = ("x86_64", "aarch64")


class Kernels(NamedTuple):
    """What is compiled for one set of vector instructions.

    Attributes:
        suffix: of the function that runs a chain.
        name: of the instructions.
        lanes: floats in a vector.
        greatest: size of weights in codes whose products are summed exactly.
        shift: taken off the codes of activations before they are multiplied.
        library: has the functions; None where it is not loaded.
    """

    suffix: str
    name: str
    lanes: int
    greatest: int = 128
    shift: int = 0
    library: ctypes.CDLL | None = None

    def weights(self) -> tuple[Any, Any]:
        """``magnitudes`` and ``write_codes``; see dense.h."""
        return self._function("magnitudes"), self._function("write_codes")

    def towers(self) -> tuple[Any, Any]:
        """``forward`` and ``backward`` of towers; see tower.h."""
        return self._function("forward"), self._function("backward")

    def _function(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.library, f"{name}_{self.suffix}")


# in the order of their bits in chain.c
KERNELS = (
    Kernels("avx512", "AVX-512 with VNNI", 16),
    Kernels("avx_vnni", "AVX-VNNI", 8),
    Kernels("avx2", "AVX2", 8, greatest=64),  # pairs of products are summed in 16 bits
    Kernels("dot_products", "NEON with dot products", 4, shift=128),
    Kernels("neon", "NEON", 4, shift=128),
)


def kernels_here() -> tuple[Kernels, ...]:
    """Those that this CPU runs, best first; none where there is no library that loads here."""
    return load_or_why()[0]


def why_none() -> str:
    """Why no policy runs on these kernels here; "" where they can."""
    return load_or_why()[1]


@functools.cache
def load_or_why() -> tuple[tuple[Kernels, ...], str]:
    """The kernels that this CPU runs, or why there are none."""
    if platform.machine() not in MACHINES:
        return (), f"there are none for {platform.machine()}"
    if not PATH.exists():
        return (), (
            "they were not compiled when the package was installed, as there was no C compiler or it failed: "
            "pip install --verbose tells"
        )
    try:
        library = ctypes.CDLL(str(PATH))
        library.source.restype = ctypes.c_uint32
        if library.source() != checksum(PATH.parent):
            return (), "the library was compiled from other sources: install the package again"
        number, pointer, step = ctypes.c_int32, ctypes.c_void_p, ctypes.c_long
        library.pack_floats.argtypes = (pointer, number, number, step, step, number, pointer)
        library.pack_codes.argtypes = (pointer, number, number, step, step, number, number, pointer, pointer)
        library.pack_floats.restype = library.pack_codes.restype = None
        bits = library.runs_here()
        found = tuple(kernels._replace(library=library) for bit, kernels in enumerate(KERNELS) if bits >> bit & 1)
        for kernels in found:
            getattr(library, f"run_{kernels.suffix}").restype = None
            magnitudes, write_codes = kernels.weights()
            magnitudes.argtypes = (pointer, step, step, pointer, pointer)
            write_codes.argtypes = (pointer, step, step, pointer, pointer, pointer, pointer, pointer)
            forward, backward = kernels.towers()
            forward.argtypes = (pointer, number, number, pointer, pointer, pointer)
            backward.argtypes = (*forward.argtypes, pointer, number, pointer, number, pointer)
            magnitudes.restype = write_codes.restype = forward.restype = backward.restype = None
    except (OSError, AttributeError) as error:
        return (), f"the library does not load ({error}): install the package again"
    return found, "" if found else "this CPU has no AVX2"


def checksum(directory: Path) -> int:
    """Of the sources, which the library made from them knows too."""
    return zlib.crc32(b"".join((directory / name).read_bytes() for name in SOURCES))
