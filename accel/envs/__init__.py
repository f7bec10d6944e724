"""Vector environments of any gymnasium id, as the actors see them; importing this never imports torch.

environment = make_vector_env("CartPole-v1", 8, seed=(0, 1))
observations = environment.reset()
observations, rewards, terminated, truncated = environment.step(actions)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.envs.base import Observations, StepResult, VectorEnvironment
    from accel.envs.factory import make_vector_env
    from accel.envs.seeding import env_seeds

__all__ = ["Observations", "StepResult", "VectorEnvironment", "env_seeds", "make_vector_env"]

_HOMES = {
    "Observations": "base",
    "StepResult": "base",
    "VectorEnvironment": "base",
    "env_seeds": "seeding",
    "make_vector_env": "factory",
}


def __getattr__(name: str) -> object:
    """Resolve a public name on first use, so that gymnasium loads only where an environment is made."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
