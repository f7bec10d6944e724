"""Who may import what, where static contracts cannot see: at run time, and by the names that are called."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LEAVES = ("compressors", "correctors", "monitor")
PACKAGES = ("accel", *LEAVES)
MPI_FILE = PROJECT / "accel" / "transport" / "mpi.py"

# mpi4py's methods that pickle; their upper-case namesakes move buffers.
PICKLING = frozenset(
    "send bsend ssend isend ibsend issend recv irecv sendrecv mprobe improbe bcast scatter gather allgather alltoall "
    "reduce allreduce scan exscan ireduce dumps loads".split()
)

MOST_IMPORTS = 20


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((PROJECT / package).rglob("*.py"))]


@functools.cache
def imports(source: str) -> list[tuple[str, str]]:
    """Modules that a file imports anywhere, functions and type checking included, and what of them; "" for all."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def module_name(path: Path) -> str:
    """Of a file, by its path in the project; what ``accel`` links to is imported as a part of it."""
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "accel" else ("accel", *parts)).removesuffix(".__init__")


def imports_beyond(leaf: str, source: str) -> set[str]:
    """Modules of ``accel`` that a file of a leaf imports from elsewhere."""
    names = {module for module, _ in imports(source)}
    return {name for name in names if name.split(".")[0] == "accel" and name.split(".")[:2] != ["accel", leaf]}


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module to the modules among ``sources`` that it imports."""
    graph = {}
    for module, source in sources.items():
        members = ((name, f"{name}.{member}") for name, member in imports(source))
        graph[module] = {member if member in sources else name for name, member in members} & sources.keys()
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle in order, the first one again at the end; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def pickling_calls(source: str) -> list[str]:
    """Calls of a pickling method, with their lines."""
    return [
        f"line {node.lineno}: {node.func.attr}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PICKLING
    ]


def test_mpi_moves_buffers_and_never_pickles() -> None:
    assert pickling_calls(MPI_FILE.read_text()) == []


def test_no_modules_import_each_other_in_a_cycle_and_none_more_than_twenty_others() -> None:
    graph = import_graph({module_name(path.relative_to(PROJECT)): path.read_text() for path in product_files()})
    assert find_cycle(graph) == []
    assert [module for module, imported in graph.items() if len(imported) > MOST_IMPORTS] == []


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_need_nothing_else_of_accel(leaf: str) -> None:
    found = {path: imports_beyond(leaf, path.read_text()) for path in sorted((PROJECT / leaf).rglob("*.py"))}
    assert len(found) > 4
    assert {path: names for path, names in found.items() if names} == {}


def test_the_rules_see_what_they_forbid() -> None:
    assert imports_beyond("monitor", "import accel.monitor\nfrom accel.monitor.a import b\nimport numpy") == set()
    assert imports_beyond("monitor", "def f():\n    from accel.errors import A") == {"accel.errors"}
    lazily = {"a": "def f():\n    from b import c", "b": "", "b.c": "if TYPE_CHECKING:\n    import a"}
    assert sorted(set(find_cycle(import_graph(lazily)))) == ["a", "b.c"]
    assert find_cycle(import_graph({"a": "from b import c", "b": "import d", "b.c": "import b"})) == []
    assert pickling_calls("def f(comm):\n    comm.Send(b, 1)\n    return comm.bcast({})") == ["line 3: bcast"]


def actor_side_modules() -> list[str]:
    """What an actor imports, as the static contract lists it."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    modules: list[str] = next(item for item in contracts if "Actors" in item["name"])["source_modules"]
    assert "accel.acting.actor" in modules
    return modules


def loaded_after_importing(*modules: str) -> set[str]:
    program = f"import sys, {', '.join(modules)}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_actor_side_loads_no_torch() -> None:
    assert not {"torch", "onnx", "safetensors"} & loaded_after_importing(*actor_side_modules())


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (("accel", *(f"accel.{leaf}" for leaf in LEAVES)), "torch onnx onnxruntime gymnasium mpi4py numpy"),
        (("accel.envs.spaces", "accel.experience.rewards"), "torch gymnasium"),
        (("accel.envs.factory",), "torch envpool ale_py pettingzoo mujoco"),
        (("accel.display.progress",), "rich torch numpy"),
        (("accel.cli.watch", "accel.reports.watch"), "torch matplotlib"),
        (("accel.runs.directory",), "torch numpy"),
        (("accel.monitor.recorder", "accel.monitor.statistics", "accel.monitor.timers"), "torch"),
    ],
)
def test_what_is_not_asked_for_is_not_loaded(modules: tuple[str, ...], heavy: str) -> None:
    assert not set(heavy.split()) & loaded_after_importing(*modules)


@pytest.mark.slow
def test_public_names_resolve() -> None:
    for package in map(importlib.import_module, ("accel", *(f"accel.{leaf}" for leaf in LEAVES))):
        assert all(hasattr(package, name) for name in getattr(package, "__all__", ()))
