"""One host at a time on one SQLite file, which does not lock across hosts."""

from __future__ import annotations

import _thread
import glob
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accel.sweep.errors import SweepError
from accel.sweep.recovery import GRACE_S
from accel.sweep.storage import sqlite_path

logger = logging.getLogger("accel")

_REMEDY = (
    "SQLite does not lock across hosts: give a server instead, such as --storage postgresql://USER@HOST/NAME, or a "
    "journal on a file system that all hosts share, --storage journal:FILE, or run all workers on one host"
)


@contextmanager
def one_host(url: str, host: str | None = None, stale_s: float = GRACE_S) -> Iterator[None]:
    """While this context lasts, workers on other hosts are refused on the same SQLite file; other storages need none.

    A file beside the database, DATABASE.host-NUMBER, names the host, and its time of change tells that somebody there
    is alive. Both times that are compared come from that file system, so that hosts' clocks need not agree.

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
    host = host or socket.gethostname()
    _claim(path, host, stale_s)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(stale_s / 6):
            with suppress(OSError, ValueError):  # nobody else claims what a user cleared away
                _, last = max(_claims(path).items())
                if _holder(last) != host:
                    logger.error("%s is another host's by now: this one was asleep for too long. Stopping", path)
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
    """Claim the database, or share its claim with others on this host; False when somebody else came first.

    Claims are numbered, and the greatest number counts. One is made by a link, which of several hosts one alone can
    make; whoever finds it old makes the next. Nobody removes the one that counts, so that nobody can remove a claim
    that was made since he looked.

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
        if max(_claims(database)) > number + 1:  # looked up long ago: that number was used and over
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
    """Who claimed the database; None for a claim cut short by a full disk, which claims nothing."""
    try:
        return str(json.loads(claim.read_text())["host"])
    except (ValueError, KeyError, TypeError):
        return None
