"""Storages of studies: any of Optuna's, by default a journal file, which workers on several hosts may share."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import BaseStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalRedisBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from accel.errors import AccelError, SweepError

_SQLITE_TIMEOUT_S = 60
_RETRY_S = 0.5
_MOST_JOURNAL_BYTES = 2**30
# what workers that make the same tables meet, or one that waits for another's lock
_COLLISIONS = (OperationalError, IntegrityError, ProgrammingError)
logger = logging.getLogger("accel")


def default_url(directory: Path) -> str:
    """A journal in the output directory."""
    return f"journal:{directory.absolute() / 'study.log'}"


def without_passwords(text: str) -> str:
    """A text, such as a URL, a command or a message, with ``***`` for every password in a URL."""
    text = re.sub(r"(://[^/\s:@]*):\S*@", r"\1:***@", text)
    return re.sub(r"([?&][\w-]*(?:passw(?:or)?d|pwd|secret|token)[\w-]*=)[^&\s]*", r"\1***", text)


def storage_errors() -> tuple[type[Exception], ...]:
    """The errors that Optuna's storages raise when their server does not answer."""
    errors: list[type[Exception]] = [StorageInternalError, SQLAlchemyError]
    if importlib.util.find_spec("redis") is not None:
        errors.append(importlib.import_module("redis").RedisError)
    return tuple(errors)


@contextmanager
def connected(url: str) -> Iterator[BaseStorage]:
    """A storage whose connections are closed at the end.

    Args:
        url: of a database (``sqlite:///FILE``, ``postgresql://…``, ``mysql://…``), of a Redis server (``redis://…``),
            or ``journal:FILE``.
    Raises:
        SweepError: it cannot be reached, its driver is not installed, it would not outlive this process, or it is lost
            during use.
    """
    storage = _open(url)
    try:
        yield storage
    except Exception as error:
        cause = _storage_error(error)
        if cause is None:
            raise
        raise SweepError(
            f"storage {without_passwords(url)} was lost: {_first_line(cause)}. Finished trials are kept: run the same "
            "command again when it is back"
        ) from error
    finally:
        storage.remove_session()
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.engine.dispose()


def storage_file(url: str) -> Path | None:
    """The file of a SQLite database or a journal; None for a server.

    Raises:
        SweepError: a malformed URL, a database in memory.
    """
    if url.startswith("journal:"):
        return Path(url.removeprefix("journal:")).absolute()
    if url.startswith("redis"):
        return None
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SweepError(
            f"storage {without_passwords(url)!r} is no URL: give one such as journal:FILE, sqlite:///sweep.db or "
            "postgresql://USER@HOST/NAME"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        return None
    if parsed.database in (None, "", ":memory:"):
        raise SweepError("a SQLite database in memory would be lost with this process: give sqlite:///FILE")
    return Path(str(parsed.database)).absolute()


def _open(url: str, attempts: int = 3) -> BaseStorage:
    """Workers that start together may collide when they create the tables: several attempts."""
    unusable: tuple[type[Exception], ...] = (*storage_errors(), OSError, ValueError, RuntimeError, OptunaError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if url.startswith("journal:"):
                return _Journal(Path(url.removeprefix("journal:"))).replayed()
            if url.startswith("redis"):
                return optuna.storages.JournalStorage(JournalRedisBackend(url))
            database = storage_file(url)
            if database is not None:
                database.parent.mkdir(parents=True, exist_ok=True)
            timeout = {} if database is None else {"connect_args": {"timeout": _SQLITE_TIMEOUT_S}}
            return optuna.storages.RDBStorage(url, engine_kwargs=timeout)
    except ImportError as error:
        raise SweepError(f"storage {without_passwords(url)} needs a driver that is not installed: {error}") from error
    except unusable as error:
        if attempts > 1 and any(isinstance(found, _COLLISIONS) for found in (error, error.__cause__)):
            time.sleep(_RETRY_S)
            return _open(url, attempts - 1)
        raise SweepError(f"cannot open storage {without_passwords(url)}: {_first_line(error)}") from error


class _Journal(JournalFileBackend):
    """A journal file. A damaged record inside it is an error: without it, later records would mean other trials.

    An incomplete last line is what a worker killed while writing left, as every write holds the lock. It is removed
    before the next one, which would be appended to it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._mutex = path, JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self._mutex)

    def replayed(self) -> optuna.storages.JournalStorage:
        """The storage that its records make. Raises SweepError, OSError."""
        if self._path.exists() and not self._path.is_file():
            raise OSError("it is no regular file")
        if self._path.exists() and (size := self._path.stat().st_size) > _MOST_JOURNAL_BYTES:
            raise OSError(f"it has {size:,} bytes, and may have {_MOST_JOURNAL_BYTES:,}")
        try:
            return optuna.storages.JournalStorage(self)
        except (AccelError, OSError):
            raise
        except Exception as error:  # Optuna takes every record's values as they are
            raise self._damaged(error) from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See ``JournalFileBackend.append_logs``. Raises StorageInternalError, as full databases do."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            self._mutex.acquire()
            try:
                # Whoever lost the lock meanwhile, as a frozen process does, adds behind others, and writes over none.
                with os.fdopen(os.open(self._path, os.O_RDWR | os.O_APPEND), "rb+") as file:
                    self._remove_incomplete_line(file)
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                self._mutex.release()
        except OSError as error:
            raise StorageInternalError(error.strerror) from error

    def _remove_incomplete_line(self, file: BinaryIO) -> None:
        """Raises OSError."""
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            complete = file.read().rfind(b"\n") + 1
            file.truncate(complete)
            logger.warning(
                "%s: removed an incomplete last record of %d bytes, which a killed worker left",
                self._path, size - complete,
            )  # fmt: skip

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """See ``JournalFileBackend.read_logs``. Raises SweepError, StorageInternalError."""
        records = super().read_logs(log_number_from)
        while True:
            try:
                record: object = next(records, None)
            except (ValueError, RecursionError) as error:
                raise self._damaged(error) from error
            except OSError as error:
                raise StorageInternalError(error.strerror) from error
            if record is None:
                return
            if not isinstance(record, dict) or not isinstance(record.get("op_code"), int):
                raise self._damaged(ValueError("a line is no record"))
            yield record

    def _damaged(self, error: Exception) -> SweepError:
        return SweepError(
            f"journal {self._path} is damaged inside ({_first_line(error)}), and later records depend on what is lost: "
            "restore the file, or start anew with another --storage"
        )


def _storage_error(error: BaseException | None) -> Exception | None:
    """The storage's first error behind another: Optuna may raise its own when it cannot record a failure."""
    known, found = storage_errors(), None
    while error is not None and not isinstance(error, AccelError):
        found = error if isinstance(error, known) else found
        error = error.__cause__ or error.__context__
    return found


def _first_line(error: Exception) -> str:
    text = without_passwords(str(error))
    return text.splitlines()[0].rstrip(". ") if text else type(error).__name__
