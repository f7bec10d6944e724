"""Loaders of other files than a run's own checkpoint and bundle, on damaged ones: a named error or sound values.

Files: policies and statistics of others (zip, .pth, safetensors, npz, json), metrics, decisions, a sweep's journal,
settings and trials, samples of runs. ``test_damaged_files`` has configurations, summaries, checkpoints, artifacts and
bundles.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_tensors
from torch import nn

from accel.config.files import load_toml
from accel.envs.spaces import ActionSpec
from accel.errors import AccelError, CheckpointError, ConfigError, ReportError, SweepError
from accel.imports.normaliser import FixedNormaliser, read_normaliser
from accel.imports.policy_file import PolicyFile, ReadPolicy
from accel.imports.readers import load_weights, read_policy_file
from accel.imports.torch_files import read_tensors
from accel.imports.torch_modules import FactorySpec
from accel.monitor.decisions import DecisionLog, read_decisions
from accel.monitor.errors import MonitorError
from accel.monitor.recorder import Recorder, read_metrics
from accel.reports.reporting import load_run_record, sampled_runs
from accel.runs.directory import RunDirectory
from accel.sweep.directory import check_directory
from accel.sweep.recovery import this_worker
from accel.sweep.storage import connected
from accel.sweep.study import open_study
from tests.accel.sweeping import plan_for
from tests.accel.test_damaged_files import HOSTILE, changed, damaged
from tests.accel.test_import_policy import ppo_weights
from tests.contracts.ranks import ROOT

fuzz = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def outcome(load: Callable[[], object]) -> object:
    """What was loaded, or the named error; anything else is raised."""
    try:
        return load()
    except (AccelError, MonitorError) as error:
        assert str(error)
        return error


def torch_file(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)  # noqa: TID251 - as others write their policies
    return buffer.getvalue()


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


LAYOUT = FactorySpec((4,), "float32", ActionSpec("categorical", (2,)))
DATA = {"num_timesteps": 5, "policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}}


def saved_policy(data: object = DATA, weights: object = None) -> bytes:
    weights = ppo_weights(4, 2) if weights is None else weights
    return zipped({"data": json.dumps(data).encode(errors="surrogatepass"), "policy.pth": torch_file(weights)})


def check_policy(found: object) -> None:
    assert isinstance(found, ReadPolicy | CheckpointError | ConfigError)
    if isinstance(found, ReadPolicy):
        assert found.make(LAYOUT)(torch.zeros(3, 4)).isfinite().all() and isinstance(found.env_steps, int)


@given(data=st.data())
@fuzz
def test_policies_of_stable_baselines3(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "policy.zip"
    original = saved_policy()
    members = data.draw(
        st.one_of(
            damaged(original),
            changed(DATA).map(saved_policy),
            damaged(torch_file(ppo_weights(4, 2))).map(lambda pth: zipped({"data": b"{}", "policy.pth": pth})),
        )
    )
    path.write_bytes(members)
    check_policy(outcome(lambda: read_policy_file(path)))


@given(data=st.data())
@fuzz
def test_policies_of_stable_baselines3_with_other_tensors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "others.zip"
    weights = ppo_weights(4, 2)
    name = data.draw(st.sampled_from(sorted(weights)))
    kind = data.draw(st.sampled_from(["gone", "flat", "empty", "nan", "whole", "complex", "scalar", "renamed", "huge"]))
    tensor = weights.pop(name)
    others = {
        "flat": tensor.reshape(-1), "empty": tensor[:0], "nan": tensor * torch.nan, "whole": tensor.long(),
        "complex": tensor.to(torch.complex64), "scalar": torch.tensor(1.0),
        "huge": torch.zeros(1).expand(*(10**6 for _ in tensor.shape)),
    }  # fmt: skip
    if kind == "renamed":
        weights["q_net.q_net.x"] = tensor
    elif kind != "gone":
        weights[name] = others[kind]
    path.write_bytes(saved_policy(weights=weights))
    check_policy(outcome(lambda: read_policy_file(path)))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@given(data=st.data())
@fuzz
def test_weights(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject) -> None:
    module = nn.Linear(3, 2)
    weights = module.state_dict()
    original = torch_file(weights) if suffix == ".pth" else save_tensors(weights)
    path = tmp_path_factory.getbasetemp() / f"weights{suffix}"
    path.write_bytes(data.draw(damaged(original)))
    found = outcome(lambda: load_weights(module, PolicyFile(path)))
    assert found is None or isinstance(found, CheckpointError)
    assert all(value.isfinite().all() for value in module.parameters())


def statistics(suffix: str) -> bytes:
    mean, variance = np.arange(3.0), np.ones(3, np.float32)
    if suffix == ".json":
        return json.dumps({"mean": mean.tolist(), "var": variance.tolist(), "clip": 5.0}).encode()
    if suffix == ".safetensors":
        return save_tensors({"mean": torch.tensor(mean), "var": torch.tensor(variance)})
    buffer = io.BytesIO()
    np.savez(buffer, mean=mean, var=variance, clip=np.float64(5.0))
    return buffer.getvalue()


def test_a_clip_beyond_single_precision_clips_nothing(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    path.write_text('{"mean": [0.0], "var": [1.0], "clip": 1e40}')
    assert read_normaliser(path, (1,))(torch.full((1, 1), 5.0)).item() == pytest.approx(5.0)


@pytest.mark.parametrize("suffix", [".npz", ".json", ".safetensors"])
@given(data=st.data())
@fuzz
def test_statistics_of_observations(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / f"statistics{suffix}"
    original = statistics(suffix)
    contents = damaged(original)
    if suffix == ".json":
        contents |= changed(json.loads(original)).map(lambda value: json.dumps(value).encode(errors="surrogatepass"))
    path.write_bytes(data.draw(contents))
    found = outcome(lambda: read_normaliser(path, (3,)))
    assert isinstance(found, FixedNormaliser | ConfigError)
    if isinstance(found, FixedNormaliser):
        assert found(torch.full((2, 3), 0.5)).isfinite().all()


@pytest.mark.parametrize(("mean", "var"), [(1e308, 1.0), (-1e39, 1.0), (0.0, 1e-200)])
def test_statistics_beyond_single_precision_are_refused(mean: float, var: float, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"mean": [mean, 0.0, 0.0], "var": [var, 1.0, 1.0], "epsilon": 0.0}))
    with pytest.raises(ConfigError, match="single precision"):
        read_normaliser(path, (3,))


def test_whole_statistics_are_read(tmp_path: Path) -> None:
    for suffix in (".npz", ".json", ".safetensors"):
        (tmp_path / f"a{suffix}").write_bytes(statistics(suffix))
        assert read_normaliser(tmp_path / f"a{suffix}", (3,)).mean.tolist() == [0.0, 1.0, 2.0]


def npy_header(shape: tuple[int, ...]) -> bytes:
    """An array that has no data."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def view_bomb() -> bytes:
    weights: dict[str, torch.Tensor] = ppo_weights(4, 2)
    weights["mlp_extractor.policy_net.0.weight"] = torch.zeros(1, 1).expand(10**6, 10**6)
    return torch_file(weights)


