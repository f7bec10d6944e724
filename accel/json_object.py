"""Plain JSON objects, as messages and files hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Json = dict[str, object]


def finite(value: object, instead: Callable[[float], object] = str) -> object:
    """A value of JSON, which has no NaN and no infinities: by default strings that ``float`` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return instead(float(value))
    if isinstance(value, Mapping):
        return {str(key): finite(item, instead) for key, item in value.items()}
    return [finite(item, instead) for item in value] if isinstance(value, list | tuple) else value
