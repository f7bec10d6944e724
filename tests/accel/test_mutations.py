"""Every loader of files that somebody else may have made, on changed ones: a named error, or sound values.

Checksums are right where there are any, so that a change reaches the reader behind them. 100 changes a loader, and
10,000 with ``-m long``, which takes hours. Each is of a generator of its number, which a failure names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import os
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from unittest.mock import patch

import numpy as np
import optuna
import pytest
import torch
from optuna.storages import RDBStorage
from optuna.storages._rdb.storage import _VersionManager
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from safetensors.torch import save_file
from torch import nn

import accel
from accel.cli.train import parse
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CompressorError
from accel.compressors.runtime import PolicySession
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.envs.spaces import ActionSpec
from accel.errors import AccelError, SweepError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.exporting.formats import make_format
from accel.exporting.verify import exported_latency
from accel.imports.normaliser import read_normaliser
from accel.imports.policy_file import PolicyFile
from accel.imports.readers import load_weights, read_policy_file
from accel.imports.recorded_observations import RecordedObservations
from accel.imports.torch_modules import FactorySpec
from accel.learning.session import Session
from accel.monitor.decisions import DecisionLog
from accel.monitor.errors import MonitorError
from accel.monitor.recorder import Recorder
from accel.reports.reporting import load_run_record, sampled_runs
from accel.runs.checkpoint import checksum
from accel.runs.directory import RunDirectory
from accel.runs.job import check_config
from accel.runs.loading import load_run
from accel.runs.summary import Summary
from accel.sweep.directory import check_directory
from accel.sweep.evolution import draw
from accel.sweep.population import lineage
from accel.sweep.storage import connected
from accel.sweep.study import open_study
from accel.sweep.sweep_file import load_sweep_file
from accel.transport.launcher import detect_launch
from tests.accel.exporting.test_hostile_bundles import moved_outside
from tests.accel.exporting.test_verify import resum
from tests.accel.imports.test_import_policy import ppo_weights
from tests.accel.imports.test_programs import write_export, write_onnx, write_script
from tests.accel.learning.test_resume import open_session
from tests.accel.mutations import (
    Mutation,
    as_json,
    changed_header,
    changed_json,
    changed_lines,
    changed_model,
    changed_tensors,
    changed_toml,
    compressed,
    damage,
    damaged,
    damaged_member,
    zipped,
)
from tests.accel.runs.test_summary import SUMMARY
from tests.accel.runs.trained_runs import make_run
from tests.accel.sweep.sweeping import plan_for
from tests.accel.sweep.test_population import population
from tests.accel.sweep.test_population import write as write_population
from tests.compressors.policies import CASES, randomise

NAMED = (AccelError, CompressorError, MonitorError, run_policy.BundleError)
HANG_S, SPARE_BYTES = 120, 3 << 30
LAYOUT = FactorySpec((4,), "float32", ActionSpec("categorical", (2,)))
Load = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A loader with a sound file.

    Attributes:
        path: where changed ones are written. load: reads it, and checks what it accepts.
        mutations: of the file, of which one is drawn each time. finish: makes checksums of other files right.
        skips: whether the loader leaves out what is damaged.
    """

    path: Path
    load: Load
    mutations: tuple[Mutation, ...]
    finish: Callable[[], object] = lambda: None
    skips: bool = False

    def run(self, name: str, count: int) -> None:
        """Try so many changes; at least one is refused, and the sound file is not. A pipe is not waited for."""
        sound = self.path.read_bytes()
        self.load()
        refused = 0
        for number in range(count):
            rng = Random(f"{name} {number}")
            self.path.write_bytes(rng.choice(self.mutations)(rng))
            self.finish()
            try:
                with bounded():
                    self.load()
            except NAMED as error:
                refused += 1
                assert str(error), (name, number)
            except BaseException as error:
                raise AssertionError(f"{name}, change {number}: {error!r}") from error
        self.path.unlink()
        os.mkfifo(self.path)
        with bounded(), suppress(*NAMED):
            self.load()
        self.path.unlink()
        self.path.write_bytes(sound)
        self.finish()
        assert self.skips or refused > count // 20


