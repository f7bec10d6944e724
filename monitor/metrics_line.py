"""One line of ``metrics.jsonl``: what counts as a record, as damage, and as nothing, for everybody who reads it."""

from __future__ import annotations

import json
import math

from monitor.recorder import STEP_KEY


def parse_metrics_line(line: bytes) -> dict[str, object] | None:
    """The record of one line; None for a damaged one.

    A record is a JSON object with a finite number of environment steps, on a line that was written to its end: a file's
    last line without a line break was torn, or is still being written. Ask ``is_blank`` first: blank lines are neither.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
        steps = value[STEP_KEY] if isinstance(value, dict) else None
        whole = isinstance(steps, int | float) and not isinstance(steps, bool) and math.isfinite(steps)
    except (ValueError, RecursionError, KeyError, OverflowError):
        return None
    return value if whole else None


def is_blank(line: bytes) -> bool:
    """Whether a line holds nothing at all."""
    return not line.strip()
