"""Where a study lives: any storage of Optuna's, SQLite by default, and one host at a time on one SQLite file."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import MissingExtraError
from accel.extras import install_command, missing_distributions
from accel.sweep.errors import SweepError
from accel.sweep.recovery import GRACE_S, HEARTBEAT_S, queue_again

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_SQLITE_TIMEOUT_S = 60
_RETRY_S = 0.5
_REMEDY = (
    "SQLite does not lock across hosts: give a server instead, such as --storage postgresql://USER@HOST/NAME, or run "
    "all workers on one host"
)


def require_optuna() -> None:
    """Raises MissingExtraError with the command that installs Optuna and matplotlib."""
    missing = missing_distributions("sweep")
    if missing:
        raise MissingExtraError(f"accel sweep needs {', '.join(missing)}: {install_command('sweep')}")


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
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if url.startswith("journal:"):
                return optuna.storages.JournalStorage(JournalFileBackend(url.removeprefix("journal:")))
            if url.startswith("redis"):
                return optuna.storages.JournalStorage(JournalRedisBackend(url))
            path = sqlite_path(url)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs={} if path is None else {"connect_args": {"timeout": _SQLITE_TIMEOUT_S}},
                heartbeat_interval=HEARTBEAT_S,
                grace_period=GRACE_S,
                heartbeat_stale_trial_callback=queue_again,
            )
    except ImportError as error:
        raise SweepError(f"storage {public_url(url)} needs a driver that is not installed: {error}") from error
    except (SQLAlchemyError, OSError, ValueError, optuna.exceptions.OptunaError) as error:
        if attempts > 1:  # workers that start at once get in each other's way when they make the tables
            time.sleep(_RETRY_S)
            return open_storage(url, attempts - 1)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SweepError(f"cannot open storage {public_url(url)}: {reason}") from error


@contextmanager
def connected(url: str) -> Iterator[BaseStorage]:
    """A storage whose connections are closed at the end; see ``open_storage``."""
    import optuna

    storage = open_storage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.engine.dispose()


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL, None for other storages. Raises SweepError: a malformed URL, a database in memory."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

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


def public_url(url: str) -> str:
    """The URL without its password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


@contextmanager
def one_host(url: str, host: str | None = None, stale_s: float = GRACE_S) -> Iterator[None]:
    """While this context lasts, workers on other hosts are refused on the same SQLite file; other storages need none.

    A file beside the database names the host, and its time of change tells that somebody there is alive. Both times
    that are compared come from that file system, so that hosts' clocks need not agree.

    Args:
        url: of the storage.
        host: this one's name.
        stale_s: a claim that was not renewed for so long is over.
    Raises:
        SweepError: another host works on it; the message says what to do.
    """
    path = sqlite_path(url)
    if path is None:
        yield
        return
    claim = path.with_name(f"{path.name}.host")
    host = host or socket.gethostname()
    _claim(claim, host, path, stale_s)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(stale_s / 6):
            with suppress(OSError):
                os.utime(claim)

    thread = threading.Thread(target=renew, daemon=True, name="sweep-host-claim")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _claim(claim: Path, host: str, database: Path, stale_s: float) -> None:
    try:
        claim.parent.mkdir(parents=True, exist_ok=True)
        probe = claim.with_name(f".{claim.name}.{os.getpid()}.{time.time_ns()}")
        probe.write_text(json.dumps({"host": host}))
        try:
            other = _other_host(claim, host)
            if other is not None and probe.stat().st_mtime - claim.stat().st_mtime < stale_s:
                raise SweepError(
                    f"{database} is in use on host {other}, and this is {host}. {_REMEDY}. If nothing runs on {other} "
                    f"any more, wait {stale_s:.0f} s"
                )
            if claim.exists():
                os.replace(probe, claim)
            else:
                os.link(probe, claim)  # of two hosts that start at once, one succeeds
        finally:
            probe.unlink(missing_ok=True)
    except FileExistsError:
        _claim(claim, host, database, stale_s)
    except OSError as error:
        raise SweepError(
            f"cannot write to {claim.parent}: {error.strerror}; choose another --out or --storage"
        ) from error


def _other_host(claim: Path, host: str) -> str | None:
    """Who claimed the database, None if nobody or this host did."""
    try:
        holder = str(json.loads(claim.read_text())["host"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # a claim cut short by a full disk or a kill claims nothing
    return None if holder == host else holder