INSIDE: dict[str, Callable[[bytes], Mutation]] = {
    **dict.fromkeys((".pt", ".pt2", ".pth", ".npz"), damaged_member),
    **dict.fromkeys((".jsonl", ".log"), changed_lines),
    ".json": changed_json,
    ".toml": changed_toml,
    ".safetensors": changed_header,
    ".onnx": changed_model,
}
"""How what is inside a file is changed, by the end of its name."""


def changed(path: Path, load: Load, *more: Mutation, finish: Load = lambda: None, skips: bool = False) -> Case:
    """Of a sound file: its bytes, what is inside, and more."""
    content, inside = path.read_bytes(), INSIDE.get(path.suffix)
    mutations = (damaged(content), *(() if inside is None else (inside(content),)), *more)
    return Case(path, load, mutations, finish, skips)


class HungError(BaseException):
    """No product code may take it for an error of its own, as it takes a TimeoutError for one of a file."""


@contextmanager
def bounded() -> Iterator[None]:
    """With gigabytes of memory and minutes of time, far beyond what any sound file takes."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"nothing came of it within {HANG_S} s")

    limits = resource.getrlimit(resource.RLIMIT_DATA)
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    taken = int(status["VmData"].split()[0]) << 10
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_S)
    resource.setrlimit(resource.RLIMIT_DATA, (taken + SPARE_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def a_run(folder: Path) -> Path:
    """With every file that a report reads."""
    run = make_run(folder, env="CartPole-v1", network="mlp:8x1+lstm:4", calibration_size=32)
    with RunDirectory.open(run) as directory:
        directory.write(directory.summary, SUMMARY.to_json())
        directory.write(directory.machine, {"cpu": "x", "cores": 2, "versions": {"python": "3.11"}})
        directory.next_restart()
        with closing(Recorder(run, clock=lambda: 1.0)) as recorder:
            for step in (10, 20, 30):
                recorder.record(step, {"return_mean": 1.5, "scheme": "int8"})
        log = DecisionLog(run, clock=lambda: 1.0)
        log.write(10, "hold", "a", "b", "why", {"x": 1.0})
        log.write(20, "hold", "b", "a", "why")
    return run


def configuration(folder: Path) -> Case:
    path = a_run(folder) / "config.toml"

    def load() -> None:
        config = TrainConfig.from_json(RunDirectory.open(path.parent, read_only=True).read_config())
        assert TrainConfig.from_json(config.to_json()) == config == TrainConfig.from_json(load_toml(path))

    return changed(path, load)


def command_line(folder: Path) -> Case:
    """The same file as ``--config``, of which the command line is made."""
    path = a_run(folder) / "config.toml"
    info = detect_launch()

    def load() -> None:
        assert check_config(parse(["--config", str(path)], info).config)

    return changed(path, load)


def sweep_file(folder: Path) -> Case:
    """With every kind of distribution."""
    kinds = """
[space.unroll_length]
type = "int"
low = 1
high = 10
[space.compressor]
type = "categorical"
choices = ["fp32", "int8"]
[sweep]
trials = 4
"""
    path = write_population(folder, kinds)

    def load() -> None:
        found = load_sweep_file(path)
        found.configure(draw(found.space, 1, 0)[0])

    return changed(path, load)


def summary(folder: Path) -> Case:
    path = a_run(folder) / "summary.json"

    def load() -> None:
        found = Summary.read(path.parent)
        assert found.text() and min(found.env_steps, found.updates, found.episodes, found.actors) >= 0

    return changed(path, load)


def reported(file: str) -> Callable[[Path], Case]:
    """A run's file in a report, which skips damaged lines, and for a run that goes on after it."""

    def case(folder: Path) -> Case:
        run = a_run(folder)
        path = run / file
        lines = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "decisions.jsonl")}

        def load() -> None:
            try:
                found = load_run_record(run)
                assert all(isinstance(decision.env_steps, int) for decision in found.decisions)
                RunDirectory.open(run, read_only=True).read_starts()
                Recorder(run, resume_env_steps=15).close()
                DecisionLog(run, clock=lambda: 1.0).go_on(15, "a")
            finally:
                for name in lines.keys() - {file}:
                    (run / name).write_bytes(lines[name])

        return changed(path, load, skips=True)

    return case


def watched(folder: Path) -> Case:
    run = a_run(folder)
    path = run / "metrics.jsonl"

    def load() -> None:
        accel.watch(run, once=True, stream=io.StringIO())

    return changed(path, load, skips=True)


