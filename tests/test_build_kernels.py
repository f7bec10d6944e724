"""The build hook: a library where there is a compiler, a reason and no file where there is none."""

from __future__ import annotations

import ctypes
import platform
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from accel.compressors.kernels import library
from tests.compressors.emulated import COMPILER, needs_emulator
from tests.scripts import load

PROJECT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(platform.machine() not in library.MACHINES, reason="kernels are for x86-64 and aarch64")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook's module, without hatchling, which is installed for building alone."""
    interface = ModuleType("interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(__import__("sys").modules, name, ModuleType(name))
    monkeypatch.setitem(__import__("sys").modules, "hatchling.builders.hooks.plugin.interface", interface)
    return load("build_kernels.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with nothing but the sources."""
    target = tmp_path / "accel" / "compressors" / "kernels"
    target.mkdir(parents=True)
    for name in (*library.SOURCES, "library.py"):
        shutil.copy(PROJECT / "compressors" / "kernels" / name, target)
    return tmp_path


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def test_this_installation_has_its_kernels() -> None:
    compiled = ctypes.CDLL(str(library.PATH))
    compiled.source.restype = ctypes.c_uint32
    assert compiled.source() == library.checksum(library.PATH.parent)


def test_a_library_is_compiled_without_warnings_and_knows_its_sources(
    build: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "cc -Wextra -Werror")
    assert build.compile_kernels(root) == ""
    compiled = ctypes.CDLL(str(root / build.LIBRARY))
    compiled.source.restype = ctypes.c_uint32
    assert compiled.source() == library.checksum(root / build.KERNELS)
    (root / build.KERNELS / "dense.h").write_text("changed")
    assert compiled.source() != library.checksum(root / build.KERNELS)
    assert files(root / build.KERNELS) == ["_chain.so", "chain.c", "dense.h", "library.py", "tower.h"]


@needs_emulator
def test_a_library_for_arm_is_made_by_a_cross_compiler(
    build: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{COMPILER} -Wextra -Werror")
    assert build.compile_kernels(root) == ""
    made = (root / build.LIBRARY).read_bytes()
    aarch64 = 183  # e_machine of an ELF header
    assert int.from_bytes(made[18:20], "little") == aarch64
    assert b"run_neon\0" in made and b"run_dot_products\0" in made and b"run_avx2\0" not in made


def test_a_failure_is_told_and_leaves_no_part(build: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / build.KERNELS / "dense.h").write_text("#error on purpose\n")
    assert "on purpose" in build.compile_kernels(root)
    assert files(root / build.KERNELS) == ["chain.c", "dense.h", "library.py", "tower.h"]
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    assert build.compile_kernels(root) == "CC names 'no-such-compiler', which is not found"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "/nowhere")
    assert build.compile_kernels(root) == "no C compiler is found"
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert build.compile_kernels(root) == "there are none for riscv64"
