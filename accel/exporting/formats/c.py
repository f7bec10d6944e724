"""``c``: C99 sources for micro-controllers, by emx-onnx-cgen; no library, no heap, one observation a call."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from accel.compressors.artifact import CompressedPolicy
from accel.display.progress import Progress
from accel.errors import BundleError, ExportError, MissingExtraError
from accel.exporting.formats.base import ExportFormat, Vectors, Written
from accel.exporting.formats.c_check import BUILD, CHECK, RUN, VECTORS, check_program, chosen_rows, vectors_header
from accel.exporting.formats.c_products import arrange_products, with_qualified_calls
from accel.exporting.run_policy import Array, Contract, empty_arrays
from accel.exporting.standard_operators import fixed_batch, integer_products, operators
from accel.json_object import Json
from accel.system.extras import install_command

SOURCE, HEADER, FUNCTION = "policy.c", "policy.h", "policy"
_FLAGS = ("-std=c99", "-pedantic-errors", "-O2")
_TIMEOUT_S = 600
_REFUSED = {"com.microsoft.MatMulNBits", "com.microsoft.DequantizeLinear"}


class CSession:
    """A ``PolicySession`` on the compiled sources, called row by row."""

    def __init__(self, directory: Path, contract: Contract, batch: int) -> None:
        self.inputs: Mapping[str, Array] = empty_arrays(contract["inputs"], batch)
        self.outputs: Mapping[str, Array] = empty_arrays(contract["outputs"], batch)
        function = ctypes.CDLL(str(compile_policy(directory)[0]))[FUNCTION]
        function.restype = None
        self._function = function
        arrays = (*self.inputs.values(), *self.outputs.values())
        self._calls = [tuple(ctypes.c_void_p(array[row].ctypes.data) for array in arrays) for row in range(batch)]

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``."""
        for pointers in self._calls:
            self._function(*pointers)


class CFormat(ExportFormat):
    """See ``ExportFormat``."""

    name = "c"
    session = CSession

    def require(self, *, writing: bool) -> None:
        """Raise MissingExtraError without a compiler, and for writing without the generator."""
        if writing and importlib.util.find_spec("emx_onnx_cgen") is None:
            raise MissingExtraError(f"format c needs emx-onnx-cgen: {install_command('c')}")
        compiler()

    def write(self, artifact: CompressedPolicy, directory: Path, vectors: Vectors, progress: Progress) -> Written:
        """See ``ExportFormat.write``."""
        from emx_onnx_cgen import Compiler
        from emx_onnx_cgen.compiler import CompilerOptions

        portable = integer_products(onnx.load_from_string(artifact.model))
        refused = sorted(_REFUSED & operators(portable).keys())
        if refused:
            raise ExportError(
                f"format c cannot take operator {refused[0]} of scheme {artifact.scheme!r}: C has no blocks of "
                "4-bit weights; choose int8(w4), int8 or fp32, or format onnx"
            )
        model = fixed_batch(portable, 1)
        options = CompilerOptions(model_name=FUNCTION, large_temp_threshold_bytes=0, large_weight_threshold=0)
        weights = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
        progress.begin(f"generating C for {weights:,} weights")
        try:
            source = Compiler(options).compile(model)
        except Exception as error:  # the generator's errors share no base but Exception
            raise ExportError(
                f"format c cannot take scheme {artifact.scheme!r} of this policy: {error}; choose another scheme, such "
                "as fp32 or int8, or another format"
            ) from error
        source, packed = arrange_products(source, model)
        source = with_qualified_calls(source)
        (directory / SOURCE).write_text(source, encoding="utf-8")
        (directory / HEADER).write_text(_header(source, artifact), encoding="utf-8")
        (directory / VECTORS).write_text(vectors_header(vectors), encoding="ascii")
        (directory / CHECK).write_text(check_program(vectors, artifact), encoding="ascii")
        progress.begin(f"compiling {len(source) / 1e6:,.1f} MB of C")
        _, compiled = compile_policy(directory)
        size = int(str(compiled["code_bytes"])) + int(str(compiled["static_bytes"]))
        facts: Json = {
            "batch": 1,
            "function": FUNCTION,
            "operators": operators(model),
            "packed_weight_bits": packed,
            "compiled": compiled,
            "check": {"build": BUILD, "run": RUN, "rows": len(chosen_rows(vectors))},
        }
        return Written((SOURCE, HEADER, CHECK, VECTORS), size, facts)

    def check(self, directory: Path) -> str | None:
        """Build ``check.c`` as the contract says, with this machine's compiler, and run it."""
        with tempfile.TemporaryDirectory(prefix="accel-c-") as place:
            here = Path(place) / "bundle"
            here.mkdir()
            for name in (SOURCE, HEADER, CHECK, VECTORS):
                shutil.copyfile(directory / name, here / name)
            _run(here, *compiler(), *shlex.split(BUILD)[1:])
            done = _start(here, RUN)
        said = "; ".join(done.stdout.splitlines())
        if done.returncode != 0:
            raise BundleError(f"{directory / CHECK} fails: {said}")
        return said


