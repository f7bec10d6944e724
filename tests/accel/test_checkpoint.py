"""Checkpoints: exact, checked, atomic under real kills."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
import textwrap
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
    load_generators,
    pack_generators,
    save_checkpoint,
)
from accel.runs.directory import RunDirectory


def state(env_steps: int = 100, size: int = 4, **counters: Any) -> CheckpointState:
    return CheckpointState({"weight": torch.full((size,), float(env_steps))}, {}, {"env_steps": env_steps, **counters})


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_identical(a: object, b: object) -> None:
    """Equal in type, structure and every bit."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a) == bits(b)
    elif isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert list(a) == list(b)
        assert [type(key) for key in a] == [type(key) for key in b]
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_identical(x, y)
    elif isinstance(a, float):
        assert np.float64(a).tobytes() == np.float64(b).tobytes()
    else:
        assert a == b


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
    "parameter": torch.nn.Parameter(torch.ones(2)).detach(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    tensor = TENSORS[name]
    save_checkpoint(tmp_path / "c", CheckpointState({name: tensor}, {}, {"env_steps": 0}))
    loaded = load_checkpoint(tmp_path / "c")
    assert_identical(loaded.tensors[name], tensor.contiguous())


def test_shared_storage_and_parameters_are_no_obstacle(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    tied = {"a": base, "b": base, "tail": base[5:], "p": torch.nn.Parameter(base)}
    save_checkpoint(tmp_path / "c", CheckpointState(tied, {}, {"env_steps": 0}))
    loaded = load_checkpoint(tmp_path / "c").tensors
    for name, tensor in tied.items():
        assert bits(loaded[name]) == bits(tensor.detach().clone())


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
    back = unflatten(json.loads(text), tensors)
    if isinstance(tree, float) and math.isnan(tree):
        assert isinstance(back, float)
        assert math.isnan(back)
    else:
        assert_identical(normalise_nan(back), normalise_nan(tree))


def normalise_nan(tree: Any) -> Any:
    """Python's NaNs keep their meaning, not their sign and payload."""
    if isinstance(tree, dict):
        return {key: normalise_nan(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(normalise_nan(value) for value in tree)
    return math.nan if isinstance(tree, float) and math.isnan(tree) else tree


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {(1, 2): 3}, {True: 1}, {None: 1}])
def test_what_cannot_be_held_is_refused_by_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"counters\.odd"):
        save_checkpoint(tmp_path / "c", state(odd=value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_training_goes_on_bit_for_bit_from_any_update(tmp_path: Path, kind: type[Optimiser]) -> None:
    def build() -> Optimiser:
        return kind(torch.nn.Parameter(torch.linspace(-1.0, 1.0, 7)), 1e-2, 1e-5)

    def update(optimizer: Optimiser, generator: torch.Generator) -> None:
        optimizer.parameter.grad = torch.randn(7, generator=generator) * optimizer.parameter.detach()
        optimizer.step()

    optimizer, generator = build(), torch.Generator().manual_seed(1)
    for _ in range(3):
        update(optimizer, generator)
    path = tmp_path / "c"
    counters = {"env_steps": 3, "rng": pack_generators(batches=generator)}
    save_checkpoint(path, CheckpointState({"w": optimizer.parameter.detach()}, optimizer.save(), counters))
    for _ in range(3):
        update(optimizer, generator)

    resumed, its_generator = build(), torch.Generator()
    loaded = load_checkpoint(path)
    resumed.parameter.data.copy_(loaded.tensors["w"])
    resumed.load(loaded.algorithm)
    load_generators(loaded.counters["rng"], batches=its_generator)  # type: ignore[arg-type]
    for _ in range(3):
        update(resumed, its_generator)
    assert_identical(resumed.parameter.detach(), optimizer.parameter.detach())
    assert_identical(resumed.save(), optimizer.save())
    assert_identical(its_generator.get_state(), generator.get_state())


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
    before = copy.deepcopy(optimizer.save())
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
    assert_identical(optimizer.save(), before)


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_numpy_generators_go_on_where_they_were(tmp_path: Path, kind: type[np.random.BitGenerator]) -> None:
    generator = np.random.Generator(kind(5))
    generator.integers(10, size=7, dtype=np.int32)
    save_checkpoint(tmp_path / "c", state(rng=pack_generators(env=generator)))
    expected = generator.normal(size=5), generator.integers(10, size=3, dtype=np.int32), torch.rand(3)
    other = np.random.Generator(kind(6))
    torch.rand(17)
    load_generators(load_checkpoint(tmp_path / "c").counters["rng"], env=other)  # type: ignore[arg-type]
    actual = other.normal(size=5), other.integers(10, size=3, dtype=np.int32), torch.rand(3)
    assert [a.tolist() for a in actual] == [e.tolist() for e in expected]


def test_generators_that_do_not_fit_are_refused() -> None:
    packed = pack_generators(env=np.random.default_rng(0))
    with pytest.raises(CheckpointError, match=r"holds the generators \['env'\], not \['other'\]"):
        load_generators(packed, other=np.random.default_rng(0))
    with pytest.raises(CheckpointError, match="do not fit"):
        load_generators(packed, env=np.random.Generator(np.random.MT19937(0)))
    with pytest.raises(CheckpointError, match="do not fit"):
        load_generators(packed, env=torch.Generator())
    with pytest.raises(CheckpointError, match=r"holds the generators \[\]"):
        load_generators({}, env=torch.Generator())


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, state(100, 3, text="x"))
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
    path.write_bytes(content)
    assert load_checkpoint(path).env_steps == 100


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, state())
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


def test_foreign_files_are_refused_in_clear_words(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="is no regular file, and so no checkpoint"):
        load_checkpoint(tmp_path)
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
    for steps in (5, 100, 10**13):
        assert store.save(state(steps)) == store.paths()[-1]
    (tmp_path / "checkpoints" / "step-99999999999999.safetensors.bak").touch()
    (tmp_path / "checkpoints" / ".step-99999999999999.safetensors.1.partial").touch()
    assert [path.name for path in store.paths()] == ["step-000000000100.safetensors", "step-10000000000000.safetensors"]
    assert (newest := store.load_latest()) is not None and newest.env_steps == 10**13


def test_saving_again_at_the_same_step_replaces(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(state(5, restart=0))
    store.save(state(5, restart=1))
    assert (newest := store.load_latest()) is not None and newest.counters["restart"] == 1
    assert len(store.paths()) == 1


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "step-000000000001.safetensors")
    with pytest.raises(CheckpointError, match="is no regular file"):
        load_checkpoint(path)


def test_a_damaged_newest_checkpoint_names_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(state(1))
    store.save(state(2)).write_bytes(b"damaged")
    with pytest.raises(
        CheckpointError, match=r"delete it to go on from the one before, step-000000000001\.safetensors"
    ):
        store.load_latest()


def test_a_run_directory_saves_and_loads(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "run") as run:
        with pytest.raises(CheckpointError, match="no checkpoint yet"):
            run.load_checkpoint()
        for steps in (1, 2, 3):
            run.save_checkpoint(state(steps), keep=2)
        assert run.load_checkpoint().env_steps == 3
        assert len(list(run.checkpoints.iterdir())) == 2


SAVER = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from accel.runs.checkpoint import CheckpointState, CheckpointStore

    torch.set_num_threads(1)
    store = CheckpointStore(Path(sys.argv[1]), keep=2)
    def save(steps):
        store.save(CheckpointState({"w": torch.full((int(sys.argv[2]),), float(steps))}, {}, {"env_steps": steps}))
"""


def spawn(code: str, *arguments: object) -> subprocess.Popen[str]:
    program = textwrap.dedent(SAVER) + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def assert_resumable(directory: Path, at_least: int) -> None:
    loaded = CheckpointStore(directory).load_latest()
    assert loaded is not None and loaded.env_steps >= at_least
    assert torch.all(loaded.tensors["w"] == float(loaded.env_steps))


def test_a_kill_at_each_file_system_event_of_a_save_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    """Every save forks first, and the fork kills itself at its n-th event, until one n is beyond the last event."""
    code = """
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
    with spawn(code, tmp_path, 1000) as process:
        outcomes = [line.split() for line in process.communicate()[0].splitlines()]
    assert process.returncode == 0
    killed = [int(latest) for signaled, latest in outcomes if signaled == "True"]
    assert len(killed) >= 4
    assert outcomes[-1] == ["False", str(len(outcomes))]
    # Each kill left the last good one or, after the rename, the one being written; both happen.
    assert all(latest in (steps, *range(steps)) for steps, latest in enumerate(killed, 1))
    assert killed[0] == 0
    assert killed[-1] == len(killed)
    assert_resumable(tmp_path, len(outcomes))
    assert not list(tmp_path.glob(".*"))
