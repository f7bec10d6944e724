"""Who may work on a study's SQLite file: one host at a time, by a claim that it keeps fresh."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from accel.sweep.errors import SweepError
from accel.sweep.hosts import one_host
from accel.sweep.storage import default_url


def test_two_hosts_on_one_sqlite_file_are_refused_with_the_remedy(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    with one_host(url, "alpha"), one_host(url, "alpha"):
        with pytest.raises(SweepError, match=r"in use on host alpha, and this is beta.*--storage postgresql"):
            with one_host(url, "beta"):
                pass
        with one_host("postgresql://u@h/d", "beta"):
            pass
    claim = tmp_path / "study.db.host-1"
    os.utime(claim, (time.time() - 3600, time.time() - 3600))
    with one_host(url, "beta"), pytest.raises(SweepError, match="host beta"), one_host(url, "alpha"):
        pass


def test_of_two_hosts_that_find_the_same_old_claim_one_gets_it(tmp_path: Path) -> None:
    for attempt in range(20):
        place = tmp_path / str(attempt)
        place.mkdir()
        url, claim = default_url(place), place / "study.db.host-1"
        claim.write_text('{"host": "gone"}')
        os.utime(claim, (time.time() - 3600, time.time() - 3600))
        together = threading.Barrier(4)
        holders: list[str] = []
        refused: list[str] = []

        def start(host: str, url: str, holders: list[str], refused: list[str], together: threading.Barrier) -> None:
            together.wait()
            try:
                with one_host(url, host):
                    holders.append(host)
            except SweepError:
                refused.append(host)

        threads = [
            threading.Thread(target=start, args=(f"host-{n % 2}", url, holders, refused, together)) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(holders)) == 1 and len(holders) == len(refused) == 2, (attempt, holders, refused)
        assert [path.name for path in place.iterdir()] == ["study.db.host-2"]


def test_a_claim_stays_fresh_while_its_worker_lives(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    claim = tmp_path / "study.db.host-1"
    with one_host(url, "alpha", stale_s=30.0):
        os.utime(claim, (0, 0))
        while not claim.stat().st_mtime:  # renewed every five seconds
            time.sleep(0.1)
        with pytest.raises(SweepError, match="host alpha"), one_host(url, "beta", stale_s=30.0):
            pass
    os.utime(claim, (0, 0))
    with one_host(url, "beta", stale_s=30.0):
        pass
