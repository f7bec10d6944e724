"""On one host no process of a job accepts connections from the network, and a dead rank is still survived."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mpi.training_runs import ENDLESS, TrainingRun

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux, whose /proc tells ranks apart"),
    pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss (iproute2), which lists sockets"),
]
LOOPBACK = ("127.", "[::1]", "[::ffff:127.")


def listening() -> dict[int, set[str]]:
    """Local addresses on which each process accepts TCP connections or has an open UDP port."""
    listed = subprocess.run(["ss", "-Hlntup"], capture_output=True, text=True, check=True).stdout
    found: dict[int, set[str]] = {}
    for line in listed.splitlines():
        for pid in re.findall(r"pid=(\d+)", line):
            found.setdefault(int(pid), set()).add(line.split()[4])
    return found


@pytest.mark.parametrize("ranks", [None, 3], ids=["accel train", "mpirun"])
def test_no_rank_listens_on_a_network_address(ranks: int | None, tmp_path: Path) -> None:
    """The launcher listens on ports of its own, which shows that sockets are seen here."""
    words = (*ENDLESS, "--batch-unrolls", "1", *(() if ranks else ("--actors", "2")))
    with TrainingRun(tmp_path, *words, ranks=ranks) as job:
        started = job.wait_for_records(2)
        accepts, ours = listening(), {*started.values(), *job.children().values()}
        if not accepts.keys() & set(job.processes()):
            pytest.skip("needs a launcher with ports of its own, as Open MPI's, and the right to see whose they are")
        open_to_others = {
            pid: names for pid in ours if (names := {n for n in accepts.get(pid, ()) if not n.startswith(LOOPBACK)})
        }
        assert len(started) == 3 and not open_to_others
        os.kill(started[2], signal.SIGKILL)
        job.wait_for(lambda: job.records()[-1]["actors_alive"] == 1, "noticing the dead actor")
        job.wait_for_records(2)
        job.process.send_signal(signal.SIGTERM if ranks is None else signal.SIGUSR1)
        job.finish()
        assert job.summary().reason == "stopped on request", job.output
