"""Cost of the upkeep of compressed policies for the learner: time from update to update, by scheme.

    python scripts/evidence/learner_upkeep.py [--network mlp:512x3] [--updates 160] [--busy 0]      (some 10 s a scheme)

Update, upkeep and publication of the learner on made-up batches of 16 × 32 steps; ``--busy`` processes that compute all
the time stand for actors on the same cores.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time

import numpy as np
import torch

from accel.algorithms.catalogue import agree, make_algorithm
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.stores.base import Sample
from accel.experience.unroll import Unroll, UnrollLayout
from accel.publishing.publisher import Publisher

SCHEMES = ("fp32", "int8", "distill(64x2)", "lowrank(0.25)+int8", "prune(0.5)+int8")
LENGTH, ENVS, INPUTS, ACTIONS = 16, 32, 17, 6


def main() -> None:
    """Measure every scheme, print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="mlp:512x3")
    parser.add_argument("--updates", type=int, default=160)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--schemes", nargs="*", default=SCHEMES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    for scheme in options.schemes:
        print(json.dumps({"scheme": scheme, **measure(options.network, scheme, options.updates)}), flush=True)
    for other in others:
        other.terminate()


def measure(network: str, scheme: str, updates: int) -> dict[str, float | None]:
    """Milliseconds of whole rounds, and of the upkeep and the publication in them."""
    config = TrainConfig.create(
        algorithm="ppo", network=network, compressor=scheme, actors=1, envs_per_actor=ENVS, unroll_length=LENGTH,
        calibration_size=512, device="cpu", max_publish_kl=None,
    )  # fmt: skip
    action = ActionSpec("gaussian", (ACTIONS,), low=(-1.0,) * ACTIONS, high=(1.0,) * ACTIONS)
    spec = EnvSpec((INPUTS,), "float32", action)
    algorithm = make_algorithm(config, spec, torch.device("cpu"))
    publisher = Publisher(config, algorithm.network)
    _, layout = agree(config, algorithm)
    batcher = Batcher(spec, torch.device("cpu"))
    unrolls = [_unroll(layout, seed) for seed in range(8)]
    batches = [batcher.build([unroll]) for unroll in unrolls]
    rounds, observes, payloads = (np.empty(updates) for _ in range(3))
    published_at: int | None = None
    cpu_s = time.process_time()
    for update in range(updates):
        batch, started = batches[update % 8], time.perf_counter()
        algorithm.update(Sample(LENGTH * ENVS, batch, batch.rewards), 0.0, lambda phase: None)
        updated = time.perf_counter()
        publisher.observe(unrolls[update % 8], layout)
        publisher.after_update()
        observed = time.perf_counter()
        publisher.payloads()
        ended = time.perf_counter()
        rounds[update], observes[update], payloads[update] = ended - started, observed - updated, ended - observed
        if published_at is None and publisher.scheme == scheme:
            published_at = update
    cpu_s = time.process_time() - cpu_s
    found: dict[str, float | None] = {"published_at": published_at, "cpu_per_update_ms": 1e3 * cpu_s / updates}
    for name, seconds in (("round", rounds), ("upkeep", observes), ("publication", payloads)):
        found[f"{name}_median_ms"], found[f"{name}_mean_ms"] = 1e3 * float(np.median(seconds)), 1e3 * seconds.mean()
        found[f"{name}_p99_ms"], found[f"{name}_max_ms"] = 1e3 * float(np.percentile(seconds, 99)), 1e3 * seconds.max()
    publisher.close()
    return found | {name: value for name, value in publisher.metrics().items() if not name.startswith("payload")}


def _unroll(layout: UnrollLayout, seed: int) -> Unroll:
    rng = np.random.default_rng(seed)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    unroll["valid"][...] = True
    for name in ("observations", "actions", "rewards"):
        unroll[name][...] = rng.standard_normal(unroll[name].shape)
    unroll["behaviour_log_prob"][...] = -0.5 * (unroll["actions"] ** 2 + math.log(2.0 * math.pi)).sum(-1)
    return unroll


def _compute() -> None:
    x = 0
    while True:
        x += 1


if __name__ == "__main__":
    main()
