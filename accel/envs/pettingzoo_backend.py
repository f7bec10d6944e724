"""PettingZoo's parallel environments: every agent is a row, so that all of them act with one policy and train it.

The agents of an environment begin and end its episodes together. One that is done before the others stays as a row of
zeros without rewards, as SuperSuit's ``black_death`` has it, and its actions go nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.actions import action_converter, action_spec
from accel.envs.base import Actions, EnvRequest, Observations, Seed, StepResult, VectorEnvironment, check_numbers
from accel.envs.lookup import created, import_module, picture, wrapped
from accel.envs.masks import masked_space, with_mask
from accel.envs.observations import observation_layout, settle_masks
from accel.envs.seeding import env_seeds
from accel.envs.spaces import ACTION_MASK
from accel.errors import EnvError

Space = spaces.Space[object]
_SHARED = "one policy acts for all agents, so that their spaces must be equal: add supersuit's pad_observations_v0 and "
_REMEDY = "pad_action_space_v0 as wrappers, or one of your own"


class _ParallelEnv(Protocol):
    possible_agents: Sequence[str]
    agents: Sequence[str]

    def reset(self, seed: int | None = None) -> tuple[Mapping[str, object], Mapping[str, Mapping[str, object]]]: ...
    def step(self, actions: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]: ...
    def observation_space(self, agent: str) -> Space: ...
    def action_space(self, agent: str) -> Space: ...
    def render(self) -> object: ...
    def close(self) -> None: ...


class PettingZooEnv(VectorEnvironment):
    """Row k · agents + j is agent j of environment k.

    Args:
        request: its id is one of PettingZoo's registry, such as ``butterfly/pistonball_v6`` (from version 1.27 on), a
            module with ``parallel_env``, such as ``mpe2.simple_spread_v3``, or ``module:function``. There are as many
            rows as agents in all of its environments; wrappers get a parallel environment.
    Raises:
        MissingExtraError: pettingzoo is not installed.
        EnvError: it cannot be made, is no parallel environment, or its agents differ in their spaces.
    """

    implementation = "pettingzoo"

    def __init__(self, request: EnvRequest) -> None:
        self._envs: list[_ParallelEnv] = []
        try:
            for _ in range(request.num_envs):
                self._envs.append(_make(request))
            self._agents = tuple(self._envs[0].possible_agents)
            self._agree(env_seeds(request.seed, 1)[0], request.squash_actions)
        except BaseException:
            self.close()
            raise
        self.num_envs = rows = request.num_envs * len(self._agents)
        self._seed = request.seed
        self._observations = self.layout.empty(rows)
        self._rewards = np.zeros(rows, np.float32)
        self._terminated = np.zeros(rows, np.bool_)
        self._truncated = np.zeros(rows, np.bool_)
        self._acts = np.zeros(rows, np.bool_)
        self._is_over = [False] * request.num_envs
        self._is_checked = False

    def _agree(self, seed: int, squash_actions: bool) -> None:
        """The layout that all agents share, and whether their masks come in info."""
        env = self._envs[0]
        pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in self._agents]
        for agent, pair in zip(self._agents, pairs, strict=True):
            if pair != pairs[0]:
                raise EnvError(
                    f"agents {self._agents[0]} and {agent} have different spaces, {pairs[0]} and {pair}: "
                    f"{_SHARED}{_REMEDY}"
                )
        observation, self.action_space = pairs[0]
        action = action_spec(self.action_space, squash=squash_actions)
        self._masks_in_info = False
        if action.kind != "gaussian" and not (isinstance(observation, spaces.Dict) and ACTION_MASK in observation):
            _, infos = env.reset(seed=seed)
            self._masks_in_info = any(ACTION_MASK in info for info in infos.values())
        self._space = observation
        shown = masked_space(observation, self.action_space) if self._masks_in_info else observation
        self.layout = observation_layout(shown, action)
        self.spec = replace(self.layout.spec(action, "next_step"), agents=len(self._agents))
        self._to_env = action_converter(self.action_space)

    def reset(self, seed: Seed | None = None) -> Observations:
        """New episodes everywhere; see VectorEnvironment."""
        seed = self._take_seed(seed)
        seeds: Sequence[int | None] = [None] * len(self._envs) if seed is None else env_seeds(seed, len(self._envs))
        for k, one in enumerate(seeds):
            self._begin(k, one)
        self._settle_masks()
        return self._observations

    def step(self, actions: Actions) -> StepResult:
        """One action everywhere; see VectorEnvironment."""
        self._rewards.fill(0.0)
        self._terminated.fill(False)
        self._truncated.fill(False)
        chosen = self._to_env(actions)
        for k in range(len(self._envs)):
            if self._is_over[k]:
                self._begin(k, None)
            else:
                self._advance(k, chosen)
        self._settle_masks()
        return self._observations, self._rewards, self._terminated, self._truncated

    def render(self) -> npt.NDArray[np.uint8]:
        """What environment 0's own ``render`` gives; see VectorEnvironment."""
        return picture(self._envs[0].render)

    def close(self) -> None:
        """Close every environment; more calls do nothing."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _begin(self, k: int, seed: int | None) -> None:
        observations, infos = self._envs[k].reset(seed=seed)
        for agent in self._agents:
            if agent in observations:
                self.layout.check(self._shown(observations[agent], infos.get(agent, {})))
        self._write(k, observations, infos)
        self._is_over[k] = False

    def _advance(self, k: int, actions: npt.NDArray[np.generic]) -> None:
        env, start = self._envs[k], k * len(self._agents)
        alive = set(env.agents)
        given = {agent: actions[start + j] for j, agent in enumerate(self._agents) if agent in alive}
        observations, rewards, ends, cuts, infos = env.step(given)
        for reward in () if self._is_checked else rewards.values():
            check_numbers(reward)
        self._is_checked = True
        self._write(k, observations, infos)
        done = {agent for agent in alive if ends.get(agent) or cuts.get(agent)}
        self._is_over[k] = over = not any(agent in observations for agent in alive - done)
        for j, agent in enumerate(self._agents):
            self._rewards[start + j] = rewards.get(agent, 0.0)
            if over:
                # An agent that was done earlier has no more rewards to come, as one that ends here.
                self._truncated[start + j] = agent in alive and not ends.get(agent, True)
                self._terminated[start + j] = not self._truncated[start + j]

    def _write(self, k: int, observations: Mapping[str, object], infos: Mapping[str, Mapping[str, object]]) -> None:
        """The rows of environment k; those of agents that are gone are zero."""
        start, env = k * len(self._agents), self._envs[k]
        for j, agent in enumerate(self._agents, start):
            if agent in observations:
                self.layout.write(self._shown(observations[agent], infos.get(agent, {})), self._observations[j])
            else:
                self._observations[j] = 0
            self._acts[j] = agent in env.agents

    def _shown(self, observation: object, info: Mapping[str, object]) -> object:
        return with_mask(observation, info, self._space, self.action_space) if self._masks_in_info else observation

    def _settle_masks(self) -> None:
        if self.spec.action.masked:
            settle_masks(self.spec, self._observations, self._acts & ~np.repeat(self._is_over, len(self._agents)))


def _make(request: EnvRequest) -> _ParallelEnv:
    id, args = request.id, {**request.args, **({"render_mode": "rgb_array"} if request.render else {})}
    module, _, function = id.partition(":")
    package = import_module("pettingzoo", f"environment {id!r} with backend pettingzoo")
    make: object
    if "/" in id and hasattr(package, "make"):  # PettingZoo's own registry, from 1.27 on
        make = partial(package.make, "parallel", id)
    else:
        make = getattr(import_module(module, f"environment {id!r}"), function or "parallel_env", None)
    if not callable(make):
        raise EnvError(
            f"environment {id!r}: module {module!r} has no function {function or 'parallel_env'!r}: give an id of "
            "PettingZoo's such as butterfly/pistonball_v6, a module such as mpe2.simple_spread_v3, or module:function; "
            "turn-based (AEC) environments have no form in which agents act at once"
        )
    env = created(f"environment {id!r} cannot be made", lambda: make(**args), args)
    for name in request.wrappers:
        env = wrapped(env, name)
    if not (hasattr(env, "possible_agents") and hasattr(env, "step")) or hasattr(env, "agent_iter"):
        raise EnvError(f"environment {id!r} is a {type(env).__name__}, no pettingzoo.ParallelEnv")
    return cast(_ParallelEnv, env)
