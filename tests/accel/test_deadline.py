"""A library call that never returns ends the process with a message; one that returns in time does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, time
from accel.system.deadline import deadline
with deadline(float(sys.argv[1]), "the library did not return", 7):
    ctypes.CDLL(None).sleep(int(sys.argv[2]))
time.sleep(0.3)
"""


@pytest.mark.parametrize(("limit_s", "sleep_s", "status"), [("0.2", "1000", 7), ("1000", "0", 0)])
def test_a_call_that_never_returns(limit_s: str, sleep_s: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, limit_s, sleep_s], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr == ("accel: the library did not return\n" if status else "")
