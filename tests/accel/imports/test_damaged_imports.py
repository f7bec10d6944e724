"""Policies, statistics and sweeps that are far too large, cut, or of other versions; see ``test_mutations``."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import optuna
import pytest
import torch
from onnx import helper, numpy_helper

from accel.config.files import load_toml
from accel.errors import CheckpointError, ConfigError, SweepError
from accel.imports.normaliser import read_normaliser
from accel.imports.readers import read_policy_file
from accel.imports.torch_files import read_tensors
from accel.monitor.errors import MonitorError
from accel.monitor.recorder import Recorder
from accel.runs.directory import RunDirectory
from accel.sweep.recovery import this_worker
from accel.sweep.storage import connected
from accel.sweep.study import open_study
from tests.accel.exporting.test_hostile_bundles import BOMBS as ONNX_BOMBS
from tests.accel.exporting.test_hostile_bundles import HUGE, bomb, moved_outside
from tests.accel.imports.test_import_policy import ppo_weights
from tests.accel.mutations import HOSTILE, zipped
from tests.accel.sweep.sweeping import plan_for
from tests.accel.test_mutations import LAYOUT, onnx_policy, torch_file
from tests.contracts.ranks import ROOT


def test_a_clip_beyond_single_precision_clips_nothing(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    path.write_text('{"mean": [0.0], "var": [1.0], "clip": 1e40}')
    assert read_normaliser(path, (1,))(torch.full((1, 1), 5.0)).item() == pytest.approx(5.0)


@pytest.mark.parametrize(("mean", "var"), [(1e308, 1.0), (-1e39, 1.0), (0.0, 1e-200)])
def test_statistics_beyond_single_precision_are_refused(mean: float, var: float, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"mean": [mean, 0.0, 0.0], "var": [var, 1.0, 1.0], "epsilon": 0.0}))
    with pytest.raises(ConfigError, match="single precision"):
        read_normaliser(path, (3,))


def view_bomb() -> bytes:
    weights: dict[str, torch.Tensor] = ppo_weights(4, 2)
    weights["mlp_extractor.policy_net.0.weight"] = torch.zeros(1, 1).expand(10**6, 10**6)
    return torch_file(weights)


ZEROS = bytes(150 << 20)
BOMBS: dict[str, Callable[[], bytes]] = {
    "zeros.npz": lambda: zipped({"mean.npy": ZEROS, "var.npy": ZEROS}, zipfile.ZIP_DEFLATED),
    "no-data.npz": lambda: zipped({"mean.npy": HUGE, "var.npy": b""}),
    "zeros.zip": lambda: zipped({"data": b"{}", "policy.pth": ZEROS}, zipfile.ZIP_DEFLATED),
    "view.zip": lambda: zipped({"data": b"{}", "policy.pth": view_bomb()}),
    "zeros.pth": lambda: zipped({"archive/data.pkl": ZEROS}, zipfile.ZIP_DEFLATED),
}
READING = """
import resource, sys
from pathlib import Path
import torch
from accel.errors import AccelError
from accel.imports.policy_file import PolicyFile
from accel.imports.normaliser import read_normaliser
from accel.imports.readers import load_weights, read_policy_file
has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (has + (100 << 20),) * 2)
readers = {".npz": lambda path: read_normaliser(path, (3,)), ".zip": read_policy_file,
           ".pth": lambda path: load_weights(torch.nn.Linear(1, 1), PolicyFile(path))}
for name in sys.argv[1:]:
    try:
        readers[Path(name).suffix](Path(name))
    except AccelError as error:
        print(error)
