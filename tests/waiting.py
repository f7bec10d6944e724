"""Waiting for what other processes and threads bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(find: Callable[[], T], limit_s: float = 60.0) -> T:
    """What is found, once it is true, or what is found at the end of the time."""
    deadline = time.monotonic() + limit_s
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
