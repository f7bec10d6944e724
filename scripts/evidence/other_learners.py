#!/usr/bin/env python
"""accel's update of PPO beside CleanRL's and Stable-Baselines3's, on batches and networks of the same size, in turns;
or that of SAC beside Stable-Baselines3's and SBX's.

    python scripts/evidence/other_learners.py --out default-LunarLander.json env=LunarLander-v3
    taskset -c 0 python scripts/evidence/other_learners.py --out sac.json env=HalfCheetah-v5 algorithm=sac
    python scripts/evidence/other_learners.py --device cuda --out rows.json network=mlp:512x3 env=HalfCheetah-v5

Options of ``accel train`` follow as name=value. Stable-Baselines3 and SBX are measured where they are installed.

- ``cleanrl``: the update of CleanRL's ``ppo.py`` and ``ppo_continuous_action.py``, which are scripts and no library,
  written here in plain torch, eager throughout: advantages in a loop over time, shuffled minibatches, advantages
  normalised in each, clipped values, clipped gradients, torch's Adam, and the statistics that the scripts record.
  Source: Huang et al. 2022, JMLR 23(274). Deviations: none in what is computed.
- ``sb3``: ``PPO.train`` of the Stable-Baselines3 that is installed, after ``compute_returns_and_advantage``.

For PPO the others take values and log-probabilities from acting. accel computes them in the update, for its
correction, and normalises observations in the network: it does that much more.

An update of SAC includes the sampling of its batch from a replay of 20,000 random transitions. The others make three
optimiser steps and record their losses; accel makes one, of all parameters, and normalises observations.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

from accel.algorithms.catalogue import agree, make_algorithm
from accel.bench.learner import PHASES, LearnerCell, learner_threads, random_experience, speedup_none
from accel.bench.policies import environment_spec
from accel.bench.rows import Row, number, provenance, spread
from accel.config import TrainConfig
from accel.config.algorithms import DppoConfig, PpoConfig, SacConfig
from accel.config.base import parse_pair
from accel.config.experience import TransitionsConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample
from accel.experience.stores.catalogue import make_store
from accel.learning.device import choose_device
from accel.networks.text import parse_network
from accel.system.machine import installed_version
from accel.system.timing import interleave, timed_calls, torch_threads

Update = Callable[[], None]
ENDS = 0.01
"""Share of steps that end an episode."""
LEARNING_RATE = 1e-7  # as accel's in this benchmark: hundreds of updates leave the policy unchanged
PEERS_OF_SAC = MappingProxyType({"sb3": "stable_baselines3", "sbx": "sbx"})
_REPLAY = 20_000
_DISCOUNT, _LAMBDA, _CLIP, _VALUE_COST, _ENTROPY_COST, _NORM = 0.99, 0.95, 0.2, 0.5, 0.01, 0.5


@dataclass(frozen=True)
class Task:
    """What one update learns from, and by which networks.

    Attributes:
        spec: observations [size] float32, and one discrete action or continuous ones.
        hidden: widths of the layers of the actor's torso, and of the critic's. activation: between them.
        length, envs: T and B. passes, minibatches: of an update. device: where.
    """

    spec: EnvSpec
    hidden: tuple[int, ...]
    activation: type[nn.Module]
    length: int
    envs: int
    passes: int
    minibatches: int
    device: torch.device

    @classmethod
    def of(cls, config: TrainConfig, spec: EnvSpec, device: torch.device) -> Task:
        """That of a configuration. Raises ConfigError: others have no such update."""
        options, text = config.algorithm, parse_network(config.policy.network).for_observations(spec)
        is_plain = len(spec.observation_shape) == 1 and not spec.parts and spec.action.kind != "multi_categorical"
        if not isinstance(options, PpoConfig | DppoConfig):
            raise ConfigError(f"the update of ppo and dppo is compared, not that of {options.algorithm}")
        if text.torso != "mlp" or text.core is not None or not is_plain or config.policy.separate_value_torso is False:
            raise ConfigError(
                "compared is an mlp whose critic has its own torso, on vectors, with one discrete action or continuous "
                f"ones; not {text} with {spec.action.kind} actions"
            )
        return cls(
            spec,
            tuple(map(int, text.sizes)),
            {"tanh": nn.Tanh, "relu": nn.ReLU}[config.policy.activation],
            config.acting.unroll_length,
            config.acting.envs_per_actor * config.store.held_unrolls,
            options.passes,
            options.minibatches,
            device,
        )

    @property
    def steps(self) -> int:
        """Of a batch."""
        return self.length * self.envs

    @property
    def minibatch(self) -> int:
        """Steps of one, so that there are as many as asked for."""
        return math.ceil(self.steps / self.minibatches)


class Agent(nn.Module):
    """Two mlps, and a deviation that does not depend on the observation."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        outputs, size = task.spec.action.sizes[0], task.spec.observation_shape[0]
        self.actor, self.critic = _mlp(task, size, outputs), _mlp(task, size, 1)
        self.is_continuous = task.spec.action.kind == "gaussian"
        self.log_std = nn.Parameter(torch.zeros(1, outputs)) if self.is_continuous else None

    def policy(self, observations: Tensor) -> Distribution:
        """Of actions [N] or [N, k], for observations [N, size]."""
        output = self.actor(observations)
        if self.log_std is None:
            return Categorical(logits=output)
        return Normal(output, self.log_std.expand_as(output).exp())

    def total(self, by_component: Tensor) -> Tensor:
        """[N] log-probabilities or entropies of whole actions."""
        return by_component.sum(-1) if self.is_continuous else by_component


