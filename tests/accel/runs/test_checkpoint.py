"""Checkpoints: exact, checked, atomic under real kills."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from accel.algorithms.optimizers import Adam, Optimiser, RMSprop
from accel.algorithms.state_tree import flatten, unflatten
from accel.errors import CheckpointError
from accel.runs.checkpoint import (
    CheckpointState,
    CheckpointStore,
    load_checkpoint,
    save_checkpoint,
)


def state(env_steps: int = 100, size: int = 4, **counters: Any) -> CheckpointState:
    return CheckpointState({"weight": torch.full((size,), float(env_steps))}, {}, {"env_steps": env_steps, **counters})


def exact(value: Any) -> Any:
    """Equal where values are equal in type, structure and every bit; Python's NaNs are one."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(type(key), key, exact(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(inner) for inner in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else np.float64(value).tobytes()
    return type(value), value


TENSORS = {
    "float32": torch.tensor([1.5, -0.0, math.nan, math.inf, 1e-45]),
    "float64": torch.tensor([[1 / 3, 5e-324], [1e308, -1.0]], dtype=torch.float64),
    "bfloat16": torch.tensor([1 / 3, -0.0, math.nan], dtype=torch.bfloat16),
    "float16": torch.tensor([1 / 3], dtype=torch.float16),
    "scalar": torch.tensor(7.25),
    "count": torch.tensor(2**60, dtype=torch.int64),
    "empty": torch.zeros(0, 3),
    "bool": torch.tensor([True, False]),
    "uint8": torch.arange(256, dtype=torch.int64).to(torch.uint8),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    """Also those that share their storage, and parameters."""
    base = torch.arange(10.0)
    tensors = TENSORS | {"a": base, "b": base, "tail": base[5:], "parameter": torch.nn.Parameter(base)}
    save_checkpoint(tmp_path / "c", CheckpointState(tensors, {}, {"env_steps": 0}))
    loaded = load_checkpoint(tmp_path / "c").tensors
    for name, tensor in tensors.items():
        assert exact(loaded[name]) == exact(tensor.detach().contiguous()), name


trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(list(TENSORS.values())).map(lambda t: t.contiguous())
    | st.sampled_from([np.arange(3, dtype=np.uint32), np.array(2.5), np.zeros((0, 2), np.int16), np.array([True])]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$tensor", "$float", "a.b"]), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(trees)
def test_any_tree_survives_flattening_through_json(tree: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(flatten(tree, tensors, "root"), allow_nan=False)
    assert exact(unflatten(json.loads(text), tensors)) == exact(tree)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}, {True: 1}, {None: 1}])
def test_what_cannot_be_held_is_refused_by_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"counters\.odd"):
        save_checkpoint(tmp_path / "c", state(odd=value))
    assert list(tmp_path.iterdir()) == []


def test_the_last_one_written_stays_whatever_its_steps(tmp_path: Path) -> None:
    kept = []
    for steps in (1, 2, 3, 9, 4, 5):
        store = CheckpointStore(tmp_path, keep=4)
        store.save(CheckpointState({}, {}, {"env_steps": steps}))
        kept.append([int(path.stem.partition("-")[2]) for path in store.paths()])
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 9], [2, 3, 4, 9], [3, 4, 5, 9]]
    CheckpointStore(tmp_path, keep=1).save(CheckpointState({}, {}, {"env_steps": 6}))
    assert [path.name for path in CheckpointStore(tmp_path).paths()] == ["step-000000000006.safetensors"]


def test_a_foreign_optimizer_is_refused_and_left_as_it_was() -> None:
    def stepped(kind: type[Optimiser], size: int) -> Optimiser:
        parameter = torch.nn.Parameter(torch.ones(size))
        parameter.grad = torch.ones(size)
        optimizer = kind(parameter, 0.1, 1e-8)
        optimizer.step()
        return optimizer

    optimizer, other = stepped(Adam, 4), stepped(Adam, 5).save()
    before = exact(optimizer.save())
    foreign: list[tuple[Mapping[str, Any], str]] = [
        (stepped(RMSprop, 4).save(), "RMSprop, not Adam"),
        (other, r"exp_avg of shape \(5,\), not \(4,\)"),
        ({}, "None, not Adam"),
        ({"kind": "Adam"}, "incomplete"),
        ({"kind": "Adam", "state": {"step": torch.ones(())}}, "incomplete"),
        ({"kind": "Adam", "state": {"exp_avg": torch.zeros(4), "exp_avg_sq": 3, "step": torch.ones(())}}, "exp_avg_sq"),
    ]
    for saved, message in foreign:
        with pytest.raises(CheckpointError, match=message):
            optimizer.load(saved)
    assert exact(optimizer.save()) == before


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, state(100, 3, text="x"))
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1
        for damaged in (flipped, content[:position]):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                load_checkpoint(path)
    path.write_bytes(content)
    assert load_checkpoint(path).env_steps == 100


