"""Atari through ALE's C++ vector environment: grey 84x84 frames, four stacked, uint8, every fourth frame acted on."""

from __future__ import annotations

import inspect
from typing import cast

import numpy as np
import numpy.typing as npt
from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv
from gymnasium.envs.registration import EnvSpec as Registration

from accel.envs.base import EnvRequest, Observations, Seed
from accel.envs.lookup import created
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import NativeEnv, VectorisedEnv
from accel.errors import EnvError

# What differs from AtariVectorEnv's or the registration's defaults. Sticky actions are off unless asked for, rewards
# are clipped only by the pipeline's own option, and an actor owns one core.
DEFAULTS: dict[str, object] = {"repeat_action_probability": 0.0, "reward_clipping": False, "num_threads": 1}


class AtariEnv(VectorisedEnv):
    """ALE's vector environment, which takes a seed per game."""

    _shown: Observations

    def render(self) -> npt.NDArray[np.uint8]:
        """The newest frame that the policy sees of game 0, four times as large; see VectorEnvironment."""
        frames = self._shown[0]
        channels = len(frames) // self.spec.frame_stack
        picture = np.broadcast_to(np.moveaxis(frames[-channels:], 0, 2), (*frames.shape[1:], 3))
        return picture.repeat(4, axis=0).repeat(4, axis=1).astype(np.uint8, copy=False)

    def _convert(self, observations: object) -> Observations:
        self._shown = super()._convert(observations)
        return self._shown

    def _reset_native(self, seed: Seed | None) -> object:
        seeds = None if seed is None else np.array(env_seeds(seed, self.num_envs))
        observations, _ = self._env.reset(seed=cast("int | None", seeds))
        return observations


def make_atari(registration: Registration, request: EnvRequest) -> AtariEnv:
    """ALE's vector environment.

    Its reset fills the older frames of the stack with zeros, after random no-ops and FIRE, so that a frame need be
    stored once (``frame_stack``, ``frame_fill="zero"``).

    Args:
        registration: of an ``ALE/...`` id; its arguments name the game.
        request: with any arguments of ``ale_py.vector_env.AtariVectorEnv`` but ``batch_size``.
    Raises:
        EnvError: an argument that AtariVectorEnv does not have, or refuses.
    """
    accepted = set(inspect.signature(AtariVectorEnv.__init__).parameters) - {"self", "game", "num_envs", "batch_size"}
    if unknown := sorted(request.args.keys() - accepted):
        raise EnvError(f"unknown environment arguments {unknown}; ALE's vector environment takes {sorted(accepted)}")
    settings = {**registration.kwargs, **DEFAULTS, **request.args}
    if settings.get("life_loss_info"):
        raise EnvError(
            "environment argument life_loss_info ends episodes whose frames go on, which are stacked anew here: use "
            "episodic_life=True"
        )
    ALEInterface.setLoggerMode(LoggerMode.Error)
    env = created("cannot be made", lambda: AtariVectorEnv(num_envs=request.num_envs, **settings), request.args)
    stack = int(cast(int, settings.get("stack_num", 4)))
    return AtariEnv(
        cast(NativeEnv, env),
        seed=request.seed,
        squash_actions=request.squash_actions,
        frame_stack=stack,
        frame_fill="zero",
        implementation="atari",
    )
