"""A run's directory: what lies where, written atomically, by one process at a time. No torch until a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import tomlkit
from pydantic import TypeAdapter

from accel.config import did_you_mean
from accel.config.base import PLAIN_NAME, is_plain_name
from accel.config.files import FORMAT_VERSION, VERSION_KEY, read_options
from accel.errors import CheckpointError, RunDirectoryError
from accel.json_object import finite
from accel.monitor.line_file import read_lines
from accel.system.atomic import remove_partial_files, write_atomically
from accel.system.untrusted import MAX_JSON_BYTES, read_file

if TYPE_CHECKING:
    from accel.runs.checkpoint import CheckpointState

_LOCK = ".lock"
_POLL_S = 0.05
CONFIG = "config.toml"
STARTS = "starts.jsonl"
Which = Literal["newest", "best"]
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def default_run_name(env: str, seed: int, now: datetime | None = None) -> str:
    """``CartPole-v1-20250131-235959-s0``: environment, local time and seed, safe as a directory name anywhere."""
    plain = _NOT_PLAIN.sub("-", env).strip("-.") or "run"
    return f"{plain}-{(now or datetime.now()):%Y%m%d-%H%M%S}-s{seed}"


@dataclass(frozen=True)
class Start:
    """A process that began to work on a run: Unix time, host and process number; NaN, empty and 0 where damaged."""

    unix_time_s: float
    host: str = ""
    pid: int = 0


_START = TypeAdapter(Start)


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """One run's files. Use ``create`` or ``open``; as a context manager it gives the lock back at the end.

    Attributes:
        path: absolute path of the directory; its last part is the run's name.
        config: the configuration, TOML. machine: hardware, versions, commit and command line, JSON.
        metrics: measurements, one JSON object a line.
        summary: what the run did, JSON; there once it ended in good order.
        checkpoints, policy: directories of checkpoints and of exported policies.
        best: directory of the checkpoint with the best evaluation while the run trained.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        """Args: path: absolute; lock: descriptor that holds the lock, or None for reading only."""
        self.path = path
        self._lock = lock
        self._identity = None if lock is None else _identity(path)
        self.config, self.machine = path / CONFIG, path / "machine.json"
        self.metrics, self.summary = path / "metrics.jsonl", path / "summary.json"
        self.checkpoints, self.best, self.policy = path / "checkpoints", path / "best", path / "policy"

    @classmethod
    def create(cls, root: Path, name: str) -> Self:
        """Make ``root``/``name`` and lock it.

        Raises:
            RunDirectoryError: it exists already, ``name`` is not a plain directory name, or ``root`` cannot be written.
        """
        if not is_plain_name(name):
            raise RunDirectoryError(f"run name {name!r} is not {PLAIN_NAME}")
        path = Path(os.path.abspath(root)) / name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunDirectoryError(
                f"{path} exists already: go on with it by --resume {path}, or choose another --name"
            ) from None
        except (OSError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its path is too long"
            raise RunDirectoryError(
                f"cannot make {path}: {reason}; choose another --results-dir that you may write to"
            ) from None
        return cls(path, _lock(path))

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """An existing run: locked, to go on with it; with ``read_only`` unlocked, also while it is running.

        Raises:
            RunDirectoryError: not a run directory, not writable, or another process is writing to it.
        """
        path = Path(os.path.abspath(path))
        if not (path / CONFIG).is_file():
            problem = "is not a run directory: it holds no config.toml" if path.is_dir() else "is no directory"
            raise RunDirectoryError(f"{path} {problem}; give a run, such as results/NAME{_similar_run(path)}")
        if read_only:
            return cls(path, None)
        run = cls(path, _lock(path))
        for directory in (run.path, run.checkpoints, run.policy):
            remove_partial_files(directory)
        return run

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that hold the lock: a fork that keeps them holds it too."""
        return () if self._lock is None else (self._lock,)

    def write_config(self, values: Mapping[str, object], comments: Mapping[str, str] | None = None) -> None:
        """Write ``config.toml``; ``comments`` by key stand above the keys. Raises RunDirectoryError."""
        document = tomlkit.document()
        document.add(VERSION_KEY, tomlkit.item(FORMAT_VERSION))
        for key, value in values.items():
            for line in (comments or {}).get(key, "").splitlines():
                document.add(tomlkit.comment(line))
            document.add(key, tomlkit.item(value))
        self.write(self.config, tomlkit.dumps(document).encode())

    def read_config(self) -> dict[str, object]:
        """The values in ``config.toml``. Raises RunDirectoryError: damaged; ConfigError: of another format version."""
        try:
            return read_options(self.config)
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                f"{self.config} cannot be read ({error}): restore it, or start a new run"
            ) from error

    def write(self, path: Path, content: bytes | Mapping[str, object]) -> Path:
        """Write one of the run's files, or one below ``policy``; an object as JSON. Returns its path.

        Raises: RunDirectoryError.
        """
        if isinstance(content, Mapping):
            content = (json.dumps(finite(content), indent=2, allow_nan=False, default=str) + "\n").encode()
        self.check_exists()
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            remedy = "; make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise RunDirectoryError(f"cannot write {path}: {error.strerror}{remedy}") from error
        return path

    def next_restart(self) -> int:
        """Note that a process starts to work on this run, in ``starts.jsonl``; returns how many did before it.

        Raises: RunDirectoryError.
        """
        path = self.path / STARTS
        entry = {"unix_time_s": round(time.time(), 3), "host": socket.gethostname(), "pid": os.getpid()}
        try:
            before = read_file(path, MAX_JSON_BYTES) if path.exists() else b""
        except (OSError, ValueError) as error:
            raise RunDirectoryError(f"{path} cannot be read ({error}): move it away to go on") from error
        self.write(path, before + json.dumps(entry).encode() + b"\n")
        return before.count(b"\n")

    def read_starts(self) -> list[Start]:
        """The processes that worked on this run, oldest first; none where that was not recorded."""
        try:
            return [_parse_start(line) for line in read_lines(self.path / STARTS)]
        except OSError:
            return []

    def check_exists(self) -> None:
        """Raises RunDirectoryError where the directory was removed, moved or replaced since this process opened it to
        write, or was opened for reading only."""
        if self._identity is None:
            raise RunDirectoryError(f"{self.path} was opened for reading only")
        if _identity(self.path) != self._identity:
            raise RunDirectoryError(
                f"{self.path} was removed, moved or replaced while the run was writing to it, so the run ends: put it "
                "back to go on from its newest checkpoint by --resume"
            )

    def check_space(self, needed_bytes: int) -> None:
        """Raises RunDirectoryError where the file system has less than that free."""
        self.check_exists()
        try:
            free_bytes = shutil.disk_usage(self.path).free
        except OSError as error:
            raise RunDirectoryError(f"cannot look at {self.path}: {error.strerror}") from error
        if free_bytes < needed_bytes:
            raise RunDirectoryError(
                f"{self.path} has {free_bytes / 2**20:.1f} MiB free, and the run's checkpoints and policies need "
                f"{needed_bytes / 2**20:.1f} MiB: make room, lower --keep-checkpoints, or choose another --results-dir"
            )

    def latest_env_steps(self) -> int:
        """Environment steps behind the newest checkpoint, by its name; zero before the first."""
        names = (re.fullmatch(r"step-(\d+)\.safetensors", path.name) for path in self.checkpoints.glob("step-*"))
        return max((int(match[1]) for match in names if match), default=0)

    def save_checkpoint(self, state: CheckpointState, *, keep: int = 2) -> Path:
        """Write a checkpoint and remove all but the newest ``keep``; returns its path.

        Raises: RunDirectoryError: it does not fit, and older checkpoints are as they were; the directory is gone.
        """
        from accel.runs.checkpoint import CheckpointStore

        self.check_exists()
        store = CheckpointStore(self.checkpoints, keep)
        try:
            return store.save(state)
        except OSError as error:
            self.check_exists()
            kept = f"{store.paths()[-1].name} is kept" if store.paths() else "there is no earlier one"
            raise RunDirectoryError(
                f"cannot write a checkpoint to {self.checkpoints}: {error.strerror}; {kept}"
            ) from error

    def load_checkpoint(self, which: Which = "newest") -> CheckpointState:
        """The newest checkpoint, or the weights with the best evaluation.

        Raises: CheckpointError: there is none, or it is damaged.
        """
        from accel.runs.checkpoint import CheckpointStore

        state = CheckpointStore(self.best if which == "best" else self.checkpoints).load_latest()
        if state is None:
            problem = "holds no checkpoint yet: start the run anew under another --name"
            if which == "best":
                problem = "kept no best policy: train with --evaluate-every N, or leave out --which best"
            raise CheckpointError(f"{self.path} {problem}")
        return state

    def abandon(self) -> None:
        """Remove the directory again unless it holds results: a run that never started leaves its name free.

        One that cannot be removed, or is another by now, stays.
        """
        kept = {_LOCK, STARTS, self.config.name, self.machine.name}
        with suppress(OSError, RunDirectoryError):
            self.check_exists()
            entries = [entry for entry in self.path.iterdir() if entry.name not in kept]
            if all(entry.is_file() and not entry.stat().st_size for entry in entries):
                shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Give the lock back; closing twice is fine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse_start(line: bytes) -> Start:
    try:
        return _START.validate_json(line)
    except ValueError:
        return Start(math.nan)


def _similar_run(path: Path) -> str:
    """The run beside a path that is none whose name is the most similar, as a question; empty without one."""
    try:
        runs = tuple(sorted(child.name for child in path.parent.iterdir() if (child / CONFIG).is_file()))
    except OSError:
        runs = ()
    return did_you_mean(path.name, runs)


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a directory from a later one at the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return None
        raise RunDirectoryError(f"cannot look at {path}: {error.strerror}") from error
    return status.st_dev, status.st_ino


def wait_for_writer(path: Path, patience_s: float) -> bool:
    """Wait so long for whoever writes to a run: a process that outlives its learner may still write a checkpoint.

    Returns:
        Whether nobody does, at the end.
    """
    until_s = time.monotonic() + patience_s
    with suppress(OSError), (path / _LOCK).open("rb") as lock:
        while time.monotonic() < until_s:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            time.sleep(_POLL_S)
        return False
    return True


def _lock(path: Path) -> int:
    """Lock a run directory until the descriptor is closed or the process ends, however it ends."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write to {path}: {error.strerror}; make it writable, or copy the run"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunDirectoryError(f"{path} is in use by another process: wait for it, or stop it") from None
        raise RunDirectoryError(f"cannot lock {path}: {error.strerror}; use a file system with locks") from error
    return descriptor