def samples(folder: Path) -> Case:
    path = folder / "runs.json.gz"
    sample = {
        "name": "a", "config": {"env": "x"}, "machine": {}, "summary": {"seed": 1}, "starts": 1, "records": 2,
        "damaged_lines": 0, "notes": ["n"], "decisions": [],
        "columns": {"env_steps": [1, 2], "return_mean": [None, 2.5]},
    }  # fmt: skip
    content = as_json({"runs": {"a": sample}})
    path.write_bytes(compressed(lambda _: content)(Random(1)))

    def load() -> None:
        assert all(isinstance(load_run_record(run).config, dict) for run in sampled_runs(folder))

    return Case(path, load, (compressed(damaged(content)), compressed(changed_json(content))))


def sealed(path: Path, text: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """A checkpoint of any content with its right checksum."""
    forged = path.with_name("forged")
    save_file(tensors, forged, metadata | {"document": text, "sha256": checksum(text, tensors)})
    content = forged.read_bytes()
    forged.unlink()
    return content


def forgeries(path: Path) -> tuple[Mutation, ...]:
    """Of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name).clone() for name in file.keys()}
    text = metadata["document"]
    return (
        damaged(path.read_bytes()),
        changed_json(text.encode(), lambda value: sealed(path, json.dumps(value), tensors, metadata)),
        changed_tensors(tensors, lambda changed: sealed(path, text, changed, metadata)),
    )


def played_checkpoint(folder: Path) -> Case:
    (path,) = (a_run(folder) / "checkpoints").iterdir()

    def load() -> None:
        found = load_run(path.parent.parent)
        params, *_ = found.policy(torch.zeros(2, *found.spec.observation_shape), torch.zeros(2, 4), torch.zeros(2, 4))
        assert params.shape == (2, found.spec.action.param_size)

    return Case(path, load, forgeries(path))


SMALL: dict[str, object] = {
    "actors": 0, "envs_per_actor": 2, "unroll_length": 16, "network": "mlp:8x1", "total_env_steps": 400, "seed": 1,
    "calibration_size": 32, "learner_threads": 1, "log_interval_s": 0.05, "name": "run",
}  # fmt: skip
REPLAY: dict[str, object] = {
    "learning_starts": 64, "batch_size": 8, "replay_capacity": 500, "samples_per_insert": 8.0, "save_replay": True,
}  # fmt: skip
RUNS: dict[str, dict[str, object]] = {
    "ppo": {"algorithm": "ppo", "normalise_observations": True, "normalise_rewards": True},
    "sac": {"algorithm": "sac", "env": "Pendulum-v1", **REPLAY},
    "apex": {"algorithm": "apex", **REPLAY},
}


def sealed_index(document: object) -> bytes:
    text = json.dumps(document)
    return as_json({"sha256": hashlib.sha256(text.encode()).hexdigest(), "document": text})


@cache
def trained(folder: Path, algorithm: str) -> tuple[Path, Session]:
    """A run, and the session that goes on with it; one for all cases of an algorithm."""
    config = TrainConfig.create(**(SMALL | RUNS[algorithm] | {"results_dir": folder}))
    accel.train(config)
    return folder / "run", open_session(config, RunDirectory.open(folder / "run"))


def resumed(algorithm: str, of_replay: str = "") -> Callable[[Path], Case]:
    """A checkpoint, or a file of a replay, in a session that is resumed from it again and again."""

    def case(folder: Path) -> Case:
        run, session = trained(folder.parent / algorithm, algorithm)

        def load() -> None:
            session.checkpoints.restore()
            assert all(isinstance(value, int | list) for value in session.learner.counters.to_json().values())
            session.loop.finished()

        if not of_replay:
            path = sorted((run / "checkpoints").glob("step-*"))[-1]
            return Case(path, load, forgeries(path))
        index, path = (next((run / "replay").glob(f"{kind}-*")) for kind in ("index", of_replay))
        content, document = path.read_bytes(), json.loads(json.loads(index.read_bytes())["document"])
        if path == index:
            return Case(path, load, (damaged(content), changed_json(as_json(document), sealed_index)), skips=True)

        def finish() -> None:
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
            for piece in (*document["pieces"], document):
                if piece.get("file") == path.name:
                    piece["sha256"] = checksum
                elif piece.get("state", [""])[0] == path.name:
                    piece["state"][1] = checksum
            index.write_bytes(sealed_index(document))

        tensors = load_tensors(content)
        changes = (damaged(content), changed_header(content), changed_tensors(tensors))
        return Case(path, load, changes, finish, skips=True)

    return case


def a_study(folder: Path, url: str) -> Load:
    """A study with two trials, which a doubled piece may double; opens it."""
    plan = plan_for(folder, url=url)
    with connected(plan.url) as storage:
        study = open_study(plan, storage, {"run": "a"})
        study.set_user_attr("references", {"bytes": 1.0})
        for value in (0.25, 0.75):
            study.enqueue_trial({"x": value})
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            trial.set_user_attr("measured", {"bytes": 2.0})
            study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def load() -> None:
        with connected(plan.url) as storage:
            assert len(open_study(plan, storage, {"run": "a"}).trials) <= 4

    return load


def journal(folder: Path) -> Case:
    path = folder / "study.log"
    return changed(path, a_study(folder, f"journal:{path}"))


def database(folder: Path) -> Case:
    path = folder / "study.db"
    opened = a_study(folder, f"sqlite:///{path}")
    content = path.read_bytes()
    storage = RDBStorage(f"sqlite:///{path}")
    newest = storage.get_head_version()
    storage.engine.dispose()

    def load() -> None:
        """Optuna runs all its migrations' files to know the newest one's name, which no file changes.

        Nor is there another worker to wait for, as before another try to open what seems to be in use.
        """
        with patch.object(_VersionManager, "get_head_version", lambda _: newest), patch("time.sleep"):
            opened()

    def other_values(rng: Random) -> bytes:
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as found, found:
            tables = [name for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = rng.choice(tables)
            column = rng.choice([row[1] for row in found.execute(f"PRAGMA table_info({table})")])
            value = rng.choice([None, -1, 2**62, 1.5, "", "x", "{", "5", "[1]", "{}", "\x1b[2J", b"\xff"])
            try:
                found.execute(f"UPDATE {table} SET {column} = ?", (value,))
            except sqlite3.IntegrityError:
                found.execute(f"DELETE FROM {table}")
        return path.read_bytes()

    return Case(path, load, (damaged(content), other_values))


def sweep_settings(folder: Path) -> Case:
    path, about = folder / "study.json", {"study": "s", "run": {"a": [1, "x"]}}
    path.write_bytes(as_json(about))
    return changed(path, lambda: check_directory(folder, about))


def population_member(folder: Path) -> Case:
    made = population(folder, members=3, generations=2)
    made.train()
    path = folder / "runs" / "generation-000-member-01.json"

    def load() -> None:
        found = made.train()
        assert len(lineage(found)) == len(found)

    return changed(path, load, skips=True)


def artifact(scheme: str, network: str) -> Callable[[Path], Case]:
    """Header and model of an artifact, under its right checksum."""

    def case(folder: Path) -> Case:
        described = CASES[network]
        module = randomise(described.make(), seed=0)
        whole = described.bind(scheme, module).refresh(module, version=7)
        path = folder / "policy.accel"
        path.write_bytes(whole.to_bytes())

        def header(value: object) -> bytes:
            forged = dataclasses.replace(whole)
            forged.__dict__["header_json"] = as_json(value)
            return forged.to_bytes()

        def model(mutation: Mutation) -> Mutation:
            return lambda rng: dataclasses.replace(whole, model=mutation(rng)).to_bytes()

        def load() -> None:
            session = PolicySession(CompressedPolicy.read(path), batch=2)
            session.run()
            for spec in session.artifact.outputs:
                assert session.outputs[spec.name].shape == spec.with_batch(2)

        changes = (damaged(path.read_bytes()), changed_json(whole.header_json, header))
        return Case(path, load, (*changes, model(damaged(whole.model)), model(changed_model(whole.model))))

    return case


@cache
def exported(folder: Path, format_name: str) -> Path:
    """A bundle; one for all cases of a format."""
    return export(a_run(folder), folder / "bundle", scheme="int8", format=format_name, episodes=0).path  # type: ignore[arg-type]


def bundle(name: str, format_name: str = "onnx") -> Callable[[Path], Case]:
    """A file of a bundle, whose other files name its checksum."""

    def case(folder: Path) -> Case:
        made = exported(folder.parent / f"bundle-{format_name}", format_name)

        def load() -> None:
            if name == "report.json":
                assert exported_latency(made)["p50_us"]
                return
            contract = run_policy.read_contract(made)
            session = make_format(format_name, writing=False).session(made, contract, 1)
            found = run_policy.check_vectors(session, made, contract)
            assert found["relative"] <= found["bound"] and found["rows"] == 64
            if name == "contract.json":
                acting = run_policy.Policy(made)
                action, params = acting.act(np.zeros(4), first=True)
                assert params.shape == (2,) and 0 <= int(action) - acting.contract["action"]["start"] < 2

        sums = made / "SHA256SUMS"

        def finish() -> None:
            if name == "contract.json":
                known = dict(line.split("  ")[::-1] for line in sums.read_text().splitlines())
                known[name] = hashlib.sha256((made / name).read_bytes()).hexdigest()
                sums.write_text(run_policy.sums_text(known))
            elif name != "SHA256SUMS":
                resum(made)

        return changed(made / name, load, finish=finish)

    return case


def torch_file(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)  # noqa: TID251 - as others write their policies
    return buffer.getvalue()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2))


def policy(name: str, content: bytes, *mutations: Mutation) -> Callable[[Path], Case]:
    """A file of a policy: what is accepted acts on rows, and so does the file's own program."""

    def case(folder: Path) -> Case:
        path = folder / name
        path.write_bytes(content)

        def load() -> None:
            found = read_policy_file(path)
            outputs = found.make(LAYOUT)(torch.zeros(3, 4))
            assert isinstance(outputs, torch.Tensor | tuple) and isinstance(found.env_steps, int)

        return changed(path, load, *mutations)

    return case


def stable_baselines3(folder: Path) -> Case:
    bounds = {"low": "[-1. -1. -1. -1.]", "high": "[1. 1. 1. 1.]"}
    box = {":type:": "<class 'gymnasium.spaces.box.Box'>", "_shape": [4], **bounds}
    about = {
        "num_timesteps": 5,
        "policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"},
        "observation_space": box,
        "action_space": {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "2"},
    }
    weights = ppo_weights(4, 2)

    def write(data: object = about, pth: bytes = torch_file(weights)) -> bytes:
        return zipped({"data": as_json(data), "policy.pth": pth})

    pth = torch_file(weights)
    inside = damaged_member(pth)
    others = (
        changed_json(as_json(about), lambda value: write(value)),
        lambda rng: write(pth=damage(pth, rng)),
        lambda rng: write(pth=inside(rng)),
        changed_tensors(weights, lambda tensors: write(pth=torch_file(tensors))),
    )
    return policy("policy.zip", write(), *others)(folder)


