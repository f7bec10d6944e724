"""One host at a time on one SQLite file, which does not lock across hosts."""

from __future__ import annotations

import _thread
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
                if _holder(claim) != host:
                    logger.error("%s is another host's by now: this one was asleep for too long. Stopping", path)
                    _thread.interrupt_main()
                    return
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
        while not _try_claim(claim, host, database, stale_s):
            pass
    except OSError as error:
        raise SweepError(
            f"cannot write to {claim.parent}: {error.strerror}; choose another --out or --storage"
        ) from error


def _try_claim(claim: Path, host: str, database: Path, stale_s: float) -> bool:
    """Take the claim, or share it with others on this host; False when somebody else changed it meanwhile.

    A claim is made by a link, and an old one taken away by a rename: of several hosts that try at once, one succeeds.

    Raises:
        SweepError: it is another host's.
    """
    probe = claim.with_name(f".{claim.name}.{host}.{os.getpid()}.{time.time_ns()}")
    probe.write_text(json.dumps({"host": host}))
    try:
        if claim.exists():
            found, holder = claim.stat(), _holder(claim)
            if holder is None or probe.stat().st_mtime - found.st_mtime >= stale_s:
                _take_away(claim, found, probe.with_name(f"{probe.name}.old"))
            elif holder == host:
                os.utime(claim)
                return _holder(claim) == host
            else:
                raise SweepError(
                    f"{database} is in use on host {holder}, and this is {host}. {_REMEDY}. If nothing runs on "
                    f"{holder} any more, wait {stale_s:.0f} s"
                )
        os.link(probe, claim)
        return True
    except (FileNotFoundError, FileExistsError):
        return False
    finally:
        probe.unlink(missing_ok=True)


def _take_away(claim: Path, found: os.stat_result, aside: Path) -> None:
    """Remove an old claim, unless it was renewed or replaced since it was found old."""
    os.rename(claim, aside)
    try:
        taken = aside.stat()
        if (taken.st_ino, taken.st_mtime_ns) != (found.st_ino, found.st_mtime_ns):
            os.link(aside, claim)
    finally:
        aside.unlink()


def _holder(claim: Path) -> str | None:
    """Who claimed the database; None for a claim cut short by a full disk, which claims nothing."""
    try:
        return str(json.loads(claim.read_text())["host"])
    except (ValueError, KeyError, TypeError):
        return None
