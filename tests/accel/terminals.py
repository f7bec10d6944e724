"""What programs wrote to a pseudo-terminal."""

from __future__ import annotations

import os


def read_terminal(controller: int) -> str:
    """All of it, in however many pieces it comes; closes ``controller``. Waits until nobody has the other end open."""
    chunks = []
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(controller)
    return b"".join(chunks).decode()
