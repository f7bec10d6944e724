"""The README's example in Python, as a user runs it: a script in a directory of its own, with real ranks."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel.runs.summary import Summary
from tests.contracts.ranks import ROOT, need_mpirun

pytestmark = [pytest.mark.mpi, pytest.mark.learning]


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    need_mpirun()
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "results").iterdir()
    summary = Summary.read(run)
    return_mean, env_steps_per_s = map(float, done.stdout.splitlines()[-1].split())
    assert math.isclose(return_mean, summary.return_mean or math.nan)
    assert math.isclose(env_steps_per_s, summary.env_steps_per_s)
    assert summary.finished and summary.env == "CartPole-v1"
    assert return_mean > 300  # It learns: a policy at random has 20.
