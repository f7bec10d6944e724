"""Environments that are stepped as tensors on one device, thousands at a time, as simulators on a GPU offer them.

The learner's process steps them without a copy to the host (``accel.acting.device``). ``DeviceEnv`` is the same for
whoever plays with arrays, an evaluation for example. The one backend that imports torch: it is imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from accel.envs.actions import action_spec
from accel.envs.base import Actions, EnvRequest, Observations, Seed, StepResult, VectorEnvironment
from accel.envs.lookup import created, import_function
from accel.envs.observations import observation_layout
from accel.envs.seeding import env_seeds
from accel.envs.spaces import EnvSpec
from accel.errors import EnvError, InterfaceError

_HAS = ("num_envs", "single_observation_space", "single_action_space", "device", "reset", "step")
_FINAL = ("final_obs", "final_observation")


class DeviceEnvironment(Protocol):
    """B environments whose observations, actions and rewards are tensors on ``device``; see ``DeviceSteps``.

    An environment that ends resets within the same step: the step's observation is the next episode's first one, and
    the ended one's last observation is in ``info["final_obs"]`` [B, *obs], of which other rows may hold anything.
    """

    num_envs: int
    single_observation_space: spaces.Space[object]
    single_action_space: spaces.Space[object]
    device: torch.device | str

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, Mapping[str, object]]:
        """Observations [B, *obs] of new episodes, and info."""

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, object]]:
        """Observations [B, *obs], rewards [B], terminated [B], truncated [B], and info."""


class DeviceSteps:
    """A ``DeviceEnvironment`` as the algorithms see it: flat float32 observations, sampled actions, checked once.

    Args:
        request: its id is ``module:factory``, called with ``num_envs``, ``device`` and the environment's arguments.
        device: where it has to be.
    Attributes:
        spec, layout, action_space, observation_space: as of ``VectorEnvironment``.
    Raises:
        EnvError: it cannot be made, is something else, or has spaces that do not work here.
    """

    def __init__(self, request: EnvRequest, device: torch.device) -> None:
        self._name, self._device = f"environment {request.id!r}", device
        factory = import_function(request.id, "environment")
        args = {"num_envs": request.num_envs, "device": device, **request.args}
        made = created(f"{self._name} cannot be made", lambda: factory(**args), request.args)
        if missing := [name for name in _HAS if not hasattr(made, name)]:
            raise EnvError(
                f"{self._name} is {type(made).__name__}, which has no {', '.join(missing)}: backend = 'device' takes "
                "vector environments of tensors; wrap it as docs/device-environments.md shows"
            )
        self._environment = environment = cast(DeviceEnvironment, made)
        if environment.num_envs != request.num_envs or torch.device(environment.device).type != device.type:
            raise EnvError(
                f"{self._name} has {environment.num_envs} environments on {environment.device}, asked for "
                f"{request.num_envs} on {device}: its factory has to take num_envs and device"
            )
        self.action_space = environment.single_action_space
        self.observation_space = environment.single_observation_space
        action = action_spec(self.action_space, squash=request.squash_actions)
        self.layout = observation_layout(self.observation_space, action)
        if self.layout.dtype != "float32" or self.layout.parts or not isinstance(self.observation_space, spaces.Box):
            raise EnvError(
                f"{self._name} has observations {self.observation_space}: backend = 'device' takes a Box of floats; "
                "flatten or choose a part of them in its factory"
            )
        self.spec: EnvSpec = self.layout.spec(action, "same_step")
        self._to_env = self._converter(self.action_space)
        self._is_checked = False

    def reset(self, seed: int) -> Tensor:
        """[B, n] first observations. Raises InterfaceError: they are not what the space announces."""
        observations, _ = self._environment.reset(seed=seed)
        self._check("observation", observations, self.observation_space.shape or ())
        return self._flat(observations)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Apply sampled actions [B, *action]: observations [B, n], rewards, terminated and truncated [B], and the last
        observations [B, n] of episodes that ended; None: the environment gives none in this step."""
        observations, rewards, terminated, truncated, info = self._environment.step(self._to_env(actions))
        if not self._is_checked:
            self._check("observation", observations, self.observation_space.shape or ())
            for name, values in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
                self._check(name, values, ())
            self._is_checked = True
        final = next((info[name] for name in _FINAL if info.get(name) is not None), None)
        flat = None if final is None else self._flat(cast(Tensor, final))
        return self._flat(observations), rewards.float(), terminated.bool(), truncated.bool(), flat

    def close(self) -> None:
        """Release what the environment holds, if it can."""
        if (close := getattr(self._environment, "close", None)) is not None:
            close()

    def _flat(self, observations: Tensor) -> Tensor:
        return observations.reshape(len(observations), -1).float()

    def _check(self, name: str, values: object, shape: tuple[int, ...]) -> None:
        wanted = (self._environment.num_envs, *shape)
        if not isinstance(values, Tensor) or values.shape != wanted or values.device.type != self._device.type:
            found = f"{tuple(values.shape)} on {values.device}" if isinstance(values, Tensor) else type(values).__name__
            raise InterfaceError(
                f"{self._name} gave a {name} of {found}, where its spaces announce a tensor {wanted} on "
                f"{self._device}: correct the environment, or wrap it"
            )

    def _converter(self, space: spaces.Space[object]) -> Callable[[Tensor], Tensor]:
        """From sampled actions [B, *action] to those of the environment's own space."""
        if not isinstance(space, spaces.Box):
            start = torch.as_tensor(np.asarray(getattr(space, "start", 0)), device=self._device)
            return (lambda actions: actions + start) if bool(start.any()) else (lambda actions: actions)
        low, high = (torch.tensor(bound.reshape(-1), device=self._device).float() for bound in (space.low, space.high))
        centre, half_range = low / 2 + high / 2, high / 2 - low / 2
        squash = self.spec.action.squash

        def convert(actions: Tensor) -> Tensor:
            wanted = torch.tanh(actions) * half_range + centre if squash else actions
            return torch.minimum(torch.maximum(wanted, low), high).reshape(-1, *space.shape)

        return convert


class DeviceEnv(VectorEnvironment):
    """A device environment as arrays on the host. Raises EnvError."""

    implementation = "device"

    def __init__(self, request: EnvRequest) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._steps = DeviceSteps(request, self._device)
        self._seed, self.num_envs = request.seed, request.num_envs
        self.spec, self.layout = self._steps.spec, self._steps.layout
        self.action_space, self.observation_space = self._steps.action_space, self._steps.observation_space
        self._final = self.layout.empty(self.num_envs)

    def reset(self, seed: Seed | None = None) -> Observations:
        """New episodes everywhere; see VectorEnvironment."""
        taken = self._take_seed(seed)
        number = int(np.random.SeedSequence().generate_state(1)[0]) if taken is None else env_seeds(taken, 1)[0]
        return cast(Observations, self._steps.reset(number).cpu().numpy())

    def step(self, actions: Actions) -> StepResult:
        """One action everywhere; see VectorEnvironment."""
        *found, final = self._steps.step(torch.from_numpy(actions).to(self._device))
        if final is not None:
            self._final = cast(Observations, final.cpu().numpy())
        return cast(StepResult, tuple(part.cpu().numpy() for part in found))

    def close(self) -> None:
        """See VectorEnvironment."""
        self._steps.close()
