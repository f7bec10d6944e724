"""Runs of others, sealed anew after changes, or far too large: a named error or sound values, in bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from tests.accel.test_mutations import RUNS, SMALL

READERS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "report": lambda run: ("report", str(run)),
    "resume": lambda run: ("train", "--resume", str(run), "--total-env-steps", "500"),
    "evaluate": lambda run: ("evaluate", str(run), "--episodes", "1"),
}
_LIMIT_BYTES = 6 << 30
LINES = ("metrics.jsonl", "decisions.jsonl", "starts.jsonl")
FILES = (*LINES, "checkpoints", "config.toml", "machine.json", "summary.json")


@pytest.mark.few(1)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("file", FILES)
def test_files_of_twenty_gigabytes_are_read_within_bounds(file: str, reader: str, tmp_path: Path) -> None:
    config = TrainConfig.create(**(SMALL | RUNS["ppo"] | {"results_dir": tmp_path, "name": "run"}))
    accel.train(config)
    run = tmp_path / "run"
    path = next((run / file).glob("step-*")) if file == "checkpoints" else run / file
    with path.open("ab") as sparse:  # it takes no space on the disk
        sparse.truncate(20 << 30)
    done = subprocess.run(
        [sys.executable, "-m", "accel", *READERS[reader](run)], capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT_BYTES, _LIMIT_BYTES)),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or done.stderr.count("accel: ") == 1 or done.stdout.count("accel: ") == 1
