"""How long does a sample take from a replay of a million environment steps?

    python scripts/evidence/replay_sampling.py > results/replay-sampling/rows.json      (half a minute)

256 transitions of 17 numbers, n = 3, from a full replay of a million, uniform and by priority, on one thread, and with
all of their steps, as Retrace wants them; 32 sequences of two unrolls of 20. ``sample_us`` includes gathering and the
tensors, ``feedback_us`` is the new priorities, ``insert_us`` one unroll of 8 environments and 20 steps (8 for
transitions). ``save_all_s`` writes the whole replay, ``save_new_s`` what is new after 200 unrolls more, ``load_s``
reads it. Raw samples, and their medians with the 10th and 90th percentile. Where cpprb is installed (pip install
cpprb), its buffers of as many transitions stand beside: n-step returns are made before they are added, and its memory
holds every observation twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch

from accel.algorithms.catalogue import make_store
from accel.bench.rows import provenance, spread
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, KeptStore, Store
from accel.experience.unroll import Unroll, UnrollLayout
from accel.runs.replay_files import ReplayFiles

CAPACITY = 1_000_000
ENVS = 8
SAMPLES = 300
NEW_UNROLLS = 200
SPEC = EnvSpec((17,), "float32", ActionSpec("categorical", (6,)))
CASES = {
    "replay": {"algorithm": "dqn", "batch_size": 256},
    "prioritised": {"algorithm": "apex", "batch_size": 256},
    "replay, with steps": {"algorithm": "dqn", "batch_size": 256, "corrector": "retrace"},
    "sequences": {"algorithm": "r2d2", "batch_size": 32},
}


def main() -> None:
    """Measure every store, print JSON."""
    torch.set_num_threads(1)
    facts = provenance()
    rows = [_measure(name, options) | facts for name, options in CASES.items()]
    if find_spec("cpprb") is not None:
        rows += [_measure_cpprb(prioritised=prioritised) | facts for prioritised in (False, True)]
    print(json.dumps(rows, indent=1))


def _measure(name: str, options: dict[str, object]) -> dict[str, object]:
    config = TrainConfig.create(**options, replay_capacity=CAPACITY, envs_per_actor=ENVS, learning_starts=0)
    states = ((128,), (128,)) if name == "sequences" else ()
    rows = config.acting.unroll_length
    layout = UnrollLayout(SPEC, rows, ENVS, states, 7, True, name in {"prioritised", "sequences"})
    cpu = torch.device("cpu")
    transform = RewardTransform(config.rewards, 0.99)
    store = make_store(config, layout, cpu, Batcher(SPEC, cpu), transform)
    batch_size = int(str(config.options()["batch_size"]))
    rng, unroll = np.random.default_rng(0), layout.view(np.zeros(layout.nbytes, np.uint8))
    numbers = itertools.count()

    def insert() -> float:
        return _insert(store, unroll, next(numbers), rng)

    inserts = [insert() for _ in range(CAPACITY // (rows * ENVS) + 10)]
    sampling, feedback = [], []
    for _ in range(SAMPLES):
        started = perf_counter()
        sample = store.sample()
        sampled = perf_counter()
        if sample is None:
            raise RuntimeError(f"store {name} gave no sample: it should be full")
        store.feedback(sample, torch.rand(batch_size))
        sampling.append(1e6 * (sampled - started))
        feedback.append(1e6 * (perf_counter() - sampled))
    saving = _save(store, lambda: make_store(config, layout, cpu, Batcher(SPEC, cpu), transform), insert)
    samples = {"sample_us": sampling, "feedback_us": feedback, "insert_us": inserts[-SAMPLES:]}
    row: dict[str, object] = {"store": name, "capacity": CAPACITY, "batch_size": batch_size, **saving}
    for quantity, values in samples.items():
        row |= spread(quantity, values) | {f"{quantity}_samples": [round(value, 1) for value in values]}
    return row


def _measure_cpprb(*, prioritised: bool) -> dict[str, object]:
    cpprb = import_module("cpprb")
    numbers, action = {"shape": SPEC.observation_shape, "dtype": np.float32}, {"dtype": np.int64}
    fields = {"obs": numbers, "next_obs": numbers, "act": action, "rew": {}, "discount": {}}
    buffer = (cpprb.PrioritizedReplayBuffer if prioritised else cpprb.ReplayBuffer)(CAPACITY, fields)
    rng, rows = np.random.default_rng(0), 8 * ENVS
    new: dict[str, Any] = {
        name: rng.normal(size=(rows, *SPEC.observation_shape)).astype(np.float32) for name in ("obs", "next_obs")
    }
    new |= {"act": rng.integers(6, size=rows), "rew": rng.normal(size=rows), "discount": np.ones(rows)}
    samples: dict[str, list[float]] = {"sample_us": [], "feedback_us": [], "insert_us": []}
    for _ in range(CAPACITY // rows + 10):
        given = {"priorities": rng.random(rows)} if prioritised else {}
        started = perf_counter()
        buffer.add(**new, **given)
        samples["insert_us"].append(1e6 * (perf_counter() - started))
    for _ in range(SAMPLES):
        started = perf_counter()
        batch = buffer.sample(256)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        sampled = perf_counter()
        if prioritised:
            buffer.update_priorities(batch["indexes"], torch.rand(256).numpy())
        samples["sample_us"].append(1e6 * (sampled - started))
        samples["feedback_us"].append(1e6 * (perf_counter() - sampled))
    kept = sum(values.nbytes // 256 for name, values in batch.items() if name in fields) * CAPACITY
    row: dict[str, object] = {"store": f"cpprb {version('cpprb')}"}
    row |= {"prioritised": prioritised, "capacity": CAPACITY, "batch_size": len(tensors["rew"]), "memory_bytes": kept}
    for quantity, values in samples.items():
        row |= spread(quantity, values[-SAMPLES:]) | {f"{quantity}_samples": [round(v, 1) for v in values[-SAMPLES:]]}
    return row


def _save(store: Store, make: Callable[[], Store], insert: Callable[[], object]) -> dict[str, object]:
    """Seconds of writing a full replay, then what is new after ``NEW_UNROLLS``, and of reading it; bytes on disk."""
    found: dict[str, object] = {}
    with TemporaryDirectory() as directory:
        files = ReplayFiles(Path(directory) / "replay", "")

        def clock(name: str, work: Callable[[], object]) -> None:
            started = perf_counter()
            work()
            found[name] = round(perf_counter() - started, 4)

        clock("save_all_s", lambda: files.save(cast(KeptStore, store)))
        found["disk_bytes"] = sum(path.stat().st_size for path in files.directory.iterdir())
        for _ in range(NEW_UNROLLS):
            insert()
        clock("save_new_s", lambda: files.save(cast(KeptStore, store)))
        clock("load_s", lambda: ReplayFiles(files.directory, "").load(cast(KeptStore, make())))
    return found | {"memory_bytes": cast(KeptStore, store).nbytes}


def _insert(store: Store, unroll: Unroll, number: int, rng: np.random.Generator) -> float:
    """Microseconds of one."""
    if number % 64 == 0:
        unroll["rewards"][...] = rng.normal(size=unroll["rewards"].shape)
        unroll["observations"][...] = rng.normal(size=unroll["observations"].shape)
        unroll["valid"][...] = True
    if "priority" in unroll:
        unroll["priority"][...] = rng.random(unroll["priority"].shape)
    unroll["header"][:3] = number, 0, unroll["rewards"].size
    release: Callable[[], None] = lambda: None  # noqa: E731
    started = perf_counter()
    store.insert(Experience(0, unroll, release))
    return 1e6 * (perf_counter() - started)


if __name__ == "__main__":
    main()
