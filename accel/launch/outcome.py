"""What a job left behind: its summary, or the checkpoint to continue from."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from accel.system.signals import STOPPED

if TYPE_CHECKING:
    from accel.runs.job import Job
    from accel.runs.summary import Summary

EXIT_STOPPED = 4
"""Of a run that was told to stop before its end, and did so in good order."""
EXIT_INTERRUPTED = 130
WRITER_S = 60.0
"""How long a learner's checkpoint may be written after its end."""


def summary_of(job: Job) -> Summary | None:
    """The proof that a job came to its end: the summary that carries its token."""
    from accel.runs.summary import Summary

    if not (job.path / "summary.json").exists():
        return None
    summary = Summary.read(job.path)
    return summary if summary.job == job.token else None


def status_of(summary: Summary) -> int:
    """The exit status of a run that left a summary."""
    return EXIT_STOPPED if summary.reason.startswith(STOPPED) else 0


def how_it_ended(summary: Summary) -> str:
    """Of a run that left a summary, in a few words."""
    return f"the run was {summary.reason}" if status_of(summary) else "the run is complete"


def how_to_continue(job: Job, host: str | None = None) -> str:
    """The newest checkpoint, and the command that continues from it. ``host``: of the learner."""
    command = f"  accel train --resume {shlex.quote(str(job.path))}"
    if not job.path.exists():
        where = "" if host is None else f" on {host}"
        return f"Look for checkpoints in {job.path}{where}, and continue there from the newest:\n{command}"
    checkpoints = sorted(job.path.glob("checkpoints/step-*"))
    if not checkpoints:
        return "No checkpoint had been written: start the run anew under another --name"
    return f"Continue from its newest checkpoint, {checkpoints[-1].name}:\n{command}"


def written_at(path: Path) -> int | None:
    """When a file was written, in nanoseconds; None where there is none."""
    return path.stat().st_mtime_ns if path.exists() else None


@contextmanager
def noting_how_to_continue(job: Job) -> Iterator[None]:
    """Whatever ends a run that had begun to train, be it an environment's own error, carries a note of how to go on."""
    from accel.runs.directory import CONFIG

    before = written_at(job.path / CONFIG)
    try:
        yield
    except BaseException as error:
        if written_at(job.path / CONFIG) not in (None, before):
            error.add_note(how_to_continue(job))
        raise


def registered_here(env: str) -> str:
    """A hint for environments that a script has registered: actors are processes of their own."""
    registry = getattr(sys.modules.get("gymnasium"), "registry", {})
    if ":" in env or env not in registry:
        return ""
    made_by = registry[env].entry_point
    module = made_by if isinstance(made_by, str) else str(getattr(made_by, "__module__", ""))
    if module.startswith(("gymnasium.", "ale_py.")):
        return ""
    return (
        f"\n{env} is registered in this process; actors are processes of their own and do not know that: register it "
        f"in a module, and give env='module:{env}'"
    )
