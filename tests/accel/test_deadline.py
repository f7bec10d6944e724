"""A library call that never returns ends the process with a message; one that returns in time does nothing."""

from __future__ import annotations

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