"""


@pytest.mark.slow
def test_bombs_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """The readers may take 100 MB beyond what their process has when it starts."""
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content())
    done = subprocess.run(
        [sys.executable, "-c", READING, *BOMBS], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert all(name in line for name, line in zip(BOMBS, done.stdout.splitlines(), strict=True)), done.stdout
    assert "MemoryError" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", [*ONNX_BOMBS, "Expand", "Tile"])
def test_a_graph_that_asks_for_gigabytes_is_refused_before_it_runs(kind: str, tmp_path: Path) -> None:
    """Of constants, or for each row of observations."""
    path = tmp_path / "policy.onnx"
    content = onnx_policy(path)
    if kind in ONNX_BOMBS:
        path.write_bytes(bomb(content, ONNX_BOMBS[kind]))
    else:
        model = onnx.load_from_string(content)
        many = numpy_helper.from_array(np.array([1, 2**30]), "many")
        model.graph.initializer.append(many)
        model.graph.node.extend(
            [
                helper.make_node("ReduceMax", [model.graph.node[-1].output[0]], ["most"], keepdims=1),
                helper.make_node(kind, ["most", "many"], ["big"]),
                helper.make_node("ReduceMax", ["big"], ["last"], keepdims=1),
            ]
        )
        model.graph.output[0].name = "last"
        path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match="makes far more numbers than a policy has"):
        read_policy_file(path).make(LAYOUT)


def test_weights_in_other_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(moved_outside(onnx_policy(path), "weights.bin").SerializeToString())
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(CheckpointError, match=r"weights\.bin have more than"):
        read_policy_file(path)


def test_tensors_without_their_values_are_refused() -> None:
    for tensor in (torch.zeros(10**6, 10**6, device="meta"), torch.zeros(3, 3).to_sparse()):
        with pytest.raises(CheckpointError, match=r"is no plain tensor|is no file of tensors"):
            read_tensors(torch_file({"a": tensor}), "a.pth")


def test_metrics_that_are_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(MonitorError, match="line 1 is no record of metrics"):
        Recorder(tmp_path, resume_env_steps=0)


def test_a_journal_beyond_any_use_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "study.log").open("wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(SweepError, match=r"it has 21,474,836,480 bytes"), connected(f"journal:{tmp_path}/study.log"):
        pass


def test_a_journal_that_is_damaged_inside_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    plan = plan_for(tmp_path, url=f"journal:{path}")
    with connected(plan.url) as storage:
        study = open_study(plan, storage, {"run": "a"})
        study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    journal = path.read_bytes()
    for place in range(0, len(journal) - 1, 97):
        path.write_bytes(journal[:place] + b"\0" + journal[place + 1 :])
        with pytest.raises(SweepError, match="is damaged inside"), connected(plan.url) as storage:
            open_study(plan, storage, {"run": "a"})


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = 'v9.9'",
        "UPDATE study_user_attributes SET value_json = '5' WHERE key = 'sweep'",
        "UPDATE study_user_attributes SET value_json = '{' WHERE key = 'sweep'",
        "UPDATE study_user_attributes SET value_json = '[1]' WHERE key = 'references'",
        "UPDATE trial_user_attributes SET value_json = '5' WHERE key = 'measured'",
        "UPDATE trial_user_attributes SET value_json = '{}' WHERE key = 'worker'",
        "UPDATE trials SET state = 'ODD'",
        "UPDATE trial_params SET distribution_json = '{}'",
    ],
)
def test_databases_of_other_values_and_versions(change: str, tmp_path: Path) -> None:
    plan = plan_for(tmp_path, url=f"sqlite:///{tmp_path / 'study.db'}")
    with connected(plan.url) as storage:
        study = open_study(plan, storage, {"run": "a"})
        study.set_user_attr("references", {"bytes": 1.0})
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.set_user_attr("measured", {"bytes": 2.0})
        trial.set_user_attr("worker", this_worker())
    with closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
        database.execute(change)
    with pytest.raises(SweepError, match=r"no longer compatible|is damaged"), connected(plan.url) as storage:
        open_study(plan, storage, {"run": "a"})


@pytest.mark.parametrize("version", [2, "1", True, None, *HOSTILE[:3]])
def test_configurations_of_another_format_are_refused(version: object, tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "run") as run:
        run.write_config({"env": "CartPole-v1"})
    content = run.config.read_text()
    assert content.startswith("format_version = 1\n") and run.read_config() == {"env": "CartPole-v1"}
    if version is not None:
        run.config.write_text(content.replace("format_version = 1", f"format_version = {json.dumps(version)}"))
        with pytest.raises(ConfigError, match=r"has configuration format .*, this version of accel reads 1"):
            load_toml(run.config)
