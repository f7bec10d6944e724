"""Training as a user starts it: `accel train` or mpirun as a process, its ranks found, watched and signalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

import accel
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.launch.outcome import EXIT_STOPPED
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from accel.supervision.processes import descendants, is_running
from accel.transport.launcher import mpirun_command
from tests.contracts.ranks import ROOT, need_mpirun
from tests.waiting import until

ORPHAN_S = 10.0  # After which no process of a job that ended may be left.
LIMIT_S = 300.0  # Far beyond what anything takes, on any machine: only a hang gets there.
LEARNING_LIMIT_S = 1200.0
"""For learning, whose steps are bounded and whose time, on a machine that does other work too, is not."""
SMALL = (
    "--envs-per-actor", "8", "--unroll-length", "16", "--network", "mlp:16x1",
    "--calibration-size", "256",
    "--log-interval-s", "0.1",
)  # fmt: skip
ENDLESS = ("--total-env-steps", "1000000000", "--wrapper", "tests.environments.troubled:Paced")
"""Of a run that goes on until something happens to it, at a pace that leaves the cores to others."""


class TrainingRun:
    """One job in a results directory; a context manager that leaves no process behind.

    Args:
        results_dir: where its run directory goes. words: options beside the small defaults, which they override.
        ranks: start that many under an mpirun of the test's own; None: `accel train` starts mpirun itself.
        launcher: what starts the others otherwise. fault_tolerant: of the test's own mpirun.
        environment: extra variables. prefix: of the command, which must become it. command: another way to start it.
    """

    def __init__(
        self,
        results_dir: Path,
        *words: str,
        ranks: int | None = None,
        launcher: str = "mpirun",
        fault_tolerant: bool = True,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        command: Sequence[str] = (sys.executable, "-m", "accel", "train"),
    ) -> None:
        if not Path("/proc/self/stat").exists():
            pytest.skip("needs Linux, whose /proc tells ranks apart")
        if launcher == "mpirun":
            need_mpirun()
        self.path = results_dir / "run"
        mpirun = [] if ranks is None else mpirun_command(ranks, fault_tolerant=fault_tolerant)
        # What comes last counts.
        quick = () if {"--algorithm", "--preset", "--config", "--resume"} & set(words) else ("--algorithm", "impala")
        scheme = () if {"--preset", "--config", "--resume"} & set(words) else ("--compressor", "int8")
        options = ["--results-dir", str(results_dir), "--name", "run", "--launcher", launcher, *SMALL, *quick, *scheme]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._log = results_dir / f"output-{time.monotonic_ns()}.txt"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*prefix, *mpirun, *command, *options, *words],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.known: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        known = self.known | set(descendants(self.process.pid))
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        for pid in known:
            if is_running(pid):
                with suppress(ProcessLookupError):  # It may end by itself meanwhile.
                    os.kill(pid, signal.SIGKILL)

    @property
    def output(self) -> str:
        """Everything printed until now."""
        return self._log.read_text()

    def ranks(self) -> dict[int, int]:
        """The pid of each rank; of the learner alone where it starts its actors itself."""
        return self._find(child=False)

    def children(self) -> dict[int, int]:
        """The pid of the process that acts for each rank."""
        return self._find(child=True)

    def _find(self, child: bool) -> dict[int, int]:
        found = {}
        for pid in descendants(self.process.pid):
            rank = rank_of(pid)
            if rank is not None:
                self.known.add(pid)
                if is_child(pid) == child:
                    found[rank] = pid
        return found

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Waits until something is so; a job that ends before fails the test with what it printed."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            is_over = self.process.poll() is not None or time.monotonic() > deadline
            if condition():
                return
            if is_over:
                pytest.fail(f"{what} did not happen; status {self.process.poll()}; it printed\n{self.output}")
            time.sleep(0.02)

    def wait_for_ranks(self, count: int) -> dict[int, int]:
        """Waits until so many ranks have been started; returns their pids."""
        self.wait_for(lambda: len(self.ranks()) >= count, f"starting {count} ranks")
        return self.ranks()

    def wait_for_records(self, count: int = 2) -> dict[int, int]:
        """Waits until training is under way; returns the ranks' pids."""
        before = self._records_of_steps()
        self.wait_for(lambda: self._records_of_steps() >= before + count, f"{count} more records")
        return self.ranks()

    def _records_of_steps(self) -> int:
        """Records from the first step on: there are some before, where environments are slow to start."""
        return sum(record["env_steps"] > 0 for record in self.records())

    def records(self) -> list[dict[str, Any]]:
        """The metrics recorded until now."""
        return records_of(self.path)

    def mostly_acted_with(self, scheme: str) -> bool:
        """Whether that scheme was published for most of the run: validation may withhold a policy, and the last one."""
        schemes = [record["scheme"] for record in self.records() if record["env_steps"]]
        return schemes.count(scheme) > len(schemes) / 2

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """The job's status; a job that is still running after ``limit_s`` fails the test with what it printed."""
        self.ranks()
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job was still running after {limit_s:g} s; it printed\n{self.output}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Have the command end the run in good order."""
        self.process.send_signal(number)
        assert self.finish() == EXIT_STOPPED, self.output

    def summary(self) -> Summary:
        """The run's summary, from its file."""
        return Summary.read(self.path)

    def checkpoints(self) -> list[int]:
        """Environment steps of the checkpoints on disk."""
        return checkpoints_of(self.path)

    def processes(self) -> list[int]:
        """Everything that this job has started and that runs."""
        self.ranks()
        found = [self.process.pid, *descendants(self.process.pid)]
        self.known.update(found)
        return found

    def leaves_no_rank(self, pids: Sequence[int]) -> bool:
        """Whether every one of these processes ends within ten seconds."""
        return until(lambda: not any(map(is_running, pids)), ORPHAN_S)


def records_of(run: Path) -> list[dict[str, Any]]:
    """The metrics that a run has recorded until now."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def checkpoints_of(run: Path) -> list[int]:
    """Environment steps of a run's checkpoints on disk."""
    return sorted(int(path.stem.partition("-")[2]) for path in (run / "checkpoints").glob("step-*.safetensors"))


def resume_here(run: Path, more_env_steps: int = 3000) -> Summary:
    """Go on with a run in this process, of several learners too; cheaper than a job, and the same code."""
    config = TrainConfig.create(**load_toml(run / "config.toml"))
    total = RunDirectory.open(run, read_only=True).load_checkpoint().env_steps + more_env_steps
    return accel.train(config.replace(actors=0, learners=1, total_env_steps=total, name="run"), resume=run)


def rank_of(pid: int) -> int | None:
    """The rank that a process was started as; None for anything else, such as mpirun itself.

    A learner that starts its actors itself is a fork of the command, with its words.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        program, *words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    if b"accel.launch.actor" in words:
        return int(json.loads(words[words.index(b"accel.launch.actor") + 1])[0])
    if b"local" in words and b"train" in words:
        return 0
    ranks = [v.partition(b"=")[2] for v in environment if v.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK="))]
    return int(ranks[0]) if ranks and b"python" in program else None


def is_child(pid: int) -> bool:
    """Whether a rank started this process to act for it."""
    try:
        return b"accel.launch.actor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