def _mlp(task: Task, size: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in task.hidden:
        layers += [nn.Linear(size, width), task.activation()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))


def cleanrl_update(task: Task) -> Update:
    """CleanRL's update on one batch of random experience, in plain torch."""
    agent = Agent(task).to(task.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    random, shuffle = torch.Generator().manual_seed(0), np.random.default_rng(0).shuffle
    shape = (task.length, task.envs)
    observations = torch.randn(*shape, *task.spec.observation_shape, generator=random).to(task.device)
    rewards = torch.randn(*shape, generator=random).to(task.device)
    dones = (torch.rand(task.length + 1, task.envs, generator=random) < ENDS).float().to(task.device)
    with torch.no_grad():
        policy = agent.policy(observations)
        actions = policy.sample()
        log_probs = agent.total(policy.log_prob(actions))
        values = agent.critic(observations).squeeze(-1)
        next_value = values[-1]

    def advantages() -> Tensor:
        found, last = torch.zeros_like(rewards), torch.zeros_like(next_value)
        for t in reversed(range(task.length)):
            following = next_value if t == task.length - 1 else values[t + 1]
            alive = 1.0 - dones[t + 1]
            delta = rewards[t] + _DISCOUNT * following * alive - values[t]
            found[t] = last = delta + _DISCOUNT * _LAMBDA * alive * last
        return found

    def update() -> None:
        with torch.no_grad():
            advantage = advantages()
            target = advantage + values
        flat = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantage, target, values)]
        order, statistics = np.arange(task.steps), []
        for _ in range(task.passes):
            shuffle(order)
            for start in range(0, task.steps, task.minibatch):
                chosen = order[start : start + task.minibatch]
                loss, recorded = cleanrl_loss(agent, *(x[chosen] for x in flat))
                statistics.append(recorded)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(agent.parameters(), _NORM)
                optimizer.step()

    return update


def cleanrl_loss(
    agent: Agent, observations: Tensor, actions: Tensor, old: Tensor, advantage: Tensor, target: Tensor, values: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, float]]:
    """PPO's loss, and what is recorded: two estimates of the KL divergence, the share of ratios beyond the clip."""
    policy = agent.policy(observations)
    entropy = agent.total(policy.entropy()).mean()
    log_ratio = agent.total(policy.log_prob(actions)) - old
    ratio = log_ratio.exp()
    with torch.no_grad():
        kl = (-log_ratio).mean(), ((ratio - 1.0) - log_ratio).mean()
        share = ((ratio - 1.0).abs() > _CLIP).float().mean().item()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = torch.max(-advantage * ratio, -advantage * ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP)).mean()
    value = agent.critic(observations).view(-1)
    near = values + (value - values).clamp(-_CLIP, _CLIP)
    error = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
    return surrogate - _ENTROPY_COST * entropy + _VALUE_COST * error, (*kl, share)


