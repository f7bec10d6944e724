"""The decision log: every choice of a compression level with its reason and numbers, one JSON object a line.

``decisions.jsonl`` in the run's directory; each line holds

    unix_time_s  when          env_steps  valid steps learned from until then
    kind         ``take`` or ``leave`` a level, ``keep`` it after comparisons, ``hold`` where none is taken; ``resume``
    from, to     the scheme before and after
    reason       a sentence
    figures      numbers by name, such as steps_per_s/int8, effective_share/int8, gain_per_s/fp32 (``objective.py``)

Each line is written at once, so a kill leaves whole lines; a reader skips and counts damaged ones. Steps increase: a
run that resumes from a checkpoint removes later lines.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from accel.monitor.errors import RecorderError
from accel.monitor.line_file import LineFile, read_lines

DECISIONS_FILE = "decisions.jsonl"

Figure = float | int | str | None


@dataclass(frozen=True)
class Decision:
    """One line of the log; the module's docstring names the fields."""

    unix_time_s: float
    env_steps: int
    kind: str
    before: str
    after: str
    reason: str
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of ``to_json``. Raises KeyError, TypeError, ValueError or OverflowError."""
        kind, before, after, reason = (str(value[name]) for name in ("kind", "from", "to", "reason"))
        unix_time_s, env_steps = float(value["unix_time_s"]), int(value["env_steps"])
        if not math.isfinite(unix_time_s):
            raise ValueError(f"unix_time_s = {unix_time_s}")
        return cls(unix_time_s, env_steps, kind, before, after, reason, dict(value["figures"]))

    def to_json(self) -> dict[str, object]:
        """The line's object; numbers that JSON lacks become text."""
        return {
            "unix_time_s": round(self.unix_time_s, 3),
            "env_steps": self.env_steps,
            "kind": self.kind,
            "from": self.before,
            "to": self.after,
            "reason": self.reason,
            "figures": {name: _plain(figure) for name, figure in self.figures.items()},
        }


class DecisionLog:
    """Appends decisions to a run's directory."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        """Args: directory: an existing run directory; clock: Unix time in seconds."""
        self._path = directory / DECISIONS_FILE
        self._file = LineFile(self._path)
        self._clock = clock

    def write(
        self,
        env_steps: int,
        kind: str,
        before: str,
        after: str,
        reason: str,
        figures: Mapping[str, Figure] | None = None,
    ) -> None:
        """Append one decision, stamped now. Where it cannot be written, a warning says so once."""
        decision = Decision(self._clock(), env_steps, kind, before, after, reason, figures or {})
        self._file.append((json.dumps(decision.to_json(), allow_nan=False, separators=(",", ":")) + "\n").encode())

    def go_on(self, env_steps: int, level: str) -> None:
        """Remove the decisions after ``env_steps``, whose steps will be repeated. Where actors had another level than
        ``level``, with which they begin now, a line of kind ``resume`` says so.

        Earlier damaged lines stay, for the reader to count, except an incomplete last one; without a log nothing
        happens.

        Raises: RecorderError: the log exists and cannot be read or truncated.
        """
        try:
            self._file.keep_while(lambda line: (made := _parse(line)) is None or made.env_steps <= env_steps)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecorderError(
                f"cannot truncate {self._path}: {error.strerror}; make it writable, or move it away to continue"
            ) from error
        made, _ = read_decisions(self._path.parent)
        if made and made[-1].after != level:
            self.write(env_steps, "resume", made[-1].after, level, f"the run is resumed with {level}")


def read_decisions(directory: Path) -> tuple[list[Decision], int]:
    """The decisions of a run, oldest first, and how many damaged lines were skipped; none when there is no log.

    Raises: RecorderError: the log exists and cannot be read.
    """
    path = directory / DECISIONS_FILE
    if not path.exists():
        return [], 0
    try:
        parsed = [_parse(line) for line in read_lines(path) if line.strip()]
    except OSError as error:
        raise RecorderError(f"cannot read {path}: {error.strerror}") from error
    decisions = [decision for decision in parsed if decision is not None]
    return decisions, len(parsed) - len(decisions)


def _parse(line: bytes) -> Decision | None:
    try:
        return Decision.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _plain(figure: Figure) -> Figure:
    if not isinstance(figure, float):
        return figure
    return float(f"{figure:.6g}") if math.isfinite(figure) else str(figure)
