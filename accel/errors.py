"""Named errors: each message says what was wrong and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_ABORTED = 3
"""Status of a rank, or of what acts for one, that could not go on; the learner says why."""


class AccelError(Exception):
    """Base of the errors that a user can cause; the CLI prints it in one message and exits with ``exit_code``.

    What a compression scheme cannot do is a ``compressors.CompressorError``.
    """

    exit_code = 1


class ConfigError(AccelError):
    """An option is invalid, unknown or contradicts another."""

    exit_code = 2


class EnvError(AccelError):
    """An environment is unknown, cannot be made, or has a space that the pipeline does not support."""

    exit_code = 2


class InterfaceError(EnvError):
    """An environment gave a result of a form that none may have: the same one in another process would do so too."""


class MissingExtraError(AccelError):
    """An optional dependency is needed; the message names the extra to install."""

    exit_code = 2


class LaunchError(AccelError):
    """The job cannot be started as asked: too few ranks, a launcher MPI does not see, no mpirun."""

    exit_code = 2


class CheckpointError(AccelError):
    """A checkpoint or run directory is missing, corrupt, or of another configuration."""


class RunDirectoryError(AccelError):
    """A run directory exists already or cannot be written."""

    exit_code = 2


class TransportError(AccelError):
    """The other side of the transport is gone or broke the protocol."""


class DivergenceError(AccelError):
    """A loss, gradient or parameter became NaN or infinite; nothing broken was published.

    Attributes:
        updates_ago: how many updates before the one that raises it; a CUDA device says so a turn late.
    """

    def __init__(self, message: str, updates_ago: int = 0) -> None:
        super().__init__(message)
        self.updates_ago = updates_ago


class JobError(AccelError):
    """A job that this process started under mpirun ended badly; its own messages said why."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ReportError(AccelError):
    """A report cannot be made: not a run, no metrics yet, runs that cannot be compared, nowhere to write it."""

    exit_code = 2


class ExportError(AccelError):
    """A policy cannot be exported as asked: the format cannot take it, a failed gate, nowhere to write it."""


class BundleError(AccelError):
    """An exported bundle is damaged, incomplete, or not for this machine."""


class SweepError(AccelError):
    """A study cannot be opened or shared, every trial failed, or no trial meets the constraints."""


MAX_TOLD, MAX_TRACE = 4_000, 16_000
"""Characters of somebody else's exception that travel to the learner: its message may be of any size."""


def message_of(error: BaseException) -> str:
    """An exception's kind and message, cut where it is long."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as another:  # noqa: BLE001 - somebody else's code
        text = f"{type(error).__name__}, of which no message can be made: {type(another).__name__}"
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]} …"


def traceback_of(error: BaseException) -> str:
    """Where it was raised, as Python shows it; the innermost calls where that is long."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= MAX_TRACE:
        return text
    return "".join(traceback.format_tb(error.__traceback__))[-MAX_TRACE + MAX_TOLD :] + message_of(error)


@contextmanager
def contained(remedy: str) -> Iterator[None]:
    """Make an EnvError of an environment that leaves this process, or raises what is no ``Exception``.

    Args:
        remedy: what follows in the message.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        how = f"left through exit({error.code})" if isinstance(error, SystemExit) else f"raised {message_of(error)}"
        raise EnvError(f"an environment {how}{remedy}") from error