def state_dict(suffix: str) -> Callable[[Path], Case]:
    def case(folder: Path) -> Case:
        module, path = nn.Linear(3, 2), folder / f"weights{suffix}"
        weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        write = torch_file if suffix == ".pth" else save_tensors
        path.write_bytes(write(weights))

        def load() -> None:
            load_weights(module, PolicyFile(path))
            assert all(value.isfinite().all() for value in module.parameters())

        return changed(path, load, changed_tensors(weights, write))

    return case


def rsl_rl(folder: Path) -> Case:
    weights = {f"actor.{name}": tensor for name, tensor in network().state_dict().items()}
    weights["std"] = torch.ones(2)

    def write(tensors: object) -> bytes:
        return torch_file({"model_state_dict": tensors, "iter": 3})

    return policy("model_3.pt", write(weights), changed_tensors(weights, write))(folder)


def torch_script(folder: Path) -> Case:
    return policy("policy.pt", write_script(folder / "made.pt", network()).read_bytes())(folder)


def torch_program(folder: Path) -> Case:
    return policy("policy.pt2", write_export(folder / "made.pt2", network(), torch.zeros(1, 4)).read_bytes())(folder)


def onnx_policy(path: Path) -> bytes:
    """As torch writes it."""
    axes = {"obs": {0: "batch"}, "out": {0: "batch"}}
    return write_onnx(path, network(), [torch.zeros(1, 4)], ["obs"], ["out"], dynamic_axes=axes).read_bytes()


