"""What a process is asked by the one that starts it, in a variable: other users can read command lines."""

from __future__ import annotations

import os

REQUEST = "ACCEL_REQUEST"


def with_request(text: str) -> dict[str, str]:
    """The environment of a process that is asked this."""
    return {**os.environ, REQUEST: text}


def take_request() -> str:
    """What this process was asked, once: what it starts does not find it."""
    return os.environ.pop(REQUEST)
