"""Loaders of files, on files that were cut, flipped, or changed and sealed again: a named error or sound values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError, CompressorError
from accel.compressors.runtime import PolicySession
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.errors import AccelError, BundleError, CheckpointError, ConfigError
from accel.exporting import run_policy
from accel.exporting.build import export
from accel.runs.checkpoint import load_checkpoint
from accel.runs.directory import RunDirectory
from accel.runs.evaluation import read_artifact
from accel.runs.loading import TrainedRun, load_run
from accel.runs.summary import Summary
from accel.system.untrusted import MAX_TOML_BYTES
from tests.accel.test_summary import SUMMARY
from tests.accel.test_verify import resum
from tests.accel.trained_runs import make_run

fuzz = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# what a value of a file may become
HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**40, 1.5, -0.0, 1e308, "nan", "inf", "", "x", "\x1b[2J", "\ud800", "../x"),
    *([], {}, [[]], [0], [-1], [2**40] * 4, ["x"], {"a": 1}, {"": None}, "9" * 5000, "mlp:999999x99", "int8+" * 50),
)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Flipped bits, cut ends, removed, doubled and foreign pieces; never the content itself."""
    place = st.integers(0, len(content) - 1)
    pieces = st.tuples(place, place).map(sorted)
    return st.one_of(
        st.lists(st.tuples(place, st.integers(0, 7)), min_size=1, max_size=4).map(lambda bits: flipped(content, bits)),
        place.map(lambda end: content[:end]),
        pieces.map(lambda cut: content[: cut[0]] + content[cut[1] + 1 :]),
        pieces.map(lambda cut: content[: cut[1]] + content[cut[0] :]),
        st.tuples(place, st.binary(min_size=1, max_size=40)).map(
            lambda new: content[: new[0]] + new[1] + content[new[0] :]
        ),
    ).filter(lambda found: found != content)


