"""How a process begins that steps environments for another one, which replaces it when it fails."""

from __future__ import annotations

import faulthandler
import logging
import sys
from contextlib import suppress
from pathlib import Path

from accel.system.module_path import add_working_directory
from accel.system.signals import ignore_stop_signals


def begin_child(memory_score: int) -> None:
    """Leave stop signals to the other process, report crashes, and find the user's modules.

    ``memory_score``: of Linux, 0 to 1000. Where memory runs out the system ends the process with the higher one first.
    """
    ignore_stop_signals()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(memory_score))
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    add_working_directory()
