"""The algorithm of docs/adding-an-algorithm.md as a module: what that page shows is what runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-algorithm.md"


def code() -> str:
    """The page's only Python block."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def factory(*arguments: Any, **options: Any) -> Any:
    """What ``--algorithm tests.contracts.page_algorithm:factory`` calls."""
    names: dict[str, Any] = {"__name__": "a2c"}
    exec(compile(code(), str(PAGE), "exec"), names)
    return names["factory"](*arguments, **options)
