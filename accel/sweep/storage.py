"""Storages of studies: any of Optuna's, by default SQLite, which workers on one host at a time may use."""

from __future__ import annotations

import _thread
import glob
import json
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import BaseStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalRedisBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from accel.errors import AccelError, SweepError
from accel.sweep.recovery import GRACE_S, HEARTBEAT_S, queue_again, storage_errors

_SQLITE_TIMEOUT_S = 60
_RETRY_S = 0.5
_DRIVERS = {
    "redis": "redis", "postgresql://": "psycopg2-binary", "postgresql+psycopg2": "psycopg2-binary",
    "postgresql+psycopg:": "'psycopg[binary]'", "mysql://": "mysqlclient", "mysql+pymysql": "pymysql",
}  # fmt: skip
_REMEDY = (
    "SQLite does not lock across hosts: give a server instead, such as --storage postgresql://USER@HOST/NAME, or a "
    "journal on a file system that all hosts share, --storage journal:FILE, or run all workers on one host"
)

logger = logging.getLogger("accel")


def default_url(directory: Path) -> str:
    """A SQLite file in the output directory."""
    return f"sqlite:///{directory.absolute() / 'study.db'}"


def open_storage(url: str, attempts: int = 3) -> BaseStorage:
    """Connect to a storage.

    Args:
        url: of a database (``sqlite:///FILE``, ``postgresql://…``, ``mysql://…``), of a Redis server (``redis://…``),
            or ``journal:FILE``.
        attempts: how often to try.
    Raises:
        SweepError: it cannot be reached, its driver is not installed, or it would not outlive this process.
    """

    unusable: tuple[type[Exception], ...] = (*storage_errors(), OSError, ValueError, RuntimeError, OptunaError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if url.startswith("journal:"):
                return _Journal(Path(url.removeprefix("journal:"))).replayed()
            if url.startswith("redis"):
                return optuna.storages.JournalStorage(JournalRedisBackend(url))
            database = sqlite_path(url)
            if database is not None:
                database.parent.mkdir(parents=True, exist_ok=True)
            return _Database(
                url,
                engine_kwargs={} if database is None else {"connect_args": {"timeout": _SQLITE_TIMEOUT_S}},
                heartbeat_interval=HEARTBEAT_S,
                grace_period=GRACE_S,
                heartbeat_stale_trial_callback=queue_again,
            )
    except ImportError as error:
        known = (package for scheme, package in _DRIVERS.items() if url.startswith(scheme))
        remedy = f"pip install {package}" if (package := next(known, None)) else str(error)
        raise SweepError(f"storage {public_url(url)} needs a driver that is not installed: {remedy}") from error
    except unusable as error:
        if attempts > 1:  # workers that start together may collide when they create the tables
            time.sleep(_RETRY_S)
            return open_storage(url, attempts - 1)
        raise SweepError(f"cannot open storage {public_url(url)}: {_first_line(error)}") from error


class _Database(optuna.storages.RDBStorage):
    """One whose heartbeats miss a beat where it is lost, not end their thread with a traceback: the trial says so."""

    def record_heartbeat(self, trial_id: int) -> None:
        """Tell others that this trial's worker lives."""
        with suppress(StorageInternalError, *storage_errors()):
            super().record_heartbeat(trial_id)


class _RepairingLock(JournalFileSymlinkLock):
    """A journal's lock that removes an incomplete last line, which a worker killed while writing leaves.

    The lock is held for each write, so an incomplete line is nobody's. Without the repair, the next record would be
    appended to it, and the journal could not be read any more.
    """

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._journal = journal

    def acquire(self) -> bool:
        """See ``JournalFileSymlinkLock.acquire``."""
        acquired = super().acquire()
        try:
            self._repair()
        except BaseException:
            self.release()  # Of a journal that is gone it could never be taken again.
            raise
        return acquired

    def _repair(self) -> None:
        with self._journal.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                complete = file.read().rfind(b"\n") + 1
                file.truncate(complete)
                logger.warning(
                    "%s: removed an incomplete last record of %d bytes, which a killed worker left",
                    self._journal, size - complete,
                )  # fmt: skip


class _Journal(JournalFileBackend):
    """A journal file. A damaged record inside it is an error: without it, later records would mean other trials."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _RepairingLock(path))
        self._path = path

    def replayed(self) -> optuna.storages.JournalStorage:
        """The storage that its records make. Raises SweepError, OSError."""
        try:
            return optuna.storages.JournalStorage(self)
        except (AccelError, OSError):
            raise
        except Exception as error:  # Optuna takes every record's values as they are
            raise self._damaged(error) from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See ``JournalFileBackend.append_logs``. Raises StorageInternalError, as full databases do."""
        try:
            super().append_logs(logs)
        except OSError as error:
            raise StorageInternalError(error.strerror) from error

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


@contextmanager
def connected(url: str) -> Iterator[BaseStorage]:
    """A storage whose connections are closed at the end; see ``open_storage``.

    Raises:
        SweepError: it cannot be opened, or is lost during use.
    """

    storage = open_storage(url)
    try:
        yield storage
    except Exception as error:
        cause = _storage_error(error)
        if cause is None:
            raise
        raise SweepError(
            f"storage {public_url(url)} was lost: {_first_line(cause)}. Finished trials are kept: run the same command "
            "again when it is back"
        ) from error
    finally:
        storage.remove_session()
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.engine.dispose()


def _storage_error(error: BaseException | None) -> Exception | None:
    """The storage's first error behind another: Optuna may raise its own when it cannot record a failure."""
    known, found = storage_errors(), None
    while error is not None and not isinstance(error, AccelError):
        found = error if isinstance(error, known) else found
        error = error.__cause__ or error.__context__
    return found


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(". ") if str(error) else type(error).__name__


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL, None for other storages. Raises SweepError: a malformed URL, an in-memory database."""

    if url.startswith(("journal:", "redis")):
        return None
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SweepError(
            f"storage {url!r} is no URL: give one such as sqlite:///sweep.db, postgresql://USER@HOST/NAME or "
            "journal:FILE"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        return None
    if parsed.database in (None, "", ":memory:"):
        raise SweepError("a SQLite database in memory would be lost with this process: give sqlite:///FILE")
    return Path(str(parsed.database)).absolute()


def storage_file(url: str) -> Path | None:
    """The file of a SQLite database or a journal; None for a server."""
    if url.startswith("journal:"):
        return Path(url.removeprefix("journal:")).absolute()
    return sqlite_path(url)


def public_url(url: str) -> str:
    """The URL without its password."""

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


@contextmanager
def one_host(url: str, host: str | None = None, stale_s: float = GRACE_S) -> Iterator[None]:
    """Refuse workers on other hosts the same SQLite file, which does not lock across hosts, within this context.

    A file beside the database, DATABASE.host-NUMBER, names the host, and its modification time shows that a worker
    there is alive. Both times that are compared come from that file system, so hosts' clocks need not agree.

    Args:
        url: of the storage; only SQLite files are claimed.
        host: this one's name.
        stale_s: seconds after which a claim expires unless it is renewed.
    Raises:
        SweepError: another host works on it; the message says what to do.
    """
    path = sqlite_path(url)
    if path is None:
        yield
        return
    host = host or socket.gethostname()
    _claim(path, host, stale_s)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(stale_s / 6):
            with suppress(OSError, ValueError):  # the user may have removed the claims
                _, last = max(_claims(path).items())
                if _holder(last) != host:
                    logger.error(
                        "another host has taken %s over, because this one was suspended for too long. Stopping", path
                    )
                    _thread.interrupt_main()
                    return
                os.utime(last)

    thread = threading.Thread(target=renew, daemon=True, name="sweep-host-claim")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _claim(database: Path, host: str, stale_s: float) -> None:
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        while not _try_claim(database, host, stale_s):
            pass
    except OSError as error:
        raise SweepError(
            f"cannot write to {database.parent}: {error.strerror}; choose another --out or --storage"
        ) from error


def _try_claim(database: Path, host: str, stale_s: float) -> bool:
    """Claim the database, or share the claim of workers on this host; False if another one was faster.

    Claims are numbered, and the greatest number counts. A claim is created by a link, which only one of several hosts
    can make; whoever finds it expired creates the next number. The valid claim is never removed, so a claim made since
    the last look cannot be removed either.

    Raises:
        SweepError: it is another host's.
    """
    claims = _claims(database)
    probe = database.with_name(f".{database.name}.{host}.{os.getpid()}.{threading.get_ident()}.{time.time_ns()}")
    probe.write_text(json.dumps({"host": host}))
    try:
        number = 0
        if claims:
            number, last = max(claims.items())
            holder = _holder(last)
            if holder is not None and probe.stat().st_mtime - last.stat().st_mtime < stale_s:
                if holder != host:
                    raise SweepError(
                        f"{database} is in use on host {holder}, and this is {host}. {_REMEDY}. If nothing runs on "
                        f"{holder} any more, wait {stale_s:.0f} s"
                    )
                os.utime(last)
                return max(_claims(database)) == number
        claim = database.with_name(f"{database.name}.host-{number + 1}")
        os.link(probe, claim)
        if max(_claims(database)) > number + 1:  # the listing is outdated: that number was used and has expired
            claim.unlink(missing_ok=True)
            return False
        for old in claims.values():
            old.unlink(missing_ok=True)
        return True
    except (FileNotFoundError, FileExistsError):
        return False
    finally:
        probe.unlink(missing_ok=True)


def _claims(database: Path) -> dict[int, Path]:
    """Every claim on a database by its number."""
    found = {}
    for path in database.parent.glob(f"{glob.escape(database.name)}.host-*"):
        number = path.name.rpartition("-")[2]
        if number.isdecimal():
            found[int(number)] = path
    return found


def _holder(claim: Path) -> str | None:
    """The host of a claim; None for a truncated file, which claims nothing."""
    try:
        return str(json.loads(claim.read_text())["host"])
    except (ValueError, KeyError, TypeError):
        return None
