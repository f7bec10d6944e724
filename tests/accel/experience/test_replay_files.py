"""Replays on disk: restored as they were, written once, whole or refused whatever happens to their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accel
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError
from accel.experience.stores.base import Experience, KeptStore
from accel.runs import replay_files
from accel.runs.replay_files import ReplayFiles
from accel.system.atomic import write_atomically
from tests.contracts.episodes import LAYOUTS, VECTOR, Actor
from tests.contracts.test_stores import ENVS, ROWS, Source, mistakes, prioritised, replay, sequences, trajectories

STORES: dict[str, Callable[..., Any]] = {
    "replay": lambda spec: replay(spec, capacity=80, gives_steps=True),
    "prioritised": lambda spec: prioritised(spec, capacity=80),
    "sequences": sequences,
    "trajectories": lambda spec: trajectories(spec, slots=12, batch_unrolls=1, replays=2),
}
each = pytest.mark.parametrize("name", STORES)
NOW = "7"  # The moment of the checkpoint that a replay is saved for.


def save(files: ReplayFiles, store: KeptStore, moment: str = NOW) -> None:
    """As for a checkpoint that is written in between."""
    files.save(store, moment)
    files.remove_older()


def begun(name: str, spec: EnvSpec = VECTOR) -> tuple[Any, Source]:
    """A store, and what it learns from."""
    return STORES[name](spec), Source(Actor(spec, ROWS, ENVS))


def restored(name: str, directory: Path, moment: str = NOW, spec: EnvSpec = VECTOR) -> Any:
    """A new store with what is in the files."""
    store = STORES[name](spec)
    assert ReplayFiles(directory, "x").load(store, moment)
    return store


def take(store: Any, count: int) -> list[dict[str, torch.Tensor]]:
    """Samples, which are given back with priorities of their own."""
    found = []
    for k in range(count):
        sample = store.sample()
        if sample is None:
            continue
        tensors = {name: value.clone() for name, value in sample.tensors().items()}
        if sample.weights is not None:
            tensors["weights"] = sample.weights.clone()
        found.append(tensors)
        size = (next(iter(tensors.values())) if sample.transitions else sample.batch.valid[0]).shape[0]
        store.feedback(sample, torch.arange(size) % 5 + 0.5 * k)
    return found


def grow(store: KeptStore, source: Source, unrolls: int) -> None:
    for _ in range(unrolls):
        source.insert(store)
        take(store, 3)


def alike(one: list[dict[str, torch.Tensor]], two: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(two) > 0 and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(one, two, strict=True)
    )


def draw(store: Any, spec: EnvSpec = VECTOR) -> list[dict[str, torch.Tensor]]:
    """What is drawn once an unroll of another process has arrived."""
    store.insert(Experience(0, Actor(spec, ROWS, ENVS, 1).unroll()[0], lambda: None))
    return take(store, 4)


@pytest.mark.few(9)
@each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_restored_replay_gives_what_the_saved_one_gives(name: str, layout: str, tmp_path: Path) -> None:
    """Before and after the ring is full, whatever had been saved before."""
    spec = LAYOUTS[layout]
    if name == "sequences" and spec.autoreset == "same_step":
        return
    store, source = begun(name, spec)
    files = ReplayFiles(tmp_path / "replay", "x")
    save(files, store)
    for unrolls in (3, 6, 30):
        grow(store, source, unrolls)
        save(files, store)
        again, expected = restored(name, tmp_path / "replay", spec=spec), draw(store, spec)
        assert alike(draw(again, spec), expected) and not alike(draw(STORES[name](spec), spec), expected)
        save(files, store)


@pytest.mark.few(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["replay", "prioritised"])
def test_what_arrives_after_a_restart_does_not_follow_what_was_there(name: str, layout: str, tmp_path: Path) -> None:
    spec = LAYOUTS[layout]
    store, source = STORES[name](spec), Source(Actor(spec, ROWS, ENVS), Actor(spec, ROWS, ENVS, 1))
    grow(store, source, 3)
    save(ReplayFiles(tmp_path / "replay", "x"), store)
    again, files = STORES[name](spec), ReplayFiles(tmp_path / "replay", "x")
    assert files.load(again, NOW) and again.available
    for _ in range(14):
        unroll, rows = source.actors[1].unroll()
        for kept, new in zip(source.rows[1], rows, strict=True):
            kept.extend(new)
        again.insert(Experience(0, unroll, lambda: None))
        for _ in range(5):
            assert not mistakes([again.sample().transitions], source, 3)
        save(files, again)
    assert alike(draw(restored(name, tmp_path / "replay", spec=spec), spec), draw(again, spec))


@each
def test_rows_are_written_once_and_removed_when_they_are_gone(name: str, tmp_path: Path) -> None:
    store, source = begun(name)
    files, directory = ReplayFiles(tmp_path / "replay", "x"), tmp_path / "replay"
    grow(store, source, 30)
    save(files, store)
    whole = sum(path.stat().st_size for path in directory.glob("piece-*"))
    seen: set[str] = {path.name for path in directory.iterdir()}
    for _ in range(25):
        grow(store, source, 1)
        before = {path: path.stat().st_mtime_ns for path in directory.glob("piece-*")}
        save(files, store)
        after = {path: path.stat().st_mtime_ns for path in directory.glob("piece-*")}
        new = [path for path in after if path not in before]
        assert len(new) == 1 and all(after[path] == before[path] for path in after if path in before)
        if name in {"replay", "prioritised"}:
            assert new[0].stat().st_size < 0.7 * whole
        assert len(list(directory.glob("state-*"))) == 1
    assert not seen & {path.name for path in directory.glob("piece-*")}
    assert len(list(directory.glob("piece-*"))) <= 14


def test_large_rings_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_files, "PIECE_BYTES", 500)
    store, source = begun("replay")
    grow(store, source, 30)
    save(ReplayFiles(tmp_path / "replay", "x"), store)
    pieces = list((tmp_path / "replay").glob("piece-*"))
    assert len(pieces) >= 5 and max(path.stat().st_size for path in pieces) < 2500
    assert alike(draw(restored("replay", tmp_path / "replay")), draw(store))


@pytest.mark.few(1)
@each
def test_a_kill_while_writing_leaves_what_was_saved_before(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every file that is written, and in the middle of it."""
    write = write_atomically
    reached = 0
    for stop in range(8):
        directory = tmp_path / str(stop)
        store, source = begun(name)
        files = ReplayFiles(directory, "x")
        grow(store, source, 25)
        save(files, store)
        expected = draw(restored(name, directory))
        written = 0

        def killed(path: Path, content: bytes, stop: int = stop) -> None:
            nonlocal written
            if written * 2 == stop or written * 2 + 1 == stop:
                if stop % 2:
                    path.with_name(f".{path.name}.1.partial").write_bytes(content[: len(content) // 2])
                raise KeyboardInterrupt
            written += 1
            write(path, content)

        grow(store, source, 2)
        monkeypatch.setattr(replay_files, "write_atomically", killed)
        try:
            save(files, store)
        except KeyboardInterrupt:
            reached += 1
        else:
            continue
        finally:
            monkeypatch.setattr(replay_files, "write_atomically", write)
        again, resumed = STORES[name](VECTOR), ReplayFiles(directory, "x")
        assert resumed.load(again, NOW) and alike(draw(again), expected)
        save(resumed, again)
        assert not list(directory.glob(".*.partial")) and restored(name, directory)
    assert reached >= 6


@each
def test_a_checkpoint_is_resumed_with_the_replay_of_its_moment(name: str, tmp_path: Path) -> None:
    """A kill may come after a replay is saved and before the checkpoint is that it is for."""
    store, source = begun(name)
    files, expected = ReplayFiles(tmp_path / "replay", "x"), {}
    for moment in ("1", "3"):
        grow(store, source, 20)
        files.save(store, moment)
        expected[moment] = draw(restored(name, tmp_path / "replay", moment))
    assert not alike(expected["1"], expected["3"])
    for moment, there in (("1", "1"), ("2", "1"), ("3", "3"), ("4", "3")):
        assert alike(draw(restored(name, tmp_path / "replay", moment)), expected[there])
    assert not ReplayFiles(tmp_path / "replay", "x").load(STORES[name](VECTOR), "0")
    files.remove_older()
    assert not ReplayFiles(tmp_path / "replay", "x").load(STORES[name](VECTOR), "2")
    assert restored(name, tmp_path / "replay", "3")


@each
def test_damaged_files_are_refused_and_leave_the_store_as_it_was(name: str, tmp_path: Path) -> None:
    store, source = begun(name)
    files = ReplayFiles(tmp_path / "whole", "x")
    for _ in range(2):
        grow(store, source, 4)
        save(files, store)
    for path in sorted((tmp_path / "whole").iterdir()):
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for k, damaged in enumerate((content[:-5], flipped, b"", None)):
            copy = tmp_path / f"{path.name}-{k}"
            shutil.copytree(tmp_path / "whole", copy)
            if damaged is None:
                if path.name.startswith("index-"):
                    continue
                (copy / path.name).unlink()
            else:
                (copy / path.name).write_bytes(damaged)
            untouched = STORES[name](VECTOR)
            with pytest.raises(CheckpointError, match="damaged"):
                ReplayFiles(copy, "x").load(untouched, NOW)
            assert untouched.available == 0 and not untouched.rings()
    with pytest.raises(CheckpointError, match="another size"):
        ReplayFiles(tmp_path / "whole", "y").load(STORES[name](VECTOR), NOW)
    assert not ReplayFiles(tmp_path / "nothing", "x").load(STORES[name](VECTOR), NOW)


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_a_resumed_run_learns_on_from_its_replay(
    algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without filling it anew; a damaged one is filled anew, and said to be."""
    config = TrainConfig.create(
        env="CartPole-v1", algorithm=algorithm, actors=0, envs_per_actor=4, learning_starts=800, batch_size=8,
        samples_per_insert=1.0, total_env_steps=1000, save_replay=True, results_dir=tmp_path, name="run",
        learner_threads=1, compressor="fp32", network="mlp:8x1" + "+lstm:4" * (algorithm == "r2d2"),
    )  # fmt: skip
    first = accel.train(config)
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    more = config.replace(total_env_steps=1400)
    second = accel.train(more, resume=tmp_path / "run")
    rows = config.store.sampled_steps(config.acting.unroll_length)  # type: ignore[union-attr]
    assert second.updates - first.updates > 0.6 * 400 / rows
    assert "anew" not in caplog.text
    piece = next((tmp_path / "damaged" / "replay").glob("piece-*"))
    piece.write_bytes(piece.read_bytes()[:-9])
    third = accel.train(more.replace(name="damaged"), resume=tmp_path / "damaged")
    assert third.updates == first.updates
    assert "damaged" in caplog.text and "filled anew" in caplog.text
