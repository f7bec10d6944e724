"""One whole training run as a child process: started or resumed, waited for, and read at its end.

On Linux the child, ``accel train``, is asked to stop when its parent dies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import tomlkit

from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.errors import AccelError, CheckpointError, RunDirectoryError, SweepError
from accel.reports.reporting import load_run_record
from accel.runs.directory import RunDirectory, wait_for_writer
from accel.runs.summary import Summary
from accel.sweep.objectives import Values
from accel.system.atomic import write_atomically
from accel.system.signals import FORWARDED, parent_death

# Without these variables of a launcher, the child of a rank is no rank itself.
_LAUNCHER_PREFIXES = (
    *("OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_", "MPI_LOCALRANKID", "PALS_", "FLUX_TASK_"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_STOP_S = 60.0


class TrainingRun:
    """A training run in its own directory, ``path``."""

    def __init__(
        self, config: TrainConfig, directory: Path, name: str, *, origin: Path | None = None, whole: bool = False
    ) -> None:
        """Describe run ``name`` in a directory of runs; nothing is started or written.

        Args:
            origin: the run with whose newest checkpoint this one begins; None: a new one.
            whole: begin an interrupted run anew, so that a deterministic one ends as if it had never been interrupted.
        """
        self._config = config.replace(name=name, results_dir=directory)
        self._toml = tomlkit.dumps(self._config.to_toml_values())
        self._origin, self._whole = origin, whole
        self.path = directory.absolute() / name
        self._file, self._log = (self.path.with_name(f"{name}.{ending}") for ending in ("toml", "log"))

    def train(self) -> Summary:
        """Train to the end, resuming from an earlier attempt's checkpoint.

        Raises: SweepError: the run failed, with its error message, or the directory holds another configuration's run.
            RunDirectoryError: another process keeps working on it.
        """
        self._check_directory()
        if not self.is_complete():
            self._train()
        return Summary.read(self.path)

    def is_complete(self) -> bool:
        """Whether it ended by itself, and was not stopped by its parent."""
        return (self.path / "summary.json").exists() and "reached" in Summary.read(self.path).reason

    def _check_directory(self) -> None:
        """Raises SweepError: the directory holds a run of another configuration."""
        if not (self.path.exists() and self._file.exists()):
            return
        found, wanted = load_toml(self._file), tomllib.loads(self._toml)
        places = {"name", "results_dir"}
        differing = sorted(k for k in (found.keys() | wanted.keys()) - places if found.get(k) != wanted.get(k))
        if differing:
            raise SweepError(
                f"{self.path} holds a run of another study, which differs in {', '.join(differing)}: give another "
                "--out, or remove it"
            )

    def _train(self) -> None:
        process = self._start()
        try:
            process.wait()
        finally:
            process.terminate()  # nothing where it has ended
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise SweepError(f"run {self.path.name} failed: {self._error_message()}")

    def _start(self) -> subprocess.Popen[bytes]:
        if not wait_for_writer(self.path, _STOP_S):  # one whose parent died ends soon
            raise RunDirectoryError(f"{self.path} is in use by another process: wait for it, or stop it")
        if self._whole or not self._has_checkpoint():
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, self._toml.encode())
            if self._origin is not None:
                self._copy(self._origin)
        options = ["--resume", str(self.path)] if self._has_checkpoint() else ["--config", str(self._file)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "accel", "train", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_PREFIXES)},
                start_new_session=True,
                preexec_fn=parent_death(FORWARDED),  # a repeated one of these does not end the run at once
            )

    def _copy(self, origin: Path) -> None:
        """Begin as a run that was stopped where its origin is. Raises CheckpointError, RunDirectoryError."""
        newest = max((origin / "checkpoints").glob("step-*.safetensors"), default=None)
        if newest is None:
            raise CheckpointError(f"{origin} holds no checkpoint: remove it, so that it is trained again")
        with RunDirectory.create(self.path.parent, self.path.name) as run:
            if (replay := origin / "replay").is_dir():
                shutil.copytree(replay, run.path / replay.name)
            run.checkpoints.mkdir()
            shutil.copyfile(newest, run.checkpoints / newest.name)
            run.write_config(self._config.to_toml_values())  # the last: without it there is nothing to go on with

    def _has_checkpoint(self) -> bool:
        return (self.path / "config.toml").exists() and any((self.path / "checkpoints").glob("*.safetensors"))

    def _error_message(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        errors = [line.removeprefix("accel: ") for line in lines if line.startswith("accel: ")]
        return errors[-1] if errors else " / ".join(lines[-6:]) or "it printed nothing"


def measured_values(path: Path) -> Values:
    """A finished run's metrics; without bytes if actors ran torch, which publishes no compressed policy.

    Raises: AccelError: no episode ended, or nothing was trained.
    """
    run, summary = load_run_record(path), Summary.read(path)
    if summary.return_mean is None:
        raise AccelError(f"no episode of run {path.name} ended: increase total_env_steps")
    policy = path / "policy" / "final.accel"
    values = {
        "return": summary.return_mean,
        "env_steps_per_s": summary.env_steps / run.training_s,
        "training_s": run.training_s,
        "actor_s": run.actor_us_per_step,
        "env_steps": float(summary.env_steps),
    }
    return values | {"bytes": float(policy.stat().st_size)} if policy.exists() else values
