"""The side of a supervised process: how it begins, and how it tells what it raised."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from accel.errors import MAX_TOLD, AccelError, message_of, traceback_of
from accel.json_object import Json
from accel.supervision.channel import Channel
from accel.system.module_path import add_working_directory
from accel.system.signals import end_with_parent, ignore_stop_signals


def begin_child(memory_score: int) -> tuple[Channel, list[int]]:
    """End with the parent, leave stop signals to it, report crashes, and find the user's modules.

    Args:
        memory_score: of Linux, 0 to 1000. Where memory runs out the system ends the process with the higher one first.
    Returns:
        The channel to the supervisor, and the numbers of the other inherited files: nothing inherits them from here.
    """
    end_with_parent(signal.SIGKILL)
    ignore_stop_signals()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(memory_score))
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    add_working_directory()
    connection, *files = map(int, sys.argv[-1].split(","))
    for file in (connection, *files):
        os.set_inheritable(file, False)
    return Channel(connection), files


def error_report(error: BaseException) -> Json:
    """What a process says of its end: the error, its kind and message, and where somebody else's code raised it."""
    is_ours = isinstance(error, AccelError)
    message = str(error)[:MAX_TOLD] if is_ours else message_of(error)
    trace = "" if is_ours else traceback_of(error)
    return {"error": message_of(error), "kind": type(error).__name__, "message": message, "traceback": trace}
