"""On one host no process of a job accepts connections from the network, and what others send it disturbs nothing."""

from __future__ import annotations

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

from tests.mpi.training_runs import ENDLESS, TrainingRun, rank_of

pytestmark = pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss (iproute2), which lists sockets")
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


def open_to_others(pids: Iterable[int]) -> set[str]:
    """Where these processes accept connections from the network, but for what they inherit of a launcher's."""
    accepts, ours = listening(), set(pids)
    inherited = {name for pid in accepts.keys() - ours for name in accepts[pid]}
    return {n for pid in ours for n in accepts.get(pid, set()) - inherited if not n.startswith(LOOPBACK)}


@pytest.mark.parametrize("ranks", [None, pytest.param(5, marks=pytest.mark.long)], ids=["accel train", "mpirun"])
def test_two_learners_and_three_actors_are_hidden_from_others_and_stop_on_request(
    ranks: int | None, tmp_path: Path
) -> None:
    """The launcher listens on ports of its own, which shows that sockets are seen here.

    Noise on them and on those of learners that sum their gradients disturbs nothing. Every user sees command lines, and
    the configuration may hold a password.
    """
    (tmp_path / "run.toml").write_text('env_arg = ["sutton_barto_reward=False"]\n')
    words = ("--config", str(tmp_path / "run.toml"), "--algorithm", "impala", "--compressor", "int8", "--learners", "2")
    words = (*words, "--normalise-observations", "--env-workers", "2", *ENDLESS, *(() if ranks else ("--actors", "3")))
    with TrainingRun(tmp_path, *words, ranks=ranks) as job:
        started, family = job.wait_for_records(2), job.processes()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family]
        assert any(b"accel.envs.worker" in line for line in commands) and b"sutton" not in b"".join(commands)
        job.wait_for(lambda: job.records()[-1]["updates"] > 0, "a sum of gradients")
        ports = {int(name.rpartition(":")[2]) for pid, names in listening().items() if pid in family for name in names}
        if not ports:
            pytest.skip("needs a launcher with ports of its own, as Open MPI's, and the right to see whose they are")
        assert sorted(started) == [0, 1, 2, 3, 4]
        assert all(listening().get(started[learner]) for learner in (0, 1)), "gloo listens"
        assert not open_to_others(pid for pid in family if rank_of(pid) is not None)
        kept = [connection for port in sorted(ports) for connection in disturb(port)]
        seen = job.records()[-1]["updates"]
        job.wait_for(lambda: job.records()[-1]["updates"] > seen + 5, "learning on")
        job.process.send_signal(signal.SIGTERM if ranks is None else signal.SIGUSR1)
        job.finish()
        for connection in kept:
            connection.close()
        summary = job.summary()
        assert summary.reason == "stopped on request" and summary.dead_actors == 0, job.output
        assert job.records()[-1]["actors_alive"] == 3
        # Every update learns from three unrolls, whose resets do not count; what is left over waited for its batch.
        assert 0.8 * summary.updates <= summary.env_steps / (3 * 8 * 16) <= summary.updates + 2
        assert job.leaves_no_rank(list(started.values()))
