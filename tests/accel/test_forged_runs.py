"""Runs of others, sealed anew after changes, or far too large: a named error or sound values, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import accel
from accel.config import TrainConfig
from accel.errors import CheckpointError
from accel.learning.session import Session
from accel.runs.checkpoint import checksum
from accel.runs.directory import RunDirectory
from tests.accel.test_damaged_files import changed
from tests.accel.test_resume import open_session

SMALL: dict[str, object] = {
    "actors": 0, "envs_per_actor": 2, "unroll_length": 16, "network": "mlp:8x1", "total_env_steps": 400, "seed": 1,
    "calibration_size": 32, "learner_threads": 1, "log_interval_s": 0.05,
}  # fmt: skip
REPLAY: dict[str, object] = {
    "learning_starts": 64, "batch_size": 8, "replay_capacity": 500, "samples_per_insert": 8.0, "save_replay": True,
}  # fmt: skip
RUNS: dict[str, dict[str, object]] = {
    "ppo": {"algorithm": "ppo", "normalise_observations": True, "normalise_rewards": True},
    "sac": {"algorithm": "sac", "env": "Pendulum-v1", **REPLAY},
    "apex": {"algorithm": "apex", **REPLAY},
}
EXAMPLES = 60  # of each of three algorithms; 170 and more as ACCEL_MUTATIONS says
fuzz = settings(
    max_examples=int(os.environ.get("ACCEL_MUTATIONS", EXAMPLES)),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module", params=RUNS)
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Session]:
    """A run, and a session that can be resumed from it again and again."""
    path = tmp_path_factory.mktemp("runs")
    config = TrainConfig.create(**(SMALL | RUNS[request.param] | {"results_dir": path, "name": "run"}))
    accel.train(config)
    return path / "run", open_session(config, RunDirectory.open(path / "run"))


@given(data=st.data())
@fuzz
def test_a_forged_checkpoint_is_a_named_error_or_restored(resumed: tuple[Path, Session], data: st.DataObject) -> None:
    run, session = resumed
    path = sorted((run / "checkpoints").glob("step-*"))[-1]
    content = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}
    text = json.dumps(data.draw(changed(json.loads(metadata["document"]))))
    try:
        save_file(tensors, path, metadata | {"document": text, "sha256": checksum(text, tensors)})
        session.restore()
    except CheckpointError as error:
        assert str(error)
    else:
        assert all(isinstance(value, int | list) for value in session.learner.counters.to_json().values())
        session.loop.finished()
    finally:
        path.write_bytes(content)


@given(data=st.data())
@fuzz
def test_a_forged_replay_is_a_named_error_or_filled_anew(resumed: tuple[Path, Session], data: st.DataObject) -> None:
    run, session = resumed
    if session.learner.config.algorithm.algorithm == "ppo":
        return
    path = next((run / "replay").glob("index-*"))
    content = path.read_bytes()
    text = json.dumps(data.draw(changed(json.loads(json.loads(content)["document"]))))
    try:
        path.write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "document": text}))
        session.restore()
    except CheckpointError as error:
        assert str(error)
    finally:
        path.write_bytes(content)


def sparse(path: Path) -> None:
    """Twenty gigabytes that take no space on the disk."""
    with path.open("ab") as file:
        file.truncate(20 << 30)


READERS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "report": lambda run: ("report", str(run)),
    "resume": lambda run: ("train", "--resume", str(run), "--total-env-steps", "500"),
    "evaluate": lambda run: ("evaluate", str(run), "--episodes", "1"),
}
_LIMIT_BYTES = 6 << 30


FILES = (
    "metrics.jsonl",
    "decisions.jsonl",
    "starts.jsonl",
    "config.toml",
    "machine.json",
    "summary.json",
    "checkpoints",
)
QUICK = {("metrics.jsonl", "report"), ("starts.jsonl", "resume"), ("checkpoints", "resume")}


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        pytest.param(file, reader, marks=() if (file, reader) in QUICK else pytest.mark.long)
        for file in FILES
        for reader in READERS
    ],
)
def test_files_of_twenty_gigabytes_are_read_within_bounds(file: str, reader: str, tmp_path: Path) -> None:
    config = TrainConfig.create(**(SMALL | RUNS["ppo"] | {"results_dir": tmp_path, "name": "run"}))
    accel.train(config)
    run = tmp_path / "run"
    sparse(next((run / file).glob("step-*")) if file == "checkpoints" else run / file)
    done = subprocess.run(
        [sys.executable, "-m", "accel", *READERS[reader](run)], capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT_BYTES, _LIMIT_BYTES)),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or done.stderr.count("accel: ") == 1 or done.stdout.count("accel: ") == 1
