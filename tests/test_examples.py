"""The examples under ``scripts/examples`` do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "scripts" / "examples"
PATH = os.pathsep.join([str(EXAMPLES), str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(*words: str, directory: Path) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.learning
def test_the_courier_learns_to_arrive_and_is_exported(tmp_path: Path) -> None:
    shown = run(str(EXAMPLES / "dict_observations.py"), directory=tmp_path)
    lines = shown.splitlines()
    reached = next(line for line in lines if line.startswith("return "))
    assert float(reached.removeprefix("return ")) > 0.9
    assert any(line.startswith("arrived after ") for line in lines)
    assert lines[-1] == "inputs of the model: map, place, action_mask"


def test_minigrids_view_is_trained_on(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs the package minigrid")
    options = "--env minigrid:MiniGrid-Empty-5x5-v0 --wrapper minigrid_wrapper:view --network impala-resnet:0.25"
    sizes = "--actors 0 --envs-per-actor 2 --unroll-length 10 --total-env-steps 200 --name run --compressor int8"
    run("-m", "accel", "train", *f"{options} {sizes} --calibration-size 16".split(), directory=tmp_path)
    shown = run("-c", "from accel.runs.loading import load_run; from pathlib import Path; "
                "print(*load_run(Path('results/run')).policy.input_names)", directory=tmp_path)  # fmt: skip
    assert shown.split() == ["direction", "view"]
