"""On one host no process of a job accepts connections from the network, and a dead rank is still survived."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
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


def disturb(port: int) -> list[socket.socket]:
    """Noise, a scan, and a connection that says nothing, which stays open."""
    kept = []
    for content in (random.Random(port).randbytes(10_000), b"OMPI", b"", None):
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), 5.0)
            kept.append(connection)
            if content is not None:
                connection.sendall(content)
                connection.close()
    return kept


@pytest.mark.parametrize("learners", [pytest.param(1, marks=pytest.mark.long), 2])
def test_noise_on_every_port_disturbs_nothing(learners: int, tmp_path: Path) -> None:
    """On the launcher's own too, and on those of learners that sum their gradients."""
    words = (*ENDLESS, "--batch-unrolls", str(learners), "--actors", "2", "--learners", str(learners))
    with TrainingRun(tmp_path, *words) as job:
        job.wait_for_records(2)
        family = set(job.processes())
        ports = {int(name.rpartition(":")[2]) for pid, names in listening().items() if pid in family for name in names}
        assert ports, "the launcher listens"
        kept = [connection for port in sorted(ports) for connection in disturb(port)]
        seen = job.records()[-1]["updates"]
        job.wait_for(lambda: job.records()[-1]["updates"] > seen + 5, "learning on")
        assert job.records()[-1]["actors_alive"] == 2
        job.stop()
        for connection in kept:
            connection.close()
        assert job.summary().dead_actors == 0 and job.summary().reason == "stopped on request"


def open_to_others(pids: Iterable[int]) -> set[str]:
    """Where these processes accept connections from the network, but for what they inherit of a launcher's."""
    accepts, ours = listening(), set(pids)
    inherited = {name for pid in accepts.keys() - ours for name in accepts[pid]}
    return {n for pid in ours for n in accepts.get(pid, set()) - inherited if not n.startswith(LOOPBACK)}


@pytest.mark.long
def test_learners_listen_on_loopback_only(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *ENDLESS, "--batch-unrolls", "2", "--learners", "2", "--actors", "2") as job:
        ranks = job.wait_for_records(2)
        job.wait_for(lambda: job.records()[-1]["updates"] > 0, "a sum of gradients")
        assert all(listening().get(ranks[learner]) for learner in (0, 1)), "gloo listens"
        assert not open_to_others([*ranks.values(), *job.children().values()])
        job.stop()


def test_no_command_line_shows_the_configuration(tmp_path: Path) -> None:
    """Every user sees it, and it may hold a password."""
    (tmp_path / "run.toml").write_text('env_arg = ["sutton_barto_reward=False"]\n')
    words = ("--config", str(tmp_path / "run.toml"), "--env-workers", "2", "--actors", "1", *ENDLESS)
    with TrainingRun(tmp_path, "--algorithm", "ppo", *words) as job:
        job.wait_for_records(1)
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.processes()]
        assert any(b"accel.envs.worker" in line for line in lines) and b"sutton" not in b"".join(lines)
        job.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("ranks", [None, 3], ids=["accel train", "mpirun"])
def test_no_rank_listens_on_a_network_address(ranks: int | None, tmp_path: Path) -> None:
    """The launcher listens on ports of its own, which shows that sockets are seen here."""
    words = (*ENDLESS, "--batch-unrolls", "1", *(() if ranks else ("--actors", "2")))
    with TrainingRun(tmp_path, *words, ranks=ranks) as job:
        started = job.wait_for_records(2)
        if not listening().keys() & set(job.processes()):
            pytest.skip("needs a launcher with ports of its own, as Open MPI's, and the right to see whose they are")
        assert len(started) == 3 and not open_to_others([*started.values(), *job.children().values()])
        os.kill(started[2], signal.SIGKILL)
        job.wait_for(lambda: job.records()[-1]["actors_alive"] == 1, "noticing the dead actor")
        job.wait_for_records(2)
        job.process.send_signal(signal.SIGTERM if ranks is None else signal.SIGUSR1)
        job.finish()
        assert job.summary().reason == "stopped on request", job.output
