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

pytestmark = pytest.mark.learning


@pytest.mark.parametrize("env_steps", ["5_000", pytest.param("100_000", marks=pytest.mark.long)])
def test_the_example_runs(env_steps: str, tmp_path: Path) -> None:
    """As it stands, or with fewer steps."""
    need_mpirun()
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert "100_000" in example
    (tmp_path / "example.py").write_text(example.replace("100_000", env_steps))
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
    assert return_mean > 300 or env_steps == "5_000"  # It learns: a policy at random has 20.
