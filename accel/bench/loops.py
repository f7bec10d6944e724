"""What the actor benchmark runs: a real actor on a local transport, and an environment stepped by random actions."""

from __future__ import annotations

import time
from typing import NamedTuple, cast

import numpy as np

from accel.acting.actor import ENV, POLICY, Actor
from accel.acting.policy import ActingPolicy, SessionPolicy
from accel.acting.rules import make_sampler
from accel.config import TrainConfig
from accel.envs import make_vector_env
from accel.envs.base import Actions
from accel.json_object import Json
from accel.transport.base import PolicyUpdate
from accel.transport.local import LocalTransport


class Split(NamedTuple):
    """One sample, microseconds per environment step: valid rows only count as steps."""

    total: float
    env: float
    policy: float
    session: float


class _MeteredPolicy(SessionPolicy):
    """Also adds up the seconds that its session takes."""

    session_s = 0.0

    def load(self, update: PolicyUpdate) -> float:
        """See ``SessionPolicy.load``."""
        deserialise_s = super().load(update)
        run = self._run

        def metered() -> None:
            began = time.perf_counter()
            run()
            self.session_s += time.perf_counter() - began

        self._run = metered
        return deserialise_s


class _MeteredActor(Actor):
    """A real actor whose session is timed by itself."""

    metered: _MeteredPolicy | None = None

    def _make_policy(self) -> ActingPolicy:
        if self.config["actor_runtime"] == "torch":
            return super()._make_policy()
        self.metered = _MeteredPolicy(self.spec, self._envs, self._sampler, self.layout.state_shapes)
        return self.metered


class Loop:
    """A real actor on a local transport, and a learner's end that takes its unrolls."""

    def __init__(self, config: TrainConfig, runtime: str, scheme: str, payload: bytes) -> None:
        values: Json = config.to_json() | {"env_kwargs": config.env_kwargs, "schemes": [scheme], "restart": 0}
        values |= {"actor_runtime": runtime, "compressor": scheme}
        transport = LocalTransport(1)
        self._learner = transport.learner
        self._actor = _MeteredActor(values, transport.actor(0))
        self._layout = self._actor.layout
        self._learner.configure(self._layout.nbytes)
        self._learner.publish(0, {scheme: payload})
        self._actor.start()

    def unroll(self) -> tuple[Split, int]:
        """Seconds of one unroll, and its environment steps."""
        began = time.perf_counter()
        self._actor.step()
        elapsed_s = time.perf_counter() - began
        arrival = self._learner.receive()
        if arrival is None:
            raise RuntimeError("the actor's unroll did not arrive on the local transport")
        unroll = self._layout.view(arrival.buffer)
        timings, steps = unroll["timings_s"], unroll.valid_steps
        self._learner.release(arrival)
        session_s = 0.0
        if self._actor.metered is not None:
            session_s, self._actor.metered.session_s = self._actor.metered.session_s, 0.0
        return Split(elapsed_s, float(timings[ENV]), float(timings[POLICY]), session_s), steps

    def close(self) -> None:
        """Close the environments."""
        self._actor.close()
        self._learner.close()


class RandomStepper:
    """The environment alone, stepped by uniform (Box: standard normal, clipped) actions drawn beforehand."""

    def __init__(self, config: TrainConfig) -> None:
        self._environment = make_vector_env(
            config.env,
            config.envs_per_actor,
            backend=config.backend,
            env_args=config.env_kwargs,
            wrappers=config.wrapper,
            seed=config.seed,
            squash_actions=config.squash_actions,
        )
        self._length = config.unroll_length
        action, envs = self._environment.spec.action, config.envs_per_actor
        self._sampler = make_sampler(action, envs, self._length, np.random.default_rng(config.seed))
        self._params = np.zeros((envs, action.param_size), np.float32)
        self._actions = np.zeros((self._length, envs, *action.shape), action.dtype)
        self._same_step = self._environment.spec.autoreset == "same_step"
        self._resetting = 0
        self._environment.reset()

    def unroll(self) -> tuple[Split, int]:
        """Seconds of as many vector steps as an unroll has, and their environment steps."""
        self._sampler.begin()
        for t, actions in enumerate(self._actions):
            self._sampler.sample(self._params, t, actions)
        env_s, steps = 0.0, 0
        for actions in self._actions:
            env_actions = cast(Actions, self._sampler.to_env(actions))
            began = time.perf_counter()
            _, _, terminated, truncated = self._environment.step(env_actions)
            env_s += time.perf_counter() - began
            steps += len(actions) - self._resetting
            self._resetting = 0 if self._same_step else int(np.count_nonzero(terminated | truncated))
        return Split(env_s, env_s, 0.0, 0.0), steps

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()