def compiler() -> tuple[str, ...]:
    """The C compiler's command: CC's, or else cc or gcc. Raises MissingExtraError without one."""
    chosen = os.environ.get("CC", "").strip()
    for words in [shlex.split(chosen)] if chosen else [["cc"], ["gcc"]]:
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    lacking = f"CC names {chosen!r}, which does not exist" if chosen else "there is no cc and no gcc here"
    raise MissingExtraError(
        f"format c needs a C compiler to run its sources, and {lacking}: install gcc, or name another compiler in CC"
    )


def compile_policy(directory: Path) -> tuple[Path, Json]:
    """Compile a bundle's sources for this machine, equal ones once.

    Returns:
        A shared library, and ``code_bytes`` (instructions and constants, which may stay in flash), ``static_bytes``
        (data and bss, in RAM), ``stack_bytes`` (the policy's frame and its deepest call; None where the compiler cannot
        tell), ``compiler`` and ``flags``.
    Raises:
        BundleError: they cannot be read or compiled. ExportError: the compiler cannot be run.
    """
    try:
        source = (directory / SOURCE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BundleError(f"{directory / SOURCE} cannot be read: {error}") from error
    return _compile(source)


@functools.lru_cache(maxsize=2)
def _compile(source: str) -> tuple[Path, Json]:
    here = Path(tempfile.mkdtemp(prefix="accel-c-"))
    atexit.register(shutil.rmtree, here, ignore_errors=True)
    (here / SOURCE).write_text(source, encoding="utf-8")
    _run(here, *compiler(), *_FLAGS, "-fPIC", "-fstack-usage", "-c", SOURCE)
    _run(here, *compiler(), "-shared", "-o", "policy.so", "policy.o", "-lm")
    text, data, bss, *_ = _run(here, "size", "policy.o").splitlines()[1].split()
    usage = here / "policy.su"
    frames = re.findall(r":(\w+)\t(\d+)\t", usage.read_text()) if usage.exists() else []
    own = sum(int(size) for name, size in frames if name == FUNCTION)
    deepest = max((int(size) for name, size in frames if name != FUNCTION), default=0)
    facts: Json = {
        "code_bytes": int(text),
        "static_bytes": int(data) + int(bss),
        "stack_bytes": own + deepest if frames else None,
        "compiler": _run(here, *compiler(), "--version").partition("\n")[0],
        "flags": " ".join(_FLAGS),
    }
    return here / "policy.so", facts


def _run(directory: Path, *command: str) -> str:
    done = _start(directory, *command)
    if done.returncode != 0:
        raise BundleError(f"{SOURCE} does not compile: {done.stderr.strip()[:500]}")
    return done.stdout


def _start(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"{command[0]} cannot be run: {error}; install gcc and binutils") from error


def _header(source: str, artifact: CompressedPolicy) -> str:
    """The prototype of the generated function, and where its arguments are explained."""
    (prototype,) = re.findall(rf"^void {FUNCTION}\(.*\)", source, re.MULTILINE)
    return "\n".join(
        [
            f"/* {artifact.scheme} policy, version {artifact.version}; one observation a call, see contract.json. */",
            "#ifndef POLICY_H",
            "#define POLICY_H",
            "#include <stdint.h>",
            "",
            f"{prototype.replace('restrict ', '')};",
            "",
            "#endif",
            "",
        ]
    )