def flipped(content: bytes, bits: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for place, bit in bits:
        changed[place] ^= 1 << bit
    return bytes(changed)


def places(value: Any) -> list[tuple[Any, ...]]:
    """Paths of everything in a JSON document but the whole of it."""
    if not isinstance(value, dict | list) or not value:
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path for key, item in items for path in ((key,), *((key, *rest) for rest in places(item)))]


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A document of which one to three values are others, or are gone."""
    copy = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        if not (paths := places(copy)):
            return copy
        *outer, last = draw(st.sampled_from(paths))
        part = copy
        for key in outer:
            part = part[key]
        if draw(st.integers(0, 5)) == 0:
            del part[last]
        else:
            part[last] = deepcopy(HOSTILE[draw(st.integers(0, len(HOSTILE) - 1))])
    return copy


def outcome(load: Callable[[], object]) -> object:
    """What was loaded, or the named error; anything else is raised."""
    try:
        return load()
    except (AccelError, CompressorError, run_policy.BundleError) as error:
        assert str(error)
        return error


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_run(tmp_path_factory.mktemp("runs"), env="CartPole-v1", network="mlp:8x1+lstm:4", calibration_size=32)
    with RunDirectory.open(path) as directory:
        directory.write_summary(SUMMARY.to_json())
    return path


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    return export(run, run.parent / "bundle", scheme="int8", episodes=0).path


@given(data=st.data())
@fuzz
def test_configurations(run: Path, data: st.DataObject) -> None:
    path = run.parent / "config" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(damaged((run / "config.toml").read_bytes())))
    directory = RunDirectory.open(path.parent, read_only=True)
    found = outcome(lambda: TrainConfig.from_json(directory.read_config()))
    again = outcome(lambda: TrainConfig.from_json(load_toml(path)))
    assert isinstance(found, TrainConfig | AccelError) and isinstance(again, type(found) | AccelError)
    if isinstance(found, TrainConfig):
        assert TrainConfig.from_json(found.to_json()) == found == again


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 30_000,
        "a = " + "{a=" * 20_000,
        "a" + ".a" * 30_000 + " = 1",
        "\n".join(f"b{i}" + ".a" * 60 + " = 1" for i in range(100)),
        "[" + "a." * 1000 + "a]",
        "seed = " + "9" * 5000,
        'env_arg = ["a=' + "-" * 30_000 + '1"]',
        "cls = 1",
        "self = 1",
        "#" * (MAX_TOML_BYTES + 1),
        "env = '\udc80'",
        "seed = 1979-05-27T07:32:00Z",
    ],
    ids=lambda text: text[:20],
)
def test_configurations_that_exhaust_a_parser(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    directory = RunDirectory.open(tmp_path, read_only=True)
    found = outcome(lambda: TrainConfig.from_json(directory.read_config()))
    assert isinstance(found, AccelError) or text.startswith("env_arg")


@given(data=st.data())
@fuzz
def test_summaries(run: Path, data: st.DataObject) -> None:
    path = run.parent / "summary" / "summary.json"
    path.parent.mkdir(exist_ok=True)
    document = SUMMARY.to_json()
    content = json.dumps(document).encode()
    path.write_bytes(
        data.draw(
            damaged(content) | changed(document).map(lambda value: json.dumps(value).encode(errors="surrogatepass"))
        )
    )
    found = outcome(lambda: Summary.read(path.parent))
    assert isinstance(found, Summary | CheckpointError)
    if isinstance(found, Summary):
        assert found.text() and min(found.env_steps, found.updates, found.episodes, found.actors) >= 0


@pytest.mark.parametrize("content", ["[" * 100_000, '{"lag": ' * 50_000, " " * 2**23, '{"unknown": 1}'])
def test_summaries_that_exhaust_a_parser(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"no readable summary\.json"):
        Summary.read(tmp_path)


@given(data=st.data())
@fuzz
def test_checkpoints_that_were_damaged(run: Path, data: st.DataObject) -> None:
    (original,) = (run / "checkpoints").iterdir()
    path = run.parent / "damaged.safetensors"
    path.write_bytes(data.draw(damaged(original.read_bytes())))
    found = outcome(lambda: load_checkpoint(path))
    if not isinstance(found, CheckpointError):  # spaces in a header, say
        assert repr(found) == repr(load_checkpoint(original))


def seal(path: Path, text: str, tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint of any content with its right checksum."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    metadata = {"format": "accel-checkpoint", "version": "1", "document": text, "sha256": digest.hexdigest()}
    save_file(tensors, path, metadata)


@given(data=st.data())
@fuzz
def test_checkpoints_that_were_changed_and_sealed_again(run: Path, data: st.DataObject) -> None:
    (original,) = (run / "checkpoints").iterdir()
    forged = run.parent / "forged"
    if not forged.exists():
        shutil.copytree(run, forged)
    with safe_open(original, framework="pt") as file:
        document = json.loads(file.metadata()["document"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[name]
        others = [tensor.double(), tensor.reshape(-1)[:1], torch.zeros(0), torch.tensor(True)]
        tensors[name] = others[data.draw(st.integers(0, len(others) - 1))].clone()
    else:
        document = data.draw(changed(document))
    seal(forged / "checkpoints" / original.name, json.dumps(document), tensors)
    found = outcome(lambda: load_run(forged))
    assert isinstance(found, TrainedRun | AccelError)
    if isinstance(found, TrainedRun):
        params, *_ = found.policy(torch.zeros(2, *found.spec.observation_shape), torch.zeros(2, 4), torch.zeros(2, 4))
        assert params.shape == (2, found.spec.action.param_size)


def test_a_network_that_the_checkpoint_does_not_hold_takes_no_memory(run: Path, tmp_path: Path) -> None:
    """Terabytes, if it were built."""
    forged = Path(shutil.copytree(run, tmp_path / "forged"))
    config = (forged / "config.toml").read_text().replace("mlp:8x1+lstm:4", "mlp:999999x99")
    (forged / "config.toml").write_text(config)
    with pytest.raises(CheckpointError, match="does not fit network 'mlp:999999x99'"):
        load_run(forged)


def test_a_checkpoint_of_deep_state_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    seal(tmp_path / "deep.safetensors", f'{{"tensors": {{}}, "optimizer": {{}}, "counters": {deep}}}', {})
    with pytest.raises(CheckpointError, match="not a checkpoint's structure"):
        load_checkpoint(tmp_path / "deep.safetensors")


@pytest.fixture(scope="module")
def loaded(run: Path) -> TrainedRun:
    return load_run(run)


@pytest.fixture(scope="module")
def artifact(loaded: TrainedRun) -> CompressedPolicy:
    return loaded.compress("fp32")


@given(data=st.data())
@fuzz
def test_artifacts(run: Path, loaded: TrainedRun, artifact: CompressedPolicy, data: st.DataObject) -> None:
    path = run.parent / "artifact.accel"
    path.write_bytes(data.draw(damaged(artifact.to_bytes())))
    assert isinstance(outcome(lambda: read_artifact(path, loaded)), ConfigError)
    header = json.loads(artifact.header_json)
    resealed = outcome(lambda: CompressedPolicy.from_bytes(with_header(artifact, data.draw(changed(header)))))
    assert isinstance(resealed, CompressedPolicy | ArtifactError)
    if isinstance(resealed, CompressedPolicy):
        session = outcome(lambda: PolicySession(resealed, batch=2))
        assert isinstance(session, PolicySession | ArtifactError)


def with_header(artifact: CompressedPolicy, header: dict[str, Any]) -> bytes:
    """The artifact's bytes under another header, with the right checksum."""
    forged = dataclasses.replace(artifact)
    forged.__dict__["header_json"] = json.dumps(header).encode()
    return forged.to_bytes()