ZEROS = bytes(200 << 20)
BOMBS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "arrays of zeros": lambda: ("a.npz", zipped({"mean.npy": ZEROS, "var.npy": ZEROS}, zipfile.ZIP_DEFLATED)),
    "a large array without data": lambda: ("a.npz", zipped({"mean.npy": npy_header((10**12,)), "var.npy": b""})),
    "a policy of zeros": lambda: ("a.zip", zipped({"data": b"{}", "policy.pth": ZEROS}, zipfile.ZIP_DEFLATED)),
    "a view of one number": lambda: ("a.zip", zipped({"data": b"{}", "policy.pth": view_bomb()})),
    "tensors of zeros": lambda: ("a.pth", zipped({"archive/data.pkl": ZEROS}, zipfile.ZIP_DEFLATED)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_before_memory_is_taken(bomb: str, tmp_path: Path) -> None:
    """The reader may take 100 MB beyond what it has when it starts."""
    name, content = BOMBS[bomb]()
    (tmp_path / name).write_bytes(content)
    program = f"""
        import resource, sys
        from pathlib import Path
        import torch
        from accel.errors import AccelError
        from accel.imports.policy_file import PolicyFile
        from accel.imports.normaliser import read_normaliser
        from accel.imports.readers import load_weights, read_policy_file
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + (100 << 20),) * 2)
        path = Path({name!r})
        readers = {{".npz": lambda: read_normaliser(path, (3,)), ".zip": lambda: read_policy_file(path),
                   ".pth": lambda: load_weights(torch.nn.Linear(1, 1), PolicyFile(path))}}
        try:
            readers[path.suffix]()
        except AccelError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert name in done.stdout and "MemoryError" not in done.stdout + done.stderr


def test_tensors_without_their_values_are_refused() -> None:
    for tensor in (torch.zeros(10**6, 10**6, device="meta"), torch.zeros(3, 3).to_sparse()):
        with pytest.raises(CheckpointError, match=r"is no plain tensor|is no file of tensors"):
            read_tensors(torch_file({"a": tensor}), "a.pth")


@given(data=st.data())
@fuzz
def test_metrics_and_decisions(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whole lines before the damage stay; a run goes on after what is incomplete."""
    path = tmp_path_factory.mktemp("run")
    with Recorder(path, tensorboard=False, clock=lambda: 1.0) as recorder:
        for step in (10, 20, 30):
            recorder.record(step, {"return_mean": 1.5, "scheme": "int8"})
    log = DecisionLog(path, clock=lambda: 1.0)
    log.write(10, None, "hold", "a", "b", "why", {"x": 1.0})
    log.write(20, 1, "hold", "b", "a", "why")
    for name in ("metrics.jsonl", "decisions.jsonl"):
        original = (path / name).read_bytes()
        (path / name).write_bytes(data.draw(damaged(original)))
    found = outcome(lambda: list(read_metrics(path / "metrics.jsonl")))
    assert isinstance(found, MonitorError) or all("env_steps" in record for record in found)  # type: ignore[attr-defined]
    resumed = outcome(lambda: Recorder(path, tensorboard=False, resume_env_steps=15).close())
    assert resumed is None or isinstance(resumed, MonitorError)
    decisions, _ = read_decisions(path)
    assert all(isinstance(decision.env_steps, int) for decision in decisions)
    log.go_on(15, "a")


def test_metrics_that_are_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(MonitorError, match="line 1 is not JSON"):
        Recorder(tmp_path, resume_env_steps=0)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a study with two trials."""
    directory = tmp_path_factory.mktemp("sweep")
    plan = plan_for(directory, url=f"journal:{directory / 'study.log'}")
    with connected(plan.url) as storage:
        study = open_study(plan, storage, {"run": "a"})
        for value in (0.25, 0.75):
            study.enqueue_trial({"x": value})
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return (directory / "study.log").read_bytes()


@given(data=st.data())
@fuzz
def test_journals(tmp_path_factory: pytest.TempPathFactory, journal: bytes, data: st.DataObject) -> None:
    """Cut anywhere, the whole records before are there; damaged inside, it is one message."""
    directory = tmp_path_factory.mktemp("sweep")
    path = directory / "study.log"
    end = data.draw(st.integers(0, len(journal)))
    place = data.draw(st.integers(0, len(journal) - 2))
    is_cut = data.draw(st.booleans())
    path.write_bytes(journal[:end] if is_cut else journal[:place] + b"\0" + journal[place + 1 :])
    plan = plan_for(directory, url=f"journal:{path}")

    def load() -> int:
        with connected(plan.url) as storage:
            return len(open_study(plan, storage, {"run": "a"}).trials)

    found = outcome(load)
    if is_cut:
        assert found == journal[: journal.rfind(b"\n", 0, end) + 1].count(b'"op_code":4')
    else:
        assert isinstance(found, SweepError) and "is damaged inside" in str(found)


@given(data=st.data())
@fuzz
def test_journals_of_other_values(
    tmp_path_factory: pytest.TempPathFactory, journal: bytes, data: st.DataObject
) -> None:
    """Whole lines of JSON, one of which is changed."""
    directory = tmp_path_factory.mktemp("sweep")
    path = directory / "study.log"
    lines = journal.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = json.dumps(data.draw(changed(json.loads(lines[place])))).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    plan = plan_for(directory, url=f"journal:{path}")

    def load() -> int:
        with connected(plan.url) as storage:
            return len(open_study(plan, storage, {"run": "a"}).trials)

    found = outcome(load)
    assert isinstance(found, SweepError) or found in (0, 1, 2)


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


@given(document=changed({"study": "s", "run": {"a": [1, "x"]}}))
@fuzz
def test_settings_of_sweeps(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    path = tmp_path_factory.mktemp("sweep")
    (path / "study.json").write_bytes(json.dumps(document).encode(errors="surrogatepass"))
    found = outcome(lambda: check_directory(path, {"study": "s"}))
    present = {name: value for name, value in document.items() if value is not None}
    assert found is None if present == {"study": "s"} else isinstance(found, SweepError)


_SAMPLE = {
    "name": "a", "config": {"env": "x"}, "machine": {}, "summary": {"seed": 1}, "starts": 1, "records": 2,
    "damaged_lines": 0, "notes": ["n"], "decisions": [], "columns": {"env_steps": [1, 2], "return_mean": [None, 2.5]},
}  # fmt: skip


@given(document=changed({"runs": {"a": _SAMPLE}}))
@fuzz
def test_samples_of_runs(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    path = tmp_path_factory.mktemp("samples")
    content = gzip.compress(json.dumps(document).encode(errors="surrogatepass"))
    (path / "runs.json.gz").write_bytes(content)
    found = outcome(lambda: [load_run_record(run) for run in sampled_runs(path)])
    assert isinstance(found, ReportError) or all(isinstance(run.config, dict) for run in found)  # type: ignore[attr-defined]
    (path / "runs.json.gz").write_bytes(content[:-9])
    assert isinstance(outcome(lambda: sampled_runs(path)), ReportError)


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
