"""The table of training runs behind a result: cases, their variants and seeds, read from TOML."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Variant:
    """One configuration of a case.

    Attributes:
        name: a plain directory name.
        arguments: of ``accel train``, after the case's own.
        seeds: how many, counted from 0.
        needs: what a machine must have, such as ``cuda`` or ``module:mujoco``.
        program: runs instead of ``accel``, a script and its own arguments.
    """

    name: str
    arguments: tuple[str, ...]
    seeds: int
    needs: tuple[str, ...] = ()
    program: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One comparison: the same task under several variants, the first named ``baseline`` being what others beat."""

    name: str
    title: str
    arguments: tuple[str, ...]
    variants: tuple[Variant, ...]
    baseline: str
    threshold: float | None = None

    def order(self) -> list[tuple[Variant, int]]:
        """Every run, variants interleaved: a machine that gets slower during a session slows all of them."""
        seeds = max(variant.seeds for variant in self.variants)
        return [(variant, seed) for seed in range(seeds) for variant in self.variants if seed < variant.seeds]


def read_cases(path: Path) -> dict[str, Case]:
    """The cases of a table by name. Exits with a message when it is damaged."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: _case(name, values) for name, values in table["case"].items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path} is no table of cases: {error!r}") from None


def _case(name: str, values: dict[str, object]) -> Case:
    seeds = int(str(values.get("seeds", 5)))
    variants = tuple(_variant(key, value, seeds) for key, value in values["variants"].items())  # type: ignore[attr-defined]
    baseline = str(values.get("baseline", variants[0].name))
    if baseline not in {variant.name for variant in variants}:
        raise ValueError(f"case {name}: no variant is called {baseline!r}")
    threshold = values.get("threshold")
    return Case(
        _plain(name),
        str(values.get("title", name)),
        _words(values.get("arguments", [])),
        variants,
        baseline,
        None if threshold is None else float(str(threshold)),
    )


def _variant(name: str, value: object, seeds: int) -> Variant:
    fields = value if isinstance(value, dict) else {"arguments": value}
    if unknown := set(fields) - {"arguments", "seeds", "needs", "program"}:
        raise ValueError(f"variant {name}: unknown {', '.join(sorted(unknown))}")
    return Variant(
        _plain(name),
        _words(fields.get("arguments", [])),
        int(fields.get("seeds", seeds)),
        _words(fields.get("needs", [])),
        _words(fields.get("program", [])),
    )


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of words")
    return tuple(map(str, value))


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no plain name")
    return name
