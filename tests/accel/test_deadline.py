"""A library call that never returns ends the process with a message; one that returns in time does nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, time
from accel.system.deadline import deadline
with deadline(float(sys.argv[1]), sys.argv[3], 7):
    ctypes.CDLL(None).sleep(int(sys.argv[2]))
time.sleep(0.3)
"""


LATE = "the library did not return"


@pytest.mark.parametrize(
    ("limit_s", "sleep_s", "message", "status", "told"),
    [("0.2", "1000", LATE, 7, f"accel: {LATE}\n"), ("0.2", "1000", "", 7, ""), ("1000", "0", LATE, 0, "")],
)
def test_a_call_that_never_returns(limit_s: str, sleep_s: str, message: str, status: int, told: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, limit_s, sleep_s, message], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, told)


AT_EXIT = """
import atexit, ctypes
from accel.system.deadline import deadline

def leave():
    with deadline(0.2, "late", 7):
        ctypes.CDLL(None).sleep(1000)

with deadline(1000.0, "", 1):
    pass
atexit.register(leave)
"""


def test_a_limit_holds_while_the_process_ends() -> None:
    """Python from 3.12 on starts no thread then."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "accel: late\n")


NESTED = """
import ctypes
from accel.system.deadline import deadline
with deadline(0.3, "outer", 7), deadline(1000.0, "inner", 8):
    ctypes.CDLL(None).sleep(1000)
"""


def test_the_first_of_several_limits_counts() -> None:
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "accel: outer\n")


FORKED = """
import ctypes, os, time
from accel.system.deadline import deadline
with deadline(1000.0, "", 1):
    time.sleep(0.1)
with deadline(3.0, "parent", 9):
    if os.fork() == 0:
        time.sleep(4.0)
        with deadline(0.2, "late", 7):
            ctypes.CDLL(None).sleep(1000)
_, status = os.wait()
os._exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_has_limits_of_its_own() -> None:
    """The parent's thread waited when it was copied: it is not there, and its limits are not the child's."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]  # Python 3.12 and later warn of forks beside threads
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "accel: late\n")


ENDLESS = """
import ctypes
from accel.system.deadline import deadline
with deadline(float("inf"), "never", 8):
    with deadline(1e12, "never", 8), deadline(0.2, "late", 7):
        ctypes.CDLL(None).sleep(1000)
"""


def test_a_limit_without_an_end_is_none() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "accel: late\n")


@pytest.mark.parametrize("stderr", ["2>&-", "2> >(exit)"])
def test_a_limit_holds_where_nobody_reads_the_message(stderr: str) -> None:
    """In the middle of a pipe, the process would be ended by nothing else."""
    words = shlex.join([sys.executable, "-c", PROGRAM, "0.5", "1000", LATE])
    assert subprocess.run(["bash", "-c", f"{words} {stderr}"], timeout=60).returncode == 7
