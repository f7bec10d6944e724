"""What can go wrong with a sweep as a whole; invalid options are ``ConfigError``."""

from __future__ import annotations

import importlib
import importlib.util

from accel.errors import AccelError


class SweepError(AccelError):
    """A study cannot be opened or shared, every trial failed, or no trial meets the constraints."""


def storage_errors() -> tuple[type[Exception], ...]:
    """What Optuna's storages raise when their server does not answer."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    errors: list[type[Exception]] = [StorageInternalError, SQLAlchemyError]
    if importlib.util.find_spec("redis") is not None:
        errors.append(importlib.import_module("redis").RedisError)
    return tuple(errors)
