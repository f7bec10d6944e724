"""Environments, random play and a network for the scripts beside this file: MinAtar, CartPole without its velocities.

    accel train --env scripts.evidence.worlds:PositionsOfCartPole-v0 --algorithm r2d2
    accel train --env scripts.evidence.worlds:MinAtar/Breakout-v1 --network scripts.evidence.worlds:minatar_torso \\
        --wrapper accel.envs.images:ImageBytes

MinAtar's games are there where the package is installed: pip install minatar.
"""

from __future__ import annotations

from importlib.util import find_spec

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import nn

from accel.envs.spaces import EnvSpec

gymnasium.register("PositionsOfCartPole-v0", entry_point="scripts.evidence.worlds:make_positions")
if find_spec("minatar"):
    from minatar.gym import register_envs  # type: ignore[import-not-found]

    register_envs()


def make_positions() -> gymnasium.Env[object, object]:
    """CartPole-v1 that shows the cart's place and the pole's angle alone: their velocities must be remembered."""
    env = gymnasium.make("CartPole-v1")
    shown = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[[0, 2]], shown)


def play_at_random(env: str, episodes: int, first_seed: int, **arguments: object) -> list[float]:
    """Returns of uniform actions; each episode begins from a seed of its own."""
    world = gymnasium.make(env, **arguments)  # type: ignore[arg-type]
    world.action_space.seed(0)
    returns = []
    for episode in range(episodes):
        world.reset(seed=first_seed + episode)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = world.step(world.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def minatar_torso(spec: EnvSpec) -> nn.Module:
    """[N, C, 10, 10] to [N, 128]: one convolution and one layer (Young & Tian 2019, arXiv:1903.03176)."""
    channels, height, width = spec.observation_shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (height - 2) * (width - 2), 128),
        nn.ReLU(),
    )
