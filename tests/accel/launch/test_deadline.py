"""A library call that never returns ends the process with a message; one that returns in time does nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

START = "import atexit, ctypes, os, time\nfrom accel.system.deadline import deadline\nsleep = ctypes.CDLL(None).sleep\n"
LATE = "with deadline(0.2, 'late', 7):\n    sleep(1000)\n"
PROGRAMS = {
    "never": (LATE, 7, "accel: late\n"),
    "in time": ("with deadline(1000.0, 'late', 7):\n    sleep(0)\ntime.sleep(0.3)\n", 0, ""),
    # Python from 3.12 on starts no thread while the process ends.
    "while the process ends": (
        "def leave():\n    with deadline(0.2, 'late', 7):\n        sleep(1000)\n"
        "with deadline(1000.0, '', 1):\n    pass\natexit.register(leave)\n",
        7,
        "accel: late\n",
    ),
    "without an end": (
        "for never_s in (float('inf'), 1e12):\n"
        "    with deadline(never_s, 'never', 8):\n        time.sleep(0.1)\n" + LATE,
        7,
        "accel: late\n",
    ),
    # The parent's thread waited when it was copied: it is not there, and its limits are not the child's.
    "in a fork": (
        "with deadline(1000.0, '', 1):\n    time.sleep(0.1)\n"
        "with deadline(1.5, 'parent', 9):\n    if os.fork() == 0:\n        time.sleep(2.0)\n"
        "        with deadline(0.2, 'late', 7):\n            sleep(1000)\n"
        "_, status = os.wait()\nos._exit(os.waitstatus_to_exitcode(status))\n",
        7,
        "accel: late\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_that_does_not_return_in_time_ends_the_process(name: str) -> None:
    program, status, told = PROGRAMS[name]
    command = [sys.executable, "-W", "ignore", "-c", START + program]  # Python 3.12 and later warn of forks
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, told)


@pytest.mark.parametrize("stderr", ["2>&-", "2> >(exit)"])
def test_a_limit_holds_where_nobody_reads_the_message(stderr: str) -> None:
    """In the middle of a pipe, the process would be ended by nothing else."""
    words = shlex.join([sys.executable, "-c", START + LATE])
    assert subprocess.run(["bash", "-c", f"{words} {stderr}"], timeout=60).returncode == 7
