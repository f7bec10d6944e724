"""Other processes by /proc: state, start, processor time, descendants; empty or zero on other systems."""

from __future__ import annotations

import os
from pathlib import Path


def process_state(pid: int) -> str:
    """The state's letter (``R``, ``S``, ``D``, ``T`` for stopped, ``Z`` …); empty where it is not known."""
    fields = _fields(pid)
    return fields[0] if fields else ""


def process_started(pid: int) -> int:
    """When a process started, in clock ticks since the machine did: with its number, a name that is used once."""
    fields = _fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Seconds that a process, without its children, has used of any core; 0 where it is not known."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def descendants(pid: int) -> frozenset[int]:
    """Children of a process, grandchildren and so on, that are there now; empty where they are not known."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _fields(int(entry.name)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return frozenset(found)