def read_bundle(path: Path) -> dict[str, Any]:
    """All that a program does with a bundle before it acts."""
    contract = run_policy.read_contract(path)
    run_policy.check_cpu(contract)
    session = run_policy.OnnxSession(path, contract, 1)
    return run_policy.check_vectors(session, path, contract)


@pytest.fixture(scope="module")
def copy(bundle: Path) -> Path:
    return Path(shutil.copytree(bundle, bundle.parent / "copy"))


@pytest.mark.parametrize("name", ["contract.json", "SHA256SUMS", "vectors.npz", "model.onnx"])
@given(data=st.data())
@fuzz
def test_bundles_that_were_damaged(bundle: Path, copy: Path, name: str, data: st.DataObject) -> None:
    (copy / name).write_bytes(data.draw(damaged((bundle / name).read_bytes())))
    assert isinstance(outcome(lambda: read_bundle(copy)), run_policy.BundleError)
    shutil.copyfile(bundle / name, copy / name)


@given(data=st.data())
@fuzz
def test_contracts_that_were_changed_and_sealed_again(bundle: Path, copy: Path, data: st.DataObject) -> None:
    contract = json.loads((bundle / "contract.json").read_text())
    content = json.dumps(data.draw(changed(contract))).encode()
    (copy / "contract.json").write_bytes(content)
    sums = {name: facts["sha256"] for name, facts in contract["files"].items()}
    sums["contract.json"] = hashlib.sha256(content).hexdigest()
    (copy / "SHA256SUMS").write_text(run_policy.sums_text(sums))
    found = outcome(lambda: read_bundle(copy))
    if isinstance(found, dict):
        policy = run_policy.Policy(copy)
        action, params = policy.act(np.zeros(4), first=True)
        assert params.shape == (2,) and 0 <= int(action) - policy.contract["action"]["start"] < 2
    for name in ("contract.json", "SHA256SUMS"):
        shutil.copyfile(bundle / name, copy / name)


@given(data=st.data())
@fuzz
def test_files_of_onnxruntime_that_were_damaged_and_sealed_again(run: Path, data: st.DataObject) -> None:
    path = run.parent / "ort"
    if not path.exists():
        export(run, path, scheme="int8", format="ort", episodes=0)
    model = path / "model.ort"
    sound = model.read_bytes()
    try:
        model.write_bytes(data.draw(damaged(sound)))
        resum(path)
        found = outcome(lambda: read_bundle(path))
    finally:
        model.write_bytes(sound)
    assert isinstance(found, run_policy.BundleError) or found["relative"] <= found["bound"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["vectors.npz", "model.onnx", "report.json"])
@given(data=st.data())
@fuzz
def test_files_that_were_damaged_and_sealed_again(bundle: Path, copy: Path, name: str, data: st.DataObject) -> None:
    """What is accepted passes its test vectors, all of them."""
    (copy / name).write_bytes(data.draw(damaged((bundle / name).read_bytes())))
    resum(copy)
    found = outcome(lambda: read_bundle(copy))
    assert isinstance(found, dict | BundleError | run_policy.BundleError)
    if isinstance(found, dict):
        assert found["relative"] <= found["bound"] and found["rows"] == 64
    for changed_file in (name, "contract.json", "SHA256SUMS"):
        shutil.copyfile(bundle / changed_file, copy / changed_file)
