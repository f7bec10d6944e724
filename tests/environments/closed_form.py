"""An environment whose every observation, reward and return is a formula, as a single and as a vector environment.

Each environment plays a stream s; its e-th episode (from 0) has the length and ending ``SCRIPT[(s + e) % 5]``. Step t
(from 1) of episode e with action a gives

    reward = 10 e + t + a / 8,     so that an episode of length L with actions a_t returns
    G = 10 e L + L (L + 1) / 2 + sum(a_t) / 8.

The observation after it encodes (e, t, s). All of these are exact in float32. The stream is ``seed % 5`` in a single
environment and ``(seed + i) % 5`` in row i of the vector implementation.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

Kind = Literal["vector", "image", "dict", "discrete"]
Ending = Literal["terminated", "truncated", "both"]

SCRIPT: tuple[tuple[int, Ending], ...] = (
    (3, "terminated"),
    (2, "truncated"),
    (1, "terminated"),
    (4, "both"),
    (1, "truncated"),
)
NUM_ACTIONS = 4
FIRST_ACTION = 2
HEIGHT, WIDTH, CHANNELS = 6, 5, 3


def script(stream: int, episode: int) -> tuple[int, Ending]:
    return SCRIPT[(stream + episode) % len(SCRIPT)]


def reward(episode: int, t: int, action: float) -> float:
    """Reward of step ``t`` (from 1); ``action`` is the environment's own, without Discrete's start."""
    return 10.0 * episode + t + action / 8


def episode_return(episode: int, length: int, actions: float) -> float:
    """Undiscounted return of an episode whose actions sum to ``actions``."""
    return 10.0 * episode * length + length * (length + 1) / 2 + actions / 8


def observation_space(kind: Kind) -> spaces.Space[Any]:
    if kind == "vector":
        return spaces.Box(0, 1000, (3,), np.float64)
    if kind == "image":
        return spaces.Box(0, 255, (HEIGHT, WIDTH, CHANNELS), np.uint8)
    if kind == "discrete":
        return spaces.Discrete(8, start=-1)
    return spaces.Dict(
        {
            "time": spaces.Discrete(6),
            "which": spaces.Tuple((spaces.Box(0, 1000, (1, 2), np.float32), spaces.MultiDiscrete([5, 2]))),
        }
    )


def observe(kind: Kind, episode: int, t: int, stream: int) -> Any:
    """The observation that encodes episode ``episode``, step ``t`` and stream ``stream``."""
    if kind == "vector":
        return np.array([episode, t, stream], np.float64)
    if kind == "image":
        values = np.array([episode, t, stream])
        rows, columns = np.arange(HEIGHT)[:, None, None], np.arange(WIDTH)[None, :, None]
        return ((7 * values + 31 * rows + 3 * columns) % 256).astype(np.uint8)
    if kind == "discrete":
        return np.int64(t - 1)
    pair = np.array([[episode, stream + 0.5]], np.float32)
    return {"time": np.int64(t), "which": (pair, np.array([stream, episode % 2]))}


class ClosedFormEnv(gymnasium.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        observation: Kind = "vector",
        autoreset_mode: str = "",
        box_actions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.kind = observation
        self.observation_space = observation_space(observation)
        self.action_space = action_space(box_actions)
        self.box_actions = box_actions
        self.stream = 0
        self.episode = -1
        self.t = 0
        self.is_over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.stream, self.episode = seed % len(SCRIPT), -1
        self.episode += 1
        self.t = 0
        self.is_over = False
        return observe(self.kind, self.episode, 0, self.stream), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_over or not self.action_space.contains(action):
            raise RuntimeError(f"step({action!r}) {'after the end' if self.is_over else 'outside the action space'}")
        self.t += 1
        length, ending = script(self.stream, self.episode)
        self.is_over = self.t == length
        value = float(np.sum(action)) if self.box_actions else float(action) - FIRST_ACTION
        result = reward(self.episode, self.t, value)
        terminated, truncated = (self.is_over and ending in (flag, "both") for flag in ("terminated", "truncated"))
        return observe(self.kind, self.episode, self.t, self.stream), result, terminated, truncated, {"t": self.t}

    def render(self) -> Any:
        return observe("image", self.episode, self.t, self.stream) if self.render_mode else None


def action_space(box: bool) -> spaces.Space[Any]:
    return spaces.Box(-1, 1, (2, 3), np.float64) if box else spaces.Discrete(NUM_ACTIONS, start=FIRST_ACTION)


class ClosedFormVectorEnv(VectorEnv[Any, Any, Any]):
    """Several streams, in any autoreset mode.

    ``mislabelled`` resets in the same step and declares NEXT_STEP: the mistake that the tests must notice.
    ``unlabelled`` declares nothing.
    """

    def __init__(self, num_envs: int = 1, observation: Kind = "vector", autoreset_mode: str = "next_step") -> None:
        self.num_envs = num_envs
        self.kind = observation
        self.mode = {"mislabelled": "same_step", "unlabelled": "next_step"}.get(autoreset_mode, autoreset_mode)
        declared = "next_step" if autoreset_mode == "mislabelled" else autoreset_mode
        self.metadata = {} if autoreset_mode == "unlabelled" else {"autoreset_mode": AutoresetMode[declared.upper()]}
        self.single_observation_space = observation_space(observation)
        self.single_action_space = action_space(False)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.streams = [ClosedFormEnv(observation) for _ in range(num_envs)]
        # the same arrays at every step, as fast environments do
        self.rewards, self.flags = np.zeros(num_envs, np.float32), np.zeros((2, num_envs), bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        for i, stream in enumerate(self.streams):
            stream.reset(seed=None if seed is None else seed + i)
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards, flags = self.rewards, self.flags
        rewards[...], flags[...] = 0.0, False
        final = np.full(self.num_envs, None, object)
        for i, stream in enumerate(self.streams):
            if self.mode == "next_step" and stream.is_over:
                stream.reset()
                continue
            final[i], rewards[i], flags[0, i], flags[1, i], _ = stream.step(actions[i])
            if self.mode == "same_step" and stream.is_over:
                stream.reset()
        infos = {"final_obs": final} if self.mode == "same_step" and flags.any() else {}
        return self._batch(), rewards, flags[0], flags[1], infos

    def _batch(self) -> Any:
        each = [observe(self.kind, stream.episode, stream.t, stream.stream) for stream in self.streams]
        return concatenate(
            self.single_observation_space, each, create_empty_array(self.single_observation_space, self.num_envs)
        )
