"""Processes that end with everything that they have started, through the end of either side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accel.supervision.process_tree import ProcessTree
from accel.supervision.processes import is_running
from tests.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")

# Three processes: itself, one in its group, one in a session of its own; it tells their numbers.
FAMILY = """
import os, subprocess
others = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (False, True)]
print(os.getpid(), *(other.pid for other in others), flush=True)
others[0].wait()
"""
PARENT = f"""
import os, sys, time
from accel.supervision.process_tree import ProcessTree
kept = ProcessTree([sys.executable, "-c", {FAMILY!r}], os.environ)
time.sleep(600)
"""


def numbers(process: subprocess.Popen[bytes]) -> list[int]:
    return [int(word) for word in process.stdout.readline().split()]


def are_gone(pids: list[int]) -> bool:
    return until(lambda: not any(map(is_running, pids)), 10.0)


@pytest.mark.parametrize("is_dead", [False, True], ids=["alive", "dead"])
def test_all_of_it_ends_also_when_the_process_itself_is_dead(is_dead: bool) -> None:
    other = ProcessTree(["sleep", "600"], os.environ)
    kept = ProcessTree([sys.executable, "-c", FAMILY], os.environ, stdout=subprocess.PIPE)
    with kept.process as process:
        family = numbers(process)
        assert len(family) == 3 and all(map(is_running, family))
        if is_dead:
            process.kill()
        kept.end(10.0)
        kept.end(10.0)
        assert are_gone(family) and is_running(other.process.pid)
    other.end(10.0)
    assert other.process.wait(10.0) == -signal.SIGKILL


def test_nothing_is_left_where_its_keeper_cannot_be_started(tmp_path: Path) -> None:
    """As where the system allows one more process, not two."""
    told = tmp_path / "told"
    words = ["/bin/sh", "-c", f"echo $$ > {told}; exec /bin/sleep 600"]
    path, os.environ["PATH"] = os.environ["PATH"], str(tmp_path)
    try:
        with pytest.raises(FileNotFoundError):
            ProcessTree(words, os.environ)
    finally:
        os.environ["PATH"] = path
    number = told.read_text() if told.exists() else ""
    assert not number or not is_running(int(number))


def test_all_of_it_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        family = numbers(parent)
        assert len(family) == 3 and all(map(is_running, family))
        parent.kill()
        assert are_gone(family)
