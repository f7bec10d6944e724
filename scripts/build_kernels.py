"""Compiles the kernels of ``accel/compressors/kernels`` when the package is installed: hatchling calls this.

Without a C compiler the package works all the same: every policy then runs on onnxruntime. CC names a compiler, with
arguments where it has some.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("accel", "compressors", "kernels")
LIBRARY = KERNELS / "_chain.so"
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-Wall")


class KernelsHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles before a wheel, an editable one included, is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        error = compile_kernels(root)
        if error:
            print(f"warning: kernels are not compiled ({error}): policies run on onnxruntime", file=sys.stderr)
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data.update(pure_python=False, tag=f"py3-none-{tag}")
        build_data["artifacts"].append(f"/{LIBRARY}")


def compile_kernels(root: Path) -> str:
    """Make the library, whole or not at all; returns why it is not made, "" when it is.

    One that is there already stays until then: it is used where it was compiled from the same sources.
    """
    library, unfinished = root / LIBRARY, root / KERNELS / f"_chain.{os.getpid()}.tmp"
    loader = _loader(root)
    if platform.machine() not in loader.MACHINES:
        return f"there are none for {platform.machine()}"
    chosen = shlex.split(os.environ.get("CC", ""))
    names = chosen[:1] or ("cc", "gcc", "clang")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        return f"CC names {chosen[0]!r}, which is not found" if chosen else "no C compiler is found"
    source = loader.checksum(root / KERNELS)
    files = ("-o", str(unfinished), str(root / KERNELS / "chain.c"))
    command = [compiler, *chosen[1:], *FLAGS, f"-DSOURCE={source}u", *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()}"
        unfinished.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} failed: {error}"
    finally:
        with suppress(OSError):  # of a directory that nobody can write to
            unfinished.unlink()
    return ""


def _loader(root: Path) -> ModuleType:
    """What loads the library later: it knows the sources and their checksum. The package is not installed yet."""
    spec = importlib.util.spec_from_file_location("library", root / KERNELS / "library.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{root / KERNELS} has no library.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
