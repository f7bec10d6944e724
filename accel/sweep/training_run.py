"""One whole training run as a child process: started or resumed, followed while it trains, and read at its end.

On Linux the child, ``accel train``, is asked to stop when its parent dies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.errors import AccelError, CheckpointError, RunDirectoryError, SweepError
from accel.monitor.line_file import read_lines
from accel.monitor.recorder import TIME_KEY, RunClock, read_metrics
from accel.runs.directory import STARTS, RunDirectory
from accel.runs.summary import Summary
from accel.system.atomic import write_atomically
from accel.system.signals import FORWARDED, parent_death

# Without these variables of a launcher, the child of a rank is no rank itself.
_LAUNCHER_PREFIXES = (
    *("OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_", "MPI_LOCALRANKID", "PALS_", "FLUX_TASK_"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_POLL_S = 0.1
_STOP_S = 60.0
_TAIL = 6
_REPLAY = "replay"


@dataclass(frozen=True)
class RunProgress:
    """A run's progress by its records.

    Attributes:
        env_steps: in total.
        return_mean: of the last episodes; None before the first.
        training_s: of training, over all parts of an interrupted run.
        earlier_s, earlier_env_steps: before the part of the run that wrote the record.
    """

    env_steps: int
    return_mean: float | None
    training_s: float
    earlier_s: float = 0.0
    earlier_env_steps: int = 0


class TrainingRun:
    """A training run in its own directory.

    Attributes:
        path: the run's directory.
        log: the run's output.
    """

    def __init__(
        self, config: TrainConfig, directory: Path, name: str, *, origin: Path | None = None, whole: bool = False
    ) -> None:
        """Describe a run; nothing is started or written.

        Args:
            config: of the run.
            directory: for run directories.
            name: of this one.
            origin: the run with whose newest checkpoint this one begins; None: a new one.
            whole: begin an interrupted run anew, so that a deterministic one ends as if it had never been interrupted.
        """
        self._config = config.replace(name=name, results_dir=directory)
        self._origin = origin
        self._whole = whole
        self.path = directory.absolute() / name
        self.log = self.path.parent / f"{name}.log"

    def train(self, follow: Callable[[RunProgress], bool]) -> Summary:
        """Train to the end, resuming from an earlier attempt's checkpoint.

        Args:
            follow: called with each record; True stops the run in good order.
        Raises:
            SweepError: the run failed, with its error message, or the directory holds another configuration's run.
        """
        self._check_directory()
        if self.is_complete():
            return Summary.read(self.path)
        process = self._start()
        seen = 0
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                records = self.records()
                if any(follow(record) for record in records[seen:]):
                    return self._stop(process)
                seen = len(records)
        finally:
            if process.poll() is None:
                process.terminate()
                _wait(process)
        if process.returncode != 0:
            raise SweepError(f"run {self.path.name} failed: {self._error_message()}")
        for record in self.records()[seen:]:
            follow(record)
        return Summary.read(self.path)

    def records(self) -> list[RunProgress]:
        """All records so far."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        clock, found = RunClock(self._starts()), list[RunProgress]()
        earlier_env_steps = 0
        for record in read_metrics(path):
            elapsed, steps, mean = record.get("elapsed_s"), record.get("env_steps"), record.get("return_mean")
            if not isinstance(elapsed, int | float) or not isinstance(steps, int):
                continue
            now, before_s = record.get(TIME_KEY), clock.earlier_s
            total_s = clock.seconds(float(elapsed), float(now) if isinstance(now, int | float) else None)
            if found and clock.earlier_s > before_s:
                earlier_env_steps = found[-1].env_steps
            mean = float(mean) if isinstance(mean, int | float) else None
            found.append(RunProgress(steps, mean, total_s, clock.earlier_s, earlier_env_steps))
        return found

    def _starts(self) -> list[float]:
        """Unix times, in seconds, at which processes started or resumed the run."""
        path = self.path / STARTS
        try:
            lines = read_lines(path) if path.exists() else ()
            return [float(json.loads(line)["unix_time_s"]) for line in lines]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SweepError(
                f"{path} is damaged ({error!r}): remove {self.path}, so that the trial starts anew"
            ) from error

    def _check_directory(self) -> None:
        """Raises SweepError: the directory holds a run of another configuration."""
        if not (self.path.exists() and self._file.exists()):
            return
        found, wanted = load_toml(self._file), tomllib.loads(self._toml())
        places = {"name", "results_dir"}
        differing = sorted(k for k in (found.keys() | wanted.keys()) - places if found.get(k) != wanted.get(k))
        if differing:
            raise SweepError(
                f"{self.path} holds a run of another study, which differs in {', '.join(differing)}: give another "
                "--out, or remove it"
            )

    @property
    def _file(self) -> Path:
        return self.path.parent / f"{self.path.name}.toml"

    def _toml(self) -> str:
        return tomlkit.dumps(self._config.to_toml_values())

    def _start(self) -> subprocess.Popen[bytes]:
        self._wait_until_free()
        if self._whole or not self._has_checkpoint():
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, self._toml().encode())
            if self._origin is not None:
                self._copy(self._origin)
        goes_on = self._has_checkpoint()
        options = ["--resume", str(self.path)] if goes_on else ["--config", str(self._file)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_PREFIXES)}
        command = [sys.executable, "-P", "-m", "accel", "train", *options]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=parent_death(FORWARDED),  # a repeated one of these does not end the run at once
            )

    def _copy(self, origin: Path) -> None:
        """Begin as a run that was stopped where its origin is. Raises CheckpointError, RunDirectoryError."""
        newest = max((origin / "checkpoints").glob("step-*.safetensors"), default=None)
        if newest is None:
            raise CheckpointError(f"{origin} holds no checkpoint: remove it, so that it is trained again")
        with RunDirectory.create(self.path.parent, self.path.name) as run:
            if (origin / _REPLAY).is_dir():
                shutil.copytree(origin / _REPLAY, run.path / _REPLAY)
            run.checkpoints.mkdir()
            shutil.copyfile(newest, run.checkpoints / newest.name)
            run.write_config(self._config.to_toml_values())  # the last: without it there is nothing to go on with

    def is_complete(self) -> bool:
        """Whether it ended by itself, and was not stopped by its parent or a pruner."""
        if not (self.path / "summary.json").exists():
            return False
        return "reached" in Summary.read(self.path).reason

    def _wait_until_free(self) -> None:
        """Wait for a run whose parent died to end. Raises RunDirectoryError: another process keeps working on it."""
        deadline = time.monotonic() + _STOP_S
        while self.path.exists():
            try:
                RunDirectory.open(self.path).close()
                return
            except RunDirectoryError:
                if not (self.path / "config.toml").exists():
                    return
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _has_checkpoint(self) -> bool:
        return (self.path / "config.toml").exists() and any((self.path / "checkpoints").glob("*.safetensors"))

    def _stop(self, process: subprocess.Popen[bytes]) -> Summary:
        process.terminate()
        _wait(process)
        return Summary.read(self.path)

    def _error_message(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        errors = [line.removeprefix("accel: ") for line in lines if line.startswith("accel: ")]
        return errors[-1] if errors else " / ".join(lines[-_TAIL:]) or "it printed nothing"


def measured_values(run: TrainingRun, summary: Summary) -> Mapping[str, float]:
    """A finished run's metrics; without bytes if actors ran torch, which publishes no compressed policy.

    Raises:
        AccelError: no episode ended, or nothing was trained.
    """
    records = run.records()
    if summary.return_mean is None or not records:
        raise AccelError(f"no episode of run {run.path.name} ended: increase total_env_steps")
    last = records[-1]
    part_steps = max(summary.env_steps - last.earlier_env_steps, 1)
    training_s = max(last.training_s, last.earlier_s + summary.training_s)
    working_s = sum(seconds for phase, seconds in summary.actor_s.items() if phase != "wait")
    policy = run.path / "policy" / "final.accel"
    values = {
        "return": summary.return_mean,
        "env_steps_per_s": summary.env_steps / training_s,
        "training_s": training_s,
        "actor_s": working_s / part_steps * 1e6,
        "env_steps": float(summary.env_steps),
    }
    return values | {"bytes": float(policy.stat().st_size)} if policy.exists() else values


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
