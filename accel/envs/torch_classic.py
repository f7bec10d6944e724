"""CartPole and Pendulum as vector environments in torch, thousands of them on one device: examples of
``accel.envs.device_backend.DeviceEnvironment``, equal to gymnasium's CartPole-v1 and Pendulum-v1 but for rounding."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor


class ClassicControl(ABC):
    """B environments whose state is [n, B] float32; they reset within the step that ends an episode.

    Attributes:
        state: [n, B], as of gymnasium's environment; may be written between steps.
    """

    single_observation_space: spaces.Box
    single_action_space: spaces.Space[object]

    def __init__(self, num_envs: int, device: torch.device, max_episode_steps: int) -> None:
        self.num_envs, self.device = num_envs, device
        self._limit = max_episode_steps
        self._generator = torch.Generator(device)
        self._steps = torch.zeros(num_envs, dtype=torch.int32, device=device)
        self.state = self._initial()

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, Mapping[str, object]]:
        """New episodes everywhere: observations [B, *obs]."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self.state = self._initial()
        self._steps.zero_()
        return self._observe(self.state), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Tensor]]:
        """See ``DeviceEnvironment``."""
        state, rewards, terminated = self._advance(actions)
        self._steps += 1
        truncated = self._steps >= self._limit
        ended = terminated | truncated
        self._steps.masked_fill_(ended, 0)
        final = self._observe(state)
        self.state = torch.where(ended, self._initial(), state)
        return self._observe(self.state), rewards, terminated, truncated, {"final_obs": final}

    @abstractmethod
    def _initial(self) -> Tensor:
        """[n, B] states that episodes begin with."""

    @abstractmethod
    def _observe(self, state: Tensor) -> Tensor:
        """[B, *obs] of states."""

    @abstractmethod
    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next state, rewards [B] and terminated [B]."""


class CartPole(ClassicControl):
    """As ``gymnasium.envs.classic_control.CartPoleEnv``: x, its velocity, the pole's angle and its velocity."""

    def __init__(self, num_envs: int, device: torch.device, max_episode_steps: int = 500) -> None:
        self._x_limit, self._angle_limit = 2.4, math.radians(12.0)
        high = np.array([2.0 * self._x_limit, np.inf, 2.0 * self._angle_limit, np.inf], np.float32)
        self.single_observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.single_action_space = spaces.Discrete(2)
        super().__init__(num_envs, device, max_episode_steps)
        self._ones = torch.ones(num_envs, device=device)

    def _initial(self) -> Tensor:
        drawn = torch.rand(4, self.num_envs, device=self.device, generator=self._generator)
        return drawn.sub_(0.5).mul_(0.1)

    def _observe(self, state: Tensor) -> Tensor:
        return state.t().contiguous()

    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gravity, force, pole_mass, total_mass, half_length, step_s = 9.8, 10.0, 0.1, 1.1, 0.5, 0.02
        _, velocity, angle, angular = self.state
        cos, sin = torch.cos(angle), torch.sin(angle)
        pushed = actions.to(torch.float32).mul_(2.0 * force).sub_(force)
        pushed.add_(angular.square().mul_(sin), alpha=pole_mass * half_length).div_(total_mass)
        inertia = cos.square().mul_(-pole_mass / total_mass).add_(4.0 / 3.0).mul_(half_length)
        angular_acceleration = (gravity * sin).sub_(cos * pushed).div_(inertia)
        acceleration = pushed.sub_(angular_acceleration.mul(cos), alpha=pole_mass * half_length / total_mass)
        change = torch.stack((velocity, acceleration, angular, angular_acceleration))
        state = torch.add(self.state, change, alpha=step_s)
        return state, self._ones, (state[0].abs() > self._x_limit) | (state[2].abs() > self._angle_limit)


class Pendulum(ClassicControl):
    """As ``gymnasium.envs.classic_control.PendulumEnv``: the angle, zero upright, and its velocity."""

    def __init__(self, num_envs: int, device: torch.device, max_episode_steps: int = 200) -> None:
        high = np.array([1.0, 1.0, 8.0], np.float32)
        self.single_observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.single_action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        super().__init__(num_envs, device, max_episode_steps)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def _initial(self) -> Tensor:
        drawn = torch.rand(2, self.num_envs, device=self.device, generator=self._generator)
        return drawn.mul_(2.0).sub_(1.0).mul_(torch.tensor([[math.pi], [1.0]], device=self.device))

    def _observe(self, state: Tensor) -> Tensor:
        return torch.stack((torch.cos(state[0]), torch.sin(state[0]), state[1]), -1)

    def _advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gravity, step_s = 10.0, 0.05
        angle, angular = self.state
        torque = actions.reshape(-1).clamp(-2.0, 2.0)
        upright = torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
        costs = upright.square() + 0.1 * angular.square() + 0.001 * torque.square()
        angular = (angular + (1.5 * gravity * torch.sin(angle) + 3.0 * torque) * step_s).clamp(-8.0, 8.0)
        return torch.stack((angle + angular * step_s, angular)), -costs, self._never