def test_foreign_files_are_refused_in_clear_words(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CheckpointError, match="is no regular file, and so no checkpoint"):
            load_checkpoint(other)
    path.write_bytes(b"PK\x03\x04 something pickled by someone else")
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        load_checkpoint(path)
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of a run"):
        load_checkpoint(path)
    save_file({"w": torch.ones(2)}, path, {"format": "accel-checkpoint", "version": "99"})
    with pytest.raises(CheckpointError, match=r"format 99, this version of accel reads 1: go on with the version"):
        load_checkpoint(path)


@pytest.mark.parametrize("counters", [{}, {"env_steps": -1}, {"env_steps": 1.5}, {"env_steps": True}])
def test_a_checkpoint_needs_a_step_count(tmp_path: Path, counters: Any) -> None:
    with pytest.raises(CheckpointError, match="needs a step count"):
        CheckpointStore(tmp_path).save(CheckpointState({}, {}, counters))


def test_the_store_keeps_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.load_latest() is None
    for restart in (0, 1):  # at one step, of which the later stays
        store.save(state(5, restart=restart))
        assert (newest := store.load_latest()) is not None and newest.counters["restart"] == restart
        assert len(store.paths()) == 1
    for steps in (100, 10**13):
        assert store.save(state(steps)) == store.paths()[-1]
    (tmp_path / "checkpoints" / "step-99999999999999.safetensors.bak").touch()
    (tmp_path / "checkpoints" / ".step-99999999999999.safetensors.1.partial").touch()
    assert [path.name for path in store.paths()] == ["step-000000000100.safetensors", "step-10000000000000.safetensors"]
    assert (newest := store.load_latest()) is not None and newest.env_steps == 10**13


def test_a_damaged_newest_checkpoint_names_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(state(1))
    store.save(state(2)).write_bytes(b"damaged")
    with pytest.raises(
        CheckpointError, match=r"delete it to go on from the one before, step-000000000001\.safetensors"
    ):
        store.load_latest()


SAVER = """
import os, signal, sys
from pathlib import Path
import torch
from accel.runs.checkpoint import CheckpointState, CheckpointStore

torch.set_num_threads(1)
store = CheckpointStore(Path(sys.argv[1]), keep=2)

def save(steps):
    store.save(CheckpointState({"w": torch.full((1000,), float(steps))}, {}, {"env_steps": steps}))

seen = wanted = 0

def audit(name, arguments):
    global seen
    if wanted and (name.startswith("os.") or name in ("open", "pathlib.Path.glob")):
        seen += 1
        if seen == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
save(0)
for steps in range(1, 100):
    child = os.fork()
    if not child:
        wanted = steps
        save(steps)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WIFSIGNALED(status), store.load_latest().env_steps, flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


def test_a_kill_at_each_file_system_event_of_a_save_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    """Every save forks first, and the fork kills itself at its n-th event, until one n is beyond the last event."""
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    outcomes = [line.split() for line in printed.splitlines()]
    killed = [int(latest) for signaled, latest in outcomes if signaled == "True"]
    assert len(killed) >= 4
    assert outcomes[-1] == ["False", str(len(outcomes))]
    # Each kill left the last good one or, after the rename, the one being written; both happen.
    assert all(latest in (steps, *range(steps)) for steps, latest in enumerate(killed, 1))
    assert killed[0] == 0
    assert killed[-1] == len(killed)
    loaded = CheckpointStore(tmp_path).load_latest()
    assert loaded is not None
    assert loaded.env_steps == len(outcomes) and torch.all(loaded.tensors["w"] == float(loaded.env_steps))
    assert not list(tmp_path.glob(".*"))
