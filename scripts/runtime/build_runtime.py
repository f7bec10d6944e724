"""Puts the wheel of ``accel-rl-runtime`` together, of the files of ``accel`` that act without torch, and compiles its
kernels: hatchling calls this.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
# of the package; a folder ends in / and is whole
FILES = (
    *("__init__.py", "__main__.py", "errors.py", "json_object.py", "py.typed", "version.py"),
    *("cli/__init__.py", "cli/verify.py"),
    *("compressors/__init__.py", "compressors/py.typed", "compressors/arrays.py", "compressors/artifact.py"),
    *("compressors/cpu.py", "compressors/errors.py", "compressors/kernels/", "compressors/protobuf.py"),
    *("compressors/quantisation/__init__.py", "compressors/quantisation/affine.py", "compressors/runtime.py"),
    *("display/__init__.py", "display/errors.py", "display/progress.py", "display/status.py", "display/text.py"),
    *("exporting/__init__.py", "exporting/appearing.py", "exporting/run_policy.py", "exporting/verify.py"),
    *("exporting/formats/__init__.py", "exporting/formats/base.py", "exporting/formats/onnx.py"),
    "exporting/formats/ort.py",
    *("monitor/__init__.py", "monitor/errors.py", "monitor/plain_text.py"),
    *("system/__init__.py", "system/deadline.py", "system/extras.py", "system/garbage.py", "system/machine.py"),
    *("system/module_path.py", "system/signals.py"),
    *("transport/__init__.py", "transport/launcher.py"),
)
# what tells an installation of this wheel from one of the whole package
MARK = "RUNTIME.md"


def get_build_hook() -> type[Any]:
    """The class that hatchling instantiates: the whole package's, on a part of its files."""
    spec = importlib.util.spec_from_file_location("build_kernels", PROJECT / "scripts" / "build_kernels.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{PROJECT} has no scripts/build_kernels.py")
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)

    class RuntimeHook(kernels.KernelsHook):  # type: ignore[misc, name-defined]
        root = str(PROJECT)

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """See hatchling."""
            super().initialize(version, build_data)
            package = PROJECT / "accel"
            included = {str(PROJECT / "scripts/runtime/README.md"): f"accel/{MARK}"}
            for name in FILES:
                for path in sorted((package / name).iterdir()) if name.endswith("/") else [package / name]:
                    if path.suffix != ".pyc" and path.is_file():
                        included[str(path)] = str(path.relative_to(PROJECT))
            build_data["force_include"].update(included)

    return RuntimeHook
