"""Where a study lives: any storage of Optuna's, SQLite by default."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from accel.errors import AccelError, MissingExtraError
from accel.sweep.errors import SweepError, storage_errors
from accel.sweep.recovery import GRACE_S, HEARTBEAT_S, queue_again
from accel.system.extras import install_command, missing_distributions

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_SQLITE_TIMEOUT_S = 60
_RETRY_S = 0.5
_DRIVERS = {
    "redis": "redis", "postgresql://": "psycopg2-binary", "postgresql+psycopg2": "psycopg2-binary",
    "postgresql+psycopg:": "'psycopg[binary]'", "mysql://": "mysqlclient", "mysql+pymysql": "pymysql",
}  # fmt: skip


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

    unusable: tuple[type[Exception], ...] = (*storage_errors(), OSError, ValueError, optuna.exceptions.OptunaError)
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
        known = (package for scheme, package in _DRIVERS.items() if url.startswith(scheme))
        remedy = f"pip install {package}" if (package := next(known, None)) else str(error)
        raise SweepError(f"storage {public_url(url)} needs a driver that is not installed: {remedy}") from error
    except unusable as error:
        if attempts > 1:  # workers that start at once get in each other's way when they make the tables
            time.sleep(_RETRY_S)
            return open_storage(url, attempts - 1)
        raise SweepError(f"cannot open storage {public_url(url)}: {_first_line(error)}") from error


@contextmanager
def connected(url: str) -> Iterator[BaseStorage]:
    """A storage whose connections are closed at the end; see ``open_storage``.

    Raises:
        SweepError: also where the storage is lost on the way.
    """
    import optuna

    storage = open_storage(url)
    try:
        yield storage
    except Exception as error:
        cause = _storage_error(error)
        if cause is None:
            raise
        raise SweepError(
            f"storage {public_url(url)} was lost: {_first_line(cause)}. What is in it is kept: start the same command "
            "again when it is back"
        ) from error
    finally:
        storage.remove_session()
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.engine.dispose()


def _storage_error(error: BaseException | None) -> Exception | None:
    """The storage's error that led to another: Optuna, which tries to note down a failure there, may raise its own."""
    known = storage_errors()
    while error is not None and not isinstance(error, AccelError):
        if isinstance(error, known):
            return error
        error = error.__cause__ or error.__context__
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


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
