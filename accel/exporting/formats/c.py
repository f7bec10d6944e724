"""``c``: C99 sources for micro-controllers, by emx-onnx-cgen; no library, no heap, one observation a call."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from accel.errors import BundleError, ExportError, MissingExtraError
from accel.exporting.formats.base import Written
from accel.exporting.graphs import fixed_batch, integer_products, operators
from accel.exporting.run_policy import empty_arrays
from accel.extras import install_command
from accel.players import ActingSession, Array
from accel.spaces import Json
from compressors.artifact import CompressedPolicy, TensorSpec

SOURCE, HEADER, FUNCTION = "policy.c", "policy.h", "policy"
_FLAGS = ("-std=c99", "-O2")
_TIMEOUT_S = 600
_C_TYPES = {"float32": "float", "uint8": "uint8_t"}
_NONE_BYTES = 0


class CFormat:
    """See ``Format``."""

    name = "c"
    batch = 1
    runs_onnx = False

    def require(self) -> None:
        """Raise MissingExtraError without the generator, ExportError without a compiler to check its work with."""
        if importlib.util.find_spec("emx_onnx_cgen") is None:
            raise MissingExtraError(f"format c needs emx-onnx-cgen: {install_command('c')}")
        compiler()

    def write(self, artifact: CompressedPolicy, directory: Path) -> Written:
        """See ``Format.write``."""
        from emx_onnx_cgen import Compiler
        from emx_onnx_cgen.compiler import CompilerOptions

        model = fixed_batch(integer_products(onnx.load_from_string(artifact.model)), 1)
        options = CompilerOptions(
            model_name=FUNCTION, large_temp_threshold_bytes=_NONE_BYTES, large_weight_threshold=_NONE_BYTES
        )
        try:
            source = Compiler(options).compile(model)
        except Exception as error:  # the generator's errors share no base but Exception
            raise ExportError(
                f"format c cannot take scheme {artifact.scheme!r} of this policy: {error}; choose another scheme, such "
                "as fp32 or int8, or another format"
            ) from error
        (directory / SOURCE).write_text(source, encoding="utf-8")
        (directory / HEADER).write_text(_header(artifact), encoding="utf-8")
        sizes = measure(directory)
        facts: Json = {"function": FUNCTION, "operators": operators(model), "compiled": sizes}
        return Written((SOURCE, HEADER), int(str(sizes["code_bytes"])) + int(str(sizes["static_bytes"])), facts)

    def session(self, directory: Path, contract: Mapping[str, Any], batch: int) -> ActingSession:
        """See ``Format.session``."""
        return CSession(directory, contract, batch)


class CSession:
    """An ``ActingSession`` on the compiled sources, called row by row."""

    def __init__(self, directory: Path, contract: Mapping[str, Any], batch: int) -> None:
        self.inputs: Mapping[str, Array] = empty_arrays(contract["inputs"], batch)
        self.outputs: Mapping[str, Array] = empty_arrays(contract["outputs"], batch)
        self._directory = tempfile.TemporaryDirectory()
        library = Path(self._directory.name) / "policy.so"
        _compile(directory, "-shared", "-fPIC", "-o", str(library), str(directory / SOURCE), "-lm")
        self._function = ctypes.CDLL(str(library))[FUNCTION]
        self._function.restype = None
        arrays = (*self.inputs.values(), *self.outputs.values())
        self._calls = [tuple(ctypes.c_void_p(array[row].ctypes.data) for array in arrays) for row in range(batch)]

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``."""
        for pointers in self._calls:
            self._function(*pointers)


def compiler() -> str:
    """The C compiler: CC, cc or gcc. Raises ExportError where there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise ExportError("format c needs a C compiler to check what it writes: install gcc, or name one in CC")


def measure(directory: Path) -> Json:
    """Compile the sources for this machine.

    Returns:
        ``code_bytes`` (instructions and constants, which may stay in flash), ``static_bytes`` (data and bss, RAM),
        ``stack_bytes`` (the deepest frame of the policy and of what it calls; None where the compiler cannot tell), and
        with what they were measured.
    """
    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch) / "policy.o"
        _compile(directory, "-fstack-usage", "-c", "-o", str(compiled), str(directory / SOURCE))
        code, static = _section_bytes(compiled)
        usage = compiled.with_suffix(".su")
        frames = re.findall(r":(\w+)\t(\d+)\t", usage.read_text()) if usage.exists() else []
    own = sum(int(size) for name, size in frames if name == FUNCTION)
    deepest = max((int(size) for name, size in frames if name != FUNCTION), default=0)
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return {
        "code_bytes": code,
        "static_bytes": static,
        "stack_bytes": own + deepest if frames else None,
        "compiler": version.stdout.partition("\n")[0],
        "flags": " ".join(_FLAGS),
    }


def _section_bytes(compiled: Path) -> tuple[int, int]:
    """(text, data + bss) of an object file, from size(1)."""
    done = subprocess.run(["size", str(compiled)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise ExportError(f"size of the compiled policy is unknown: {done.stderr.strip()}; install binutils")
    text, data, bss, *_ = done.stdout.splitlines()[1].split()
    return int(text), int(data) + int(bss)


def _compile(directory: Path, *arguments: str) -> None:
    done = subprocess.run(
        [compiler(), *_FLAGS, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BundleError(f"{directory / SOURCE} does not compile: {done.stderr.strip()[:500]}")


def _header(artifact: CompressedPolicy) -> str:
    """The prototype, with the arrays' shapes and what they mean."""
    arguments = [f"const {_argument(spec)}" for spec in artifact.inputs] + [
        _argument(spec) for spec in artifact.outputs
    ]
    return "\n".join(
        [
            f"/* {artifact.scheme} policy, version {artifact.version}; one observation a call, see contract.json. */",
            "#ifndef POLICY_H",
            "#define POLICY_H",
            "#include <stdint.h>",
            "",
            f"void {FUNCTION}({', '.join(arguments)});",
            "",
            "#endif",
            "",
        ]
    )


def _argument(spec: TensorSpec) -> str:
    kind = _C_TYPES.get(spec.dtype, np.dtype(spec.dtype).name)
    return f"{kind} {spec.name}{''.join(f'[{size}]' for size in spec.with_batch(1))}"