def sb3_update(task: Task) -> Update:
    """Stable-Baselines3's update on one batch of random experience."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    hidden = list(task.hidden)
    model = PPO(
        "MlpPolicy", DummyVecEnv([lambda: _Shape(task.spec)] * task.envs), n_steps=task.length,
        batch_size=task.minibatch, n_epochs=task.passes, learning_rate=LEARNING_RATE, gamma=_DISCOUNT,
        gae_lambda=_LAMBDA, clip_range=_CLIP, clip_range_vf=_CLIP, ent_coef=_ENTROPY_COST, vf_coef=_VALUE_COST,
        max_grad_norm=_NORM, device=task.device,
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": task.activation},
    )  # fmt: skip
    model.set_logger(Logger(folder=None, output_formats=[]))
    random, buffer = np.random.default_rng(0), model.rollout_buffer
    starts = np.ones(task.envs, np.float32)
    for _ in range(task.length):
        shown = random.standard_normal((task.envs, *task.spec.observation_shape), np.float32)
        with torch.no_grad():
            actions, values, log_probs = model.policy(torch.from_numpy(shown).to(task.device))
        rewards = random.standard_normal(task.envs, np.float32)
        buffer.add(shown, actions.cpu().numpy().reshape(task.envs, -1), rewards, starts, values, log_probs)
        starts = (random.random(task.envs) < ENDS).astype(np.float32)
    names = ("observations", "actions", "values", "log_probs", "advantages", "returns")
    whole = {name: getattr(buffer, name) for name in names}

    def update() -> None:
        for name, array in whole.items():  # a pass over the batch leaves them flat
            setattr(buffer, name, array)
        buffer.generator_ready = False
        buffer.compute_returns_and_advantage(last_values=values, dones=starts)
        model.train()

    return update


def sac_updates(config: TrainConfig, spec: EnvSpec) -> dict[str, Update]:
    """accel's update of SAC and the others', by learner."""
    algorithm, options = make_algorithm(config, spec, torch.device("cpu")), cast(TransitionsConfig, config.store)
    _, layout = agree(config, algorithm)
    rewards = RewardTransform(config.rewards, config.algorithm.discount)
    store = make_store(config, layout, Batcher(spec, torch.device("cpu")), rewards)
    random = np.random.default_rng(0)
    for sequence in range(options.replay_capacity // (layout.unroll_length * layout.envs) + 1):
        unroll = random_experience(layout, sequence)
        unroll["header"][0] = sequence
        unroll["actions"][...] = random.uniform(-1.0, 1.0, unroll["actions"].shape)
        store.insert(Experience(0, unroll, lambda: None))

    def update() -> None:
        sample = cast(Sample, store.sample())
        algorithm.update(sample, 0.0, lambda _phase: None)
        store.feedback(sample, None)

    updates, layers = {"accel": update}, list(map(int, parse_network(config.policy.network).sizes))
    for name, library in PEERS_OF_SAC.items():
        if not find_spec(library):
            continue
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.vec_env import DummyVecEnv

        model = import_module(library).SAC(
            "MlpPolicy", DummyVecEnv([lambda: _Shape(spec)]), buffer_size=options.replay_capacity, device="cpu",
            learning_rate=LEARNING_RATE, batch_size=options.batch_size, policy_kwargs={"net_arch": layers},
        )  # fmt: skip
        model.set_logger(Logger(folder=None, output_formats=[]))
        for _ in range(options.replay_capacity):
            now, then = random.standard_normal((2, 1, *spec.observation_shape), np.float32)
            action = random.uniform(-1.0, 1.0, (1, *spec.action.sizes))
            model.replay_buffer.add(now, then, action, random.standard_normal(1), random.random(1) < ENDS, [{}])
        updates[name] = partial(model.train, 1, options.batch_size)
    return updates


def measure_sac(config: TrainConfig, seconds: float, repeats: int) -> list[Row]:
    """Rows of microseconds an update. Raises ConfigError: others have no such update."""
    spec, options = environment_spec(config), config.options()
    plain = TrainConfig.create(algorithm="sac", device="cpu").options()
    if others := {name for name, value in options.items() if value != plain[name]} - {"env", "network", "batch_size"}:
        raise ConfigError(f"{', '.join(sorted(others))}: SAC is compared on a CPU, with env, network and batch_size")
    network = str(parse_network(config.policy.network).for_observations(spec))
    config = config.replace(learning_rate=LEARNING_RATE, replay_capacity=_REPLAY, network=network)
    takers = {name: timed_calls(update, 0.1) for name, update in sac_updates(config, spec).items()}
    samples, cpu_share = interleave(takers, seconds, repeats)
    shared: Row = {"network": network, "batch_size": options["batch_size"], "cpu_share": cpu_share, "threads": 1}
    shared |= {library: installed_version(library) for library in ("stable-baselines3", "sbx-rl", "jax")}
    return [
        {"learner": name, "samples": len(taken), **spread("us", taken), **shared, **provenance()}
        for name, taken in samples.items()
    ]


class _Shape(gymnasium.Env[object, object]):
    """Spaces alone: nothing is stepped."""

    def __init__(self, spec: EnvSpec) -> None:
        action = spec.action
        self.observation_space = cast(
            spaces.Space[object], spaces.Box(-np.inf, np.inf, spec.observation_shape, np.float32)
        )
        if action.kind == "gaussian":
            self.action_space = cast(spaces.Space[object], spaces.Box(-1.0, 1.0, action.sizes, np.float32))
        else:
            self.action_space = cast(spaces.Space[object], spaces.Discrete(action.sizes[0]))


OTHERS: Mapping[str, Callable[[Task], Update]] = MappingProxyType({"cleanrl": cleanrl_update, "sb3": sb3_update})


def measure(config: TrainConfig, device: torch.device, seconds: float, repeats: int) -> list[Row]:
    """Rows of accel's update and of the others', in single precision; on CUDA accel's with CUDA graphs too."""
    spec = environment_spec(config)
    config = config.replace(compressor="fp32", mixed_precision="none")
    task = Task.of(config, spec, device)
    cells = {"off": LearnerCell(config.replace(learner_graphs="off"), spec, device)}
    if device.type == "cuda":
        cells["on"] = LearnerCell(config.replace(learner_graphs="on"), spec, device)
    updates = {name: make(task) for name, make in OTHERS.items() if name != "sb3" or find_spec("stable_baselines3")}
    takers: dict[str, Callable[[], float]] = {
        name: lambda cell=cell: sum(cell.take().values()) for name, cell in cells.items()
    }  # type: ignore[misc]
    takers |= {name: lambda update=update: _seconds(update, device) for name, update in updates.items()}  # type: ignore[misc]
    samples, cpu_share = interleave(takers, seconds, repeats)
    rows: list[Row] = []
    for name, taken in samples.items():
        steps = cells[name].valid_steps if name in cells else task.steps
        row = cells["off"].row([cells["off"].take()]) | {"graphs": name if name in cells else "off"}
        row |= {"learner": "accel" if name in cells else name, "cpu_share": cpu_share, "samples": len(taken)}
        row |= spread("us_per_env_step", [1e6 / steps * time_s for time_s in taken])
        row |= {"env_steps_per_s": 1e6 / number(row, "us_per_env_step")}
        rows.append({key: value for key, value in row.items() if key.removesuffix("_us") not in PHASES})
    return [row | {"speedup_none": speedup_none(row, rows)} | provenance() for row in rows]


def _seconds(update: Update, device: torch.device) -> float:
    before = time.perf_counter()
    update()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - before


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the rows, a JSON list")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("options", nargs="*", help="name=value of accel train")
    chosen = parser.parse_args(arguments)
    options: dict[str, Any] = dict(parse_pair(pair, "option") for pair in chosen.options)
    config = TrainConfig.create(**{"env": "LunarLander-v3", **options}, device=chosen.device)
    is_sac = isinstance(config.algorithm, SacConfig)
    with torch_threads(1 if is_sac else learner_threads(config)):
        if is_sac:
            rows = measure_sac(config, chosen.seconds, chosen.repeats)
        else:
            rows = measure(config, choose_device(chosen.device), chosen.seconds, chosen.repeats)
    key, unit = ("us", "an update") if is_sac else ("us_per_env_step", "a step")
    for row in rows:
        middle, low, high = (number(row, f"{key}{end}") for end in ("", "_low", "_high"))
        graphs = "" if is_sac else f"graphs {row['graphs']:3} "
        print(f"{row['learner']:8} {graphs}{middle:8.3g} µs {unit} ({low:.3g}–{high:.3g})")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
