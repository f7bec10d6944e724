"""Rules that hold for names: nobody compares an algorithm's, and tests use public ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from accel.config.algorithms import ALGORITHMS
from tests.test_import_rules import PROJECT, product_files

PRODUCT = product_files()
TESTS = sorted((PROJECT / "tests").rglob("*.py"))
CHOSEN = {"algorithm", "corrector"}
# "seed" is the name of an option too.
CHOICES = (ALGORITHMS.keys() | {"vtrace", "retrace"}) - {"seed"}


def compared_names(source: str) -> Iterator[str]:
    """Comparisons with the name of an algorithm or a corrector, or of one with any text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [part for side in (node.left, *node.comparators) for part in getattr(side, "elts", [side])]
        texts = {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}
        attributes = {side.attr for side in sides if isinstance(side, ast.Attribute)}
        if texts & CHOICES or (texts and attributes & CHOSEN):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def private_definitions(source: str) -> set[str]:
    """Names with one leading underscore that a file defines: functions, classes, constants, attributes of objects."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__") and name != "_"}


def private_uses(source: str, private: set[str]) -> Iterator[str]:
    """Where a test imports, reads or replaces a private name of somebody else's."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr in private:
            names = [node.attr] if ast.unparse(node.value) not in {"self", "cls", "super()", "os"} else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            names = [str(word.value).rpartition(".")[2] for word in node.args[:2] if isinstance(word, ast.Constant)]
        yield from (f"line {node.lineno}: {name}" for name in names if name in private)


def test_no_code_asks_for_the_name_of_an_algorithm_or_corrector() -> None:
    found = {path.relative_to(PROJECT): list(compared_names(path.read_text())) for path in PRODUCT}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.slow
def test_tests_use_public_names() -> None:
    private = set().union(*(private_definitions(path.read_text()) for path in PRODUCT))
    found = {path.relative_to(PROJECT): list(private_uses(path.read_text(), private)) for path in TESTS}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_rules_see_what_they_forbid() -> None:
    for line in ("x == 'ppo'", "options.corrector != 'none'", "name in ('dqn', 'apex')", "c.algorithm not in {'mine'}"):
        assert list(compared_names(line)), line
    for line in ("'seed' in space", "x == 'none'", "options.corrector == other", "{'ppo': 1}[name]"):
        assert not list(compared_names(line)), line
    private = private_definitions("_A = 1\nclass B:\n    def _f(self): self._g = 1\n    def h(self): _ = self.__i")
    assert private == {"_A", "_f", "_g"}
    for line in ("from m import _A", "b._g", "b.c._f()", "monkeypatch.setattr(m, '_A', 2)", "setattr(m, '_A', 2)"):
        assert list(private_uses(line, private)), line
    for line in ("from m import A", "self._g", "b._other", "b.g"):
        assert not list(private_uses(line, private)), line
