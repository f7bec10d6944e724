#!/usr/bin/env python
"""Writes docs/api.md from the docstrings of every public name.

python scripts/api_page.py
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

LINE = 90
PACKAGES = ("accel", "accel.compressors", "accel.correctors")
HEAD = """# Python API

```
python scripts/api_page.py     # writes this page from the docstrings
```

Every public name, package by package. `accel.compressors` and `accel.correctors` need nothing else of `accel`.
"""


def main() -> int:
    """Write the page."""
    (PROJECT / "docs" / "api.md").write_text(render())
    return 0


def render() -> str:
    """The page: a section for each package, an entry for each name."""
    sections = [HEAD]
    for package in PACKAGES:
        module = importlib.import_module(package)
        summary = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
        sections += [f"## {package}\n\n{summary}\n"]
        names = sorted((name for name in module.__all__ if not name.startswith("_")), key=str.lower)
        sections += [_entry(name, getattr(module, name)) for name in names]
    return "\n".join(sections)


def _entry(name: str, value: object) -> str:
    kind = "class " if inspect.isclass(value) else ""
    title = f"### {name}\n\n```text\n{kind}{name}{_signature(value)}\n\n"
    text = inspect.getdoc(value) or ""
    members = "".join(f"\n{_member(key, member)}" for key, member in _members(value))
    return f"{title}{text}\n{members}```\n"


def _signature(value: object) -> str:
    """``(a: int, b: str = 'x') -> float``, on several lines where it is long."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except ValueError:
        return "(…)"
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    end = "" if signature.return_annotation is signature.empty else f" -> {_annotation(signature.return_annotation)}"
    line = f"({', '.join(parts)}){end}"
    return line if len(line) <= LINE else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default)
    return f"{text} = {'…' if default.startswith('<') else default}"


def _annotation(value: object) -> str:
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    short = re.sub(r"\baccel\.[\w.]*\.(?=\w)", "", text)
    return text if len(text) <= LINE else textwrap.fill(short, LINE, subsequent_indent=8 * " ", break_long_words=False)


def _members(value: object) -> list[tuple[str, object]]:
    """Public methods and properties that a class defines itself."""
    if not inspect.isclass(value):
        return []
    return [(key, member) for key, member in vars(value).items() if not key.startswith("_") and _is_method(member)]


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def _member(key: str, member: object) -> str:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    signature = "" if isinstance(member, property) else _signature(function)
    return f".{key}{signature}\n    {summary}\n"


if __name__ == "__main__":
    sys.exit(main())
