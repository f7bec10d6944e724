"""Errors that a user can cause, as one message and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable

from accel.errors import AccelError
from accel.system.extras import missing_extra


def report_errors(action: Callable[[], int], name: str) -> int:
    """Run a command; an error that a user can cause becomes one message and its exit status.

    Args:
        action: the command.
        name: what a user calls it.
    """
    from accel.compressors.errors import CompressorError
    from accel.monitor.errors import MonitorError
    from accel.monitor.plain_text import without_controls

    try:
        return action()
    except (AccelError, CompressorError, MonitorError) as error:
        told = "\n".join([str(error), *getattr(error, "__notes__", ())])
        sys.stderr.write(f"accel: {without_controls(told)}\n")
        return error.exit_code if isinstance(error, AccelError) else 1
    except ImportError as error:
        missing = missing_extra(error, name)
        if missing is None:
            raise
        sys.stderr.write(f"accel: {missing}\n")
        return missing.exit_code
    except BrokenPipeError:
        sys.stdout = None  # its reader is gone: nothing is left to be flushed at exit
        return 141
    except KeyboardInterrupt:
        return 130
