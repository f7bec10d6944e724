"""Training goes on, and learns, while actors are killed, stopped and hang, and nodes are lost: ``scripts/chaos``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel.config.algorithms import ALGORITHMS
from tests.contracts.ranks import ROOT, need_mpirun


def chaos(*words: str) -> None:
    need_mpirun()
    program = [sys.executable, str(ROOT / "scripts/chaos"), *words]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    """A random policy has a mean return of 22."""
    chaos("--minutes", "1", "--faults", "10", "--reach", "40", "--out", str(tmp_path))
    assert "- yes: every fault was told, and nothing else" in (tmp_path / "README.md").read_text()


OTHERS = [name for name in ALGORITHMS if name != "impala"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", OTHERS)
def test_every_algorithm_goes_on_through_chaos(algorithm: str) -> None:
    chaos("--minutes", "0.4", "--faults", "6", "--algorithm", algorithm)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_minutes_with_a_hundred_faults() -> None:
    chaos("--minutes", "10", "--faults", "100")
