"""docs/policies-you-already-have.md begins with commands that work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "policies-you-already-have.md"


@pytest.mark.slow
def test_the_page_begins_with_commands_that_work(tmp_path: Path) -> None:
    train, compress = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)[0].strip().splitlines()
    (tmp_path / "scripts").symlink_to(PROJECT / "scripts")
    python = f"{shlex.quote(sys.executable)} -P"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    }
    trained = train.replace("python", python) + " --total-timesteps 2048"
    assigned = compress.replace("accel compress", f"{python} -m accel compress")
    compressed = assigned.replace("PYTHONPATH=", f"PYTHONPATH={shlex.quote(str(PROJECT))}:") + " --episodes 3"
    output = ""
    for command in (trained, compressed):
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        output = done.stdout
    assert re.search(r"ppo_vtrace:Agent as (int8|mixed), [\d,]+ bytes", output)
    assert "on the same seeds" in output
    assert (tmp_path / "policy.accel").exists()