def onnx_model(folder: Path) -> Case:
    return policy("policy.onnx", onnx_policy(folder / "made.onnx"))(folder)


def onnx_weights(folder: Path) -> Case:
    """A model whose first weights are in another file."""
    model = moved_outside(onnx_policy(folder / "made.onnx"), "weights.bin")
    (folder / "weights.bin").write_bytes(np.ones(math.prod(model.graph.initializer[0].dims), np.float32).tobytes())
    return policy("policy.onnx", model.SerializeToString())(folder)


def arrays(**named: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **named)  # type: ignore[arg-type]
    return buffer.getvalue()


def normaliser(suffix: str) -> Callable[[Path], Case]:
    mean, variance = np.arange(3.0), np.ones(3, np.float32)

    def case(folder: Path) -> Case:
        tensors = {"mean": torch.tensor(mean), "var": torch.tensor(variance)}
        written = {
            ".json": as_json({"mean": mean.tolist(), "var": variance.tolist(), "clip": 5.0}),
            ".safetensors": save_tensors(tensors),
            ".npz": arrays(mean=mean, var=variance, clip=np.float64(5.0)),
        }
        path = folder / f"statistics{suffix}"
        path.write_bytes(written[suffix])

        def load() -> None:
            assert read_normaliser(path, (3,))(torch.full((2, 3), 0.5)).isfinite().all()

        return changed(path, load)

    return case


