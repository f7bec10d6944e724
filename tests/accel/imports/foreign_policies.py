"""Policies as other people's code has them, and modules that are refused; imported as ``module:factory``."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction, TransformAction, TransformObservation
from torch import nn


class Agent(nn.Module):
    """CleanRL's ppo.py: no forward, layers made from a vector environment's spaces."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        observations = int(np.array(envs.single_observation_space.shape).prod())
        self.critic = nn.Sequential(nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(
            nn.Linear(observations, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, int(envs.single_action_space.n)),
        )


class ContinuousAgent(nn.Module):
    """CleanRL's ppo_continuous_action.py."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        observations = int(np.array(envs.single_observation_space.shape).prod())
        actions = int(np.prod(envs.single_action_space.shape))
        self.critic = nn.Linear(observations, 1)
        self.actor_mean = nn.Sequential(nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, actions))
        self.actor_logstd = nn.Parameter(torch.full((1, actions), -0.5))


class Means(nn.Module):
    """A deterministic policy of Pendulum-v1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.tanh(self.layer(x))


class Uncopyable(nn.Module):
    """A layer whose weight is computed anew, which torch cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)
        self.body.scale = torch.ones(2, requires_grad=True) * 2  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.body.scale  # type: ignore[no-any-return]


def three(spec: Any) -> nn.Module:
    return nn.Linear(spec.observation_shape[0], 3)


def narrow(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Actions from -1 to 1."""
    return RescaleAction(env, np.float32([-1.0]), np.float32([1.0]))


def wide(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Actions from -100 to 100."""
    return RescaleAction(env, np.float32([-100.0]), np.float32([100.0]))


def as_a_board(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Bytes from 0 to 2, where there were those of an image."""
    shape = env.observation_space.shape
    return TransformObservation(env, lambda image: image % 3, spaces.Box(0, 2, shape, np.uint8))


class Rare(nn.Module):
    """Another layer where a number is large, which no example shows; as a policy of Pendulum-v1, or a torso."""

    def __init__(self, inputs: int = 3, outputs: int = 1, limit: float = 5.0) -> None:
        super().__init__()
        self.usual, self.rare, self.limit = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs), limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rare(x) if float(x.abs().max()) > self.limit else self.usual(x)


def rare_torso(spec: Any) -> nn.Module:
    return Rare(int(np.prod(spec.observation_shape)), 16, limit=50.0)


def from_zero(env: Any) -> Any:
    """Actions of an environment that numbers them otherwise."""
    start = int(env.action_space.start)
    return TransformAction(env, lambda action: action + start, spaces.Discrete(env.action_space.n))


def from_two(env: Any) -> Any:
    """The same actions, numbered from 2."""
    wrapped = TransformAction(env, lambda action: action - 2, spaces.Discrete(2, start=2))
    return wrapped


class RecurrentAgent(Agent):
    """CleanRL's recurrent agent, whose sizes would fit without its LSTM."""

    def __init__(self, envs: Any) -> None:
        super().__init__(envs)
        self.lstm = nn.LSTM(4, 4)


class DeviationLayer(Agent):
    def __init__(self, envs: Any) -> None:
        super().__init__(envs)
        self.actor_logstd = nn.Linear(4, 2)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).squeeze()


class Soft(nn.Module):
    """CleanRL's actor of SAC, which get_action squashes and scales."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        size, actions = int(np.prod(envs.single_observation_space.shape)), int(np.prod(envs.single_action_space.shape))
        self.fc1, self.fc_mean, self.fc_logstd = nn.Linear(size, 16), nn.Linear(16, actions), nn.Linear(16, actions)
        self.register_buffer("action_scale", torch.ones(actions))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.fc1(x))
        return self.fc_mean(x), -5.0 + 3.5 * (torch.tanh(self.fc_logstd(x)) + 1.0)


class Twin(nn.Module):
    """CleanRL's actor of TD3 and DDPG, which takes the bounds of actions from a vector environment."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        self.fc1, self.fc_mu = nn.Linear(int(np.prod(envs.single_observation_space.shape)), 16), nn.Linear(16, 1)
        bounds = envs.action_space
        self.register_buffer("action_scale", torch.tensor((bounds.high - bounds.low) / 2.0, dtype=torch.float32))
        self.register_buffer("action_bias", torch.tensor((bounds.high + bounds.low) / 2.0, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.fc_mu(torch.relu(self.fc1(x))))
        return x * self.action_scale + self.action_bias


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.double())


def Lazy() -> nn.Module:  # noqa: N802
    return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        module: nn.Module = torch.jit.script(nn.Linear(4, 2))
    return module


class Pair(nn.Module):
    """Outputs and something beside them: a constant, or a value of the observation."""

    def __init__(self, second: torch.Tensor | None, inputs: int = 3, outputs: int = 1) -> None:
        super().__init__()
        self.layer, self.value, self.second = nn.Linear(inputs, outputs), nn.Linear(inputs, 1), second

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), -torch.abs(self.value(x)) if self.second is None else self.second


class Inference(nn.Module):
    """rsl_rl's ActorCritic: forward raises, act_inference acts."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Sequential(nn.Linear(3, 8), nn.ELU(), nn.Linear(8, 1)), nn.Linear(3, 1)

    def forward(self) -> None:
        raise NotImplementedError

    def act_inference(self, x: torch.Tensor) -> torch.Tensor:
        return self.actor(x)


def in_parts(env: Any) -> Any:
    """A vector as the two parts of a Dict."""
    low, high = env.observation_space.low, env.observation_space.high
    space = spaces.Dict({"goal": spaces.Box(low[:1], high[:1]), "joints": spaces.Box(low[1:], high[1:])})
    return TransformObservation(env, lambda row: {"goal": row[:1], "joints": row[1:]}, space)


class OnlyRight(gymnasium.Wrapper[Any, Any, Any, Any]):
    """sb3-contrib's convention for masks, of an environment with two actions."""

    def action_masks(self) -> np.ndarray:
        return np.array([False, True])


def as_picture(env: Any) -> Any:
    """CartPole's numbers as an image of floats in [0, 1]."""
    space = spaces.Box(0, 1, (2, 2, 1), np.float32)
    return TransformObservation(env, lambda row: np.float32(1 / (1 + np.exp(-row))).reshape(2, 2, 1), space)
