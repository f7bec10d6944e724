"""What the system tells of another process; on Linux, and nothing elsewhere."""

from __future__ import annotations

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
