"""Environments on the learner's device: time per environment step of them alone, of collecting, and of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from accel.acting.device import DeviceActor
from accel.bench.checks import check_budget
from accel.bench.learner import learner_threads, training_row
from accel.bench.rows import Row, number, provenance, spread
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.learning.device import choose_device
from accel.learning.learner import Learner
from accel.system.timing import interleave, torch_threads
from accel.transport.local import LocalActor, LocalLearner

_SEED = 0


def bench_device(config: TrainConfig, *, seconds: float = 20.0, repeats: int = 50) -> list[Row]:
    """Time unrolls of a real run's actor and updates of its learner, in turns with the environment alone.

    Args:
        config: of a run with ``backend = "device"``.
        seconds: measuring time in all. repeats: unrolls of each row at most.
    Returns:
        Rows as of ``bench_learner``; ``learner`` is ``environment alone`` (random actions), ``collected`` (with the
        policy, into unrolls), or ``trained`` (and the updates of as many passes as the configuration has).
    Raises:
        ConfigError: a number that is not positive, a missing device. EnvError: the environment cannot be made.
    """
    check_budget(seconds, repeats)
    threads = learner_threads(config)
    with torch_threads(threads):
        run = _Run(config.replace(learner_threads=threads))
        takes = {"environment alone": run.step, "collected": run.collect, "trained": run.train}
        samples, cpu_share = interleave({n: partial(run.timed, take) for n, take in takes.items()}, seconds, repeats)
    shared = training_row(config, run.device, graphs=run.graphs) | {"cpu_share": cpu_share, "torch_threads": threads}
    shared |= provenance()
    rows: list[Row] = []
    for name, times in samples.items():
        row = {"learner": name} | spread("us_per_env_step", times) | {"samples": len(times)} | shared
        rows.append(row | {"env_steps_per_s": 1e6 / number(row, "us_per_env_step")})
    return rows


class _Run:
    """An actor and a learner of a configuration, without the loop, records and publications around them."""

    def __init__(self, config: TrainConfig) -> None:
        self.device = choose_device(config.learner.device)
        self._actor = DeviceActor(ActorConfig.of(config), LocalActor(LocalLearner(), 0), self.device)
        self._learner = Learner(config, self._actor.spec, (), lambda: 1)
        self._learner.lend_network(self._actor)
        self._actor.start()
        self._config, self.graphs = config, self._learner.runner.outcome == "on"
        generator = torch.Generator(self.device).manual_seed(_SEED)
        params = torch.zeros(config.acting.envs_per_actor, self._learner.algorithm.output_size, device=self.device)
        self._actions = self._learner.algorithm.distribution(params, None).sample(generator)

    def timed(self, take: Callable[[], object]) -> float:
        """Microseconds per environment step of one call."""
        began = perf_counter()
        take()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return 1e6 * (perf_counter() - began) / (self._config.acting.unroll_length * self._config.acting.envs_per_actor)

    def step(self) -> None:
        """As many steps as an unroll has."""
        for _ in range(self._config.acting.unroll_length):
            self._actor.environment.step(self._actions)

    def collect(self) -> None:
        """One unroll."""
        self._actor.step()

    def train(self) -> None:
        """One unroll, and what the learner makes of it."""
        learner = self._learner
        experience = self._actor.step()
        learner.rewards.observe(0, experience.unroll)
        learner.algorithm.observe(experience.unroll)
        learner.store.insert(experience)
        if (sample := learner.store.sample()) is not None:
            update = learner.algorithm.update(sample, 0.0, lambda phase: None)
            learner.store.feedback(sample, update.priorities)
