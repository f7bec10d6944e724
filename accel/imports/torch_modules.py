"""What factories of modules are called with, and the acting part of what they make; CleanRL's agents are accepted
unchanged."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError

_CLEANRL_PARTS = frozenset({"network", "actor", "actor_mean", "actor_logstd"})
CRITICS = ("critic", "value")
"""What the names of a critic's layers begin with."""


@dataclass(frozen=True)
class FactorySpec(EnvSpec):
    """The argument of factories: the environment's layout, and its spaces as CleanRL's agents read them from a vector
    environment.

    Attributes:
        single_observation_space: a Box of the layout's shape and dtype.
        single_action_space: the environment's own.
        action_space: of one environment in a vector, as CleanRL's TD3 and DDPG read its bounds.
    """

    single_observation_space: spaces.Space[object] | None = None
    single_action_space: spaces.Space[object] | None = None
    action_space: spaces.Space[object] | None = None

    @classmethod
    def of(cls, spec: EnvSpec, action_space: spaces.Space[object]) -> FactorySpec:
        """A layout with its spaces."""
        is_image = spec.observation_dtype == "uint8"
        low, high, dtype = (0, 255, np.uint8) if is_image else (-np.inf, np.inf, np.float32)
        box = spaces.Box(low, high, spec.observation_shape, dtype)
        return cls(
            **{field.name: getattr(spec, field.name) for field in fields(EnvSpec)},
            single_observation_space=box,
            single_action_space=action_space,
            action_space=batch_space(action_space, 1),
        )


def with_forward(module: nn.Module, spec: EnvSpec) -> nn.Module:
    """The module itself, what torch.compile wrapped, rsl_rl's ``act_inference`` or, for a CleanRL agent without a
    forward, its acting part.

    Raises:
        ConfigError: it has neither a forward nor CleanRL's layers, or has others beside them; names one. It is
            TorchScript.
    """
    module = getattr(module, "_orig_mod", module)
    if callable(getattr(module, "act_inference", None)):
        return InferenceActor(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(
            f"{module.original_name} is a TorchScript program: save it with torch.jit.save, and give the file as "
            "--policy, in place of --module"
        )
    if type(module).forward is not nn.Module.forward:
        return module
    layers = dict(module.named_children())
    name = type(module).__name__
    remedy = "give it a forward from observations to logits or means"
    head = layers.get("actor_mean", layers.get("actor"))
    if head is None:
        raise ConfigError(f"{name} has no forward, and no layer actor or actor_mean as CleanRL's agents have: {remedy}")
    log_std = getattr(module, "actor_logstd", None)
    if isinstance(log_std, nn.Module):
        raise ConfigError(f"{name} has no forward, and computes its deviations in layer 'actor_logstd': {remedy}")
    own = {name for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))}
    unused = sorted(part for part in {*layers, *own} - _CLEANRL_PARTS if not part.startswith(CRITICS))
    if unused or {"actor", "actor_mean"} <= layers.keys():
        part = unused[0] if unused else "actor"
        raise ConfigError(
            f"{name} has no forward, and '{part}' is none of CleanRL's layers {', '.join(sorted(_CLEANRL_PARTS))}, nor "
            f"a critic: {remedy}"
        )
    return CleanRLActor(head, layers.get("network"), log_std, spec.is_image)


class InferenceActor(nn.Module):
    """The acting part of an rsl_rl policy, whose forward raises: means of Box actions."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor) -> Tensor:
        """[B, *obs] to [B, k]."""
        means: Tensor = self.policy.act_inference(observations)  # type: ignore[operator]
        return means


class CleanRLActor(nn.Module):
    """The acting part of a CleanRL agent: ``network``, which takes images divided by 255, then ``actor`` or
    ``actor_mean`` with ``actor_logstd``."""

    def __init__(self, actor: nn.Module, network: nn.Module | None, log_std: Tensor | None, is_image: bool) -> None:
        super().__init__()
        self.network = nn.Identity() if network is None else network
        self.actor = actor
        self.actor_logstd = None if log_std is None else nn.Parameter(log_std.detach().clone(), requires_grad=False)
        self._scale = 1.0 / 255.0 if is_image else 1.0

    def forward(self, observations: Tensor) -> Tensor:
        """[B, *obs] to [B, n] logits, [B, k] means, or [B, 2k] with log standard deviations."""
        x = observations if self._scale == 1.0 else observations * self._scale
        outputs: Tensor = self.actor(self.network(x))
        if self.actor_logstd is None:
            return outputs
        return torch.cat((outputs, self.actor_logstd.expand_as(outputs)), dim=-1)
