"""Two nodes of one machine, ``scripts/two_nodes``, and training over both."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.contracts.ranks import ROOT
from tests.mpi.training_runs import TrainingRun, is_child, rank_of
from tests.waiting import until

SCRIPT = str(ROOT / "scripts/two_nodes")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
QUIET_S = 10.0


class NoNodesError(Exception):
    """This machine does not allow them; says why."""


class Nodes:
    """Node a, where the learner runs, and node b; as a context manager they are removed at the end.

    Args:
        directory: their keys and configuration. environment: variables for what runs on either.
    Raises:
        NoNodesError: needs root, network namespaces and an sshd.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        told = " ".join(f"{name}={value}" for name, value in (environment or {}).items())
        owner = str(os.getpid())  # of which the next pair of nodes can tell whether it is gone
        done = self._run("up", owner, NODE_ENVIRONMENT=told)
        if done.returncode != 0:
            self.down()
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise NoNodesError(f"needs root, network namespaces and an sshd: {lines[-1]}")

    def do(self, action: str, *words: str) -> str:
        """One action of the script."""
        done = self._run(action, *words)
        if done.returncode != 0:
            raise RuntimeError(f"scripts/two_nodes {action}: {done.stderr}")
        return done.stdout

    def down(self) -> None:
        """Remove both, with all that runs on them."""
        self._run("down")

    def _run(self, action: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [SCRIPT, action, str(self.directory), *words]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})

    def processes(self, node: str, word: str = "accel") -> list[int]:
        """Processes of a node with ``word`` in their command line."""
        found = []
        for pid in map(int, self.do("pids", node).split()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command:
                found.append(pid)
        return found

    def children(self) -> dict[int, int]:
        """The pid of the process that acts for each rank, on either node."""
        pids = [pid for node in "ab" for pid in self.processes(node, "accel.launch.actor")]
        ranks = {rank_of(pid): pid for pid in pids if is_child(pid)}
        return {rank: pid for rank, pid in ranks.items() if rank is not None}

    def train(self, results_dir: Path, *words: str, environment: Mapping[str, str] | None = None) -> TrainingRun:
        """A run whose command is given on node a."""
        prefix = [SCRIPT, "run", str(self.directory), "a"]
        return TrainingRun(results_dir, *words, prefix=prefix, environment=environment)

    def is_quiet(self, node: str) -> bool:
        """Whether every rank and launcher of a node ends within ten seconds."""
        return until(lambda: not self.processes(node) + self.processes(node, "prte"), QUIET_S)