def observations(folder: Path) -> Case:
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    path = folder / "rows.npz"
    path.write_bytes(arrays(obs=rows, first=np.arange(20) % 10 == 0))

    def load() -> None:
        found = RecordedObservations.read(path)
        assert all(np.isfinite(part).all() and len(part) == len(found.first) for part in found.parts.values())

    return changed(path, load)


ARTIFACTS = ("fp32 lstm", "fp16 tanh-mlp", "int8 tanh-mlp", "int8 nature-cnn", "int4 lstm-cell")
BUNDLED = ("contract.json", "SHA256SUMS", "vectors.npz", "model.onnx", "report.json")
REPORTED = ("metrics.jsonl", "decisions.jsonl", "starts.jsonl", "machine.json")
LOADERS: dict[str, Callable[[Path], Case]] = {
    "configuration": configuration,
    "--config": command_line,
    "sweep file": sweep_file,
    "summary": summary,
    **{f"report {name}": reported(name) for name in REPORTED},
    "watch metrics.jsonl": watched,
    "report runs.json.gz": samples,
    "checkpoint": played_checkpoint,
    **{f"--resume: {name}": resumed(name) for name in RUNS},
    **{f"replay {kind}: {name}": resumed(name, kind) for kind in ("index", "piece") for name in ("sac", "apex")},
    "replay state": resumed("apex", "state"),
    "study journal": journal,
    "study database": database,
    "study.json": sweep_settings,
    "population": population_member,
    **{f"artifact: {of}": artifact(*of.split()) for of in ARTIFACTS},
    **{f"bundle {name}": bundle(name) for name in BUNDLED},
    "bundle model.ort": bundle("model.ort", "ort"),
    **{f"bundle of OpenVINO: {name}": bundle(name, "openvino") for name in ("model.xml", "model.bin")},
    "Stable-Baselines3": stable_baselines3,
    "state dict": state_dict(".pth"),
    "safetensors": state_dict(".safetensors"),
    "rsl_rl": rsl_rl,
    "TorchScript": torch_script,
    "torch.export": torch_program,
    "ONNX": onnx_model,
    "ONNX in two files": onnx_weights,
    **{f"normaliser {suffix}": normaliser(suffix) for suffix in (".json", ".safetensors", ".npz")},
    "observations": observations,
}
"""By name; before a colon it is the loader's, and behind it what files it is tried on, which share its changes."""


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize("name", LOADERS)
def test_a_changed_file_is_a_named_error_or_sound(name: str, count: int, tmp_path: Path) -> None:
    loaders = [other.partition(":")[0] for other in LOADERS]
    LOADERS[name](tmp_path).run(name, -(-count // loaders.count(name.partition(":")[0])))


def test_an_attribute_without_a_name_is_damage(tmp_path: Path) -> None:
    load = a_study(tmp_path, f"sqlite:///{tmp_path / 'study.db'}")
    with closing(sqlite3.connect(tmp_path / "study.db")) as found, found:
        found.execute("UPDATE study_user_attributes SET key = NULL")
    with pytest.raises(SweepError, match="is damaged"):
        load()
