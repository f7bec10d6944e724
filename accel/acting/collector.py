"""Collecting unrolls: step T times with a policy and fill every field. No torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import cast

import numpy as np

from accel.acting.policy import Array, Bools, SessionPolicy
from accel.acting.priorities import TemporalDifferences
from accel.acting.rules import ActionArray, FloatArray, Sampler
from accel.envs.base import Actions, EnvFailure, VectorEnvironment
from accel.experience.unroll import ACTOR_PHASES, Unroll, UnrollLayout
from accel.transport.base import Stopped

ENV, POLICY, OVERHEAD = (ACTOR_PHASES.index(name) for name in ("env", "policy", "overhead"))
_LOOK_S = 0.1


class Collector(ABC):
    """Completes unrolls whose rows are filled, and keeps what goes on from one to the next.

    Attributes:
        unrolls: how many are complete.
    """

    def __init__(
        self,
        policy: SessionPolicy,
        sampler: Sampler,
        layout: UnrollLayout,
        priorities: TemporalDifferences | None = None,
    ) -> None:
        self._priorities = priorities
        self._policy = policy
        self._layout = layout
        self._sampler = sampler
        self._same_step = layout.spec.autoreset == "same_step"
        self._stack = layout.spec.frame_stack
        envs = layout.envs
        self._first = np.ones(envs, np.bool_)
        self._valid = np.ones(envs, np.bool_)
        self._return = np.zeros(envs, np.float64)
        self._length = np.zeros(envs, np.int64)
        self.unrolls = 0

    @abstractmethod
    def collect(self, unroll: Unroll, env_steps: int = 0, is_over: Callable[[], object] | None = None) -> None:
        """Fill every field of the next unroll.

        ``env_steps``: of the whole run so far, as far as this actor knows. ``is_over``: asked between steps, several
        times a second; when it says so, this raises Stopped, and the unroll is lost.

        Timings already in ``timings_s`` for sending, waiting and loading are kept; environment, policy and overhead
        are written.
        """

    def _write_states(self, unroll: Unroll, rows: slice | Array = slice(None)) -> None:
        """Write the recurrent state that environments, those of ``rows``, begin an unroll with.

        An observation that is not finite makes its environment's state so for good: here it starts again from zero.
        """
        states = self._policy.states()
        with np.errstate(over="ignore", invalid="ignore"):
            is_sound = all(math.isfinite(state.sum()) for state in states)
        if not is_sound:
            broken = ~np.logical_and.reduce([np.isfinite(s.reshape(len(s), -1)).all(1) for s in states])
            for state in states:
                state[broken] = 0.0
        for target, state in zip(unroll.states, states, strict=True):
            target[rows] = state[rows]

    def _finish(self, unroll: Unroll, failures: Iterable[EnvFailure]) -> None:
        """Everything that can be computed for the whole unroll at once, but what the policy's answers decide.

        ``failures``: of environments in rows of this unroll.
        """
        arrays = unroll.arrays
        done = np.logical_or(arrays["terminated"], arrays["truncated"])
        first, valid = arrays["first"], arrays["valid"]
        first[0], valid[0] = self._first, self._valid
        if self._same_step:
            valid[1:] = True
            first[1:] = done
        else:
            np.logical_not(done, out=valid[1:])
            np.logical_not(valid[:-1], out=first[1:])
        self._first, self._valid = first[-1].copy(), valid[-1].copy()
        if self._priorities is not None:
            arrays["priority"][...] = self._priorities.of(unroll)
        self._record_episodes(arrays, done)
        for failure in failures:
            # As for numbers that are not finite: the environment's part of the unroll is left out.
            valid[:, failure.environment] = False
            row = failure.tick - 1 - self.unrolls * self._layout.unroll_length
            arrays["episode_return"][row, failure.environment] = 0.0
            arrays["episode_length"][row, failure.environment] = 0
        header = arrays["header"]
        header[0], header[1], header[2], header[3] = (
            self.unrolls,
            arrays["policy_version"][0].min(),  # Versions never go down.
            int(np.count_nonzero(valid[:-1])),
            0,
        )
        self.unrolls += 1

    def _record_episodes(self, arrays: Mapping[str, Array], done: Bools) -> None:
        """Undiscounted raw return and length of each episode that ends here, at its last row; zero elsewhere.

        Each stretch of an environment's rows up to its unroll's or episode's end is summed by itself, so that an
        infinite reward stays in its episode.
        """
        valid, length = arrays["valid"][:-1], len(done)
        begins = np.ones_like(done.T)  # environments one after another
        begins[:, 1:] = done[:-1].T
        starts = np.flatnonzero(begins)
        rewards = np.where(valid, arrays["rewards"], 0.0).T.ravel()
        goes_on = starts % length == 0
        with np.errstate(invalid="ignore"):
            returns = np.add.reduceat(rewards, starts, dtype=np.float64)
            returns[goes_on] += self._return
        lengths = np.add.reduceat(valid.T.ravel(), starts, dtype=np.int64)
        lengths[goes_on] += self._length
        envs, rows = np.divmod(np.append(starts[1:], done.size) - 1, length)
        ends, is_last = done[rows, envs], rows == length - 1
        self._return = np.where(ends, 0.0, returns)[is_last]
        self._length = np.where(ends, 0, lengths)[is_last]
        arrays["episode_return"][...], arrays["episode_length"][...] = 0.0, 0
        arrays["episode_return"][rows, envs] = np.where(ends, returns, 0.0)
        arrays["episode_length"][rows, envs] = np.where(ends, lengths, 0)


class UnrollCollector(Collector):
    """Steps environments together with a policy and fills unrolls; keeps the state between unrolls."""

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: SessionPolicy,
        sampler: Sampler,
        layout: UnrollLayout,
        priorities: TemporalDifferences | None = None,
    ) -> None:
        super().__init__(policy, sampler, layout, priorities)
        self._environment = environment
        self._observations = environment.reset()

    def collect(self, unroll: Unroll, env_steps: int = 0, is_over: Callable[[], object] | None = None) -> None:
        """Step T times; see ``Collector.collect``."""
        start = perf_counter()
        arrays = unroll.arrays
        policy, environment, sampler = self._policy, self._environment, self._sampler
        act, step = policy.act, environment.step
        to_env = cast(Callable[[ActionArray], Actions], sampler.to_env)
        self._write_states(unroll)
        recurrent = bool(unroll.states)
        sampler.begin(env_steps)
        observations = self._observations
        write = (
            self._frame_writer(unroll, observations) if self._stack > 1 else list(arrays["observations"]).__getitem__
        )
        newest = slice(-(self._layout.frame_shape[0]), None) if self._stack > 1 else None
        first, valid = self._first, self._valid
        activity, progress = environment.activity.words, environment.activity.words[0]
        env_s = policy_s = 0.0
        look_s = math.inf if is_over is None else start
        rows = zip(
            list(arrays["actions"]), list(arrays["behaviour_params"]), list(arrays["rewards"]),
            list(arrays["terminated"]), list(arrays["truncated"]), strict=True,
        )  # fmt: skip
        for t, (actions, params, rewards, terminated, truncated) in enumerate(rows):
            write(t)[...] = observations if newest is None else observations[:, newest]
            before_policy = perf_counter()
            act(observations, first if recurrent and first.any() else None, t, actions, params)
            env_actions = to_env(actions)
            before_env = perf_counter()
            observations, rewards[...], terminated[...], truncated[...] = step(env_actions)
            activity[0] = progress = progress + 1  # at once: an interruption is for this step
            after_env = perf_counter()
            policy_s += before_env - before_policy
            env_s += after_env - before_env
            if after_env >= look_s:
                if is_over is not None and is_over():
                    raise Stopped("the run is over")
                look_s = after_env + _LOOK_S
            if self._same_step:
                arrays["final_observations"][t] = environment.final_observations
            if recurrent:
                done = terminated | truncated
                first, valid = (done, valid) if self._same_step else (~valid, ~done)
        write(self._layout.unroll_length)[...] = observations if newest is None else observations[:, newest]
        self._observations = observations
        self._sign(unroll)
        self._finish(unroll, self._environment.failures)
        timings = arrays["timings_s"]
        timings[ENV], timings[POLICY] = env_s, policy_s
        timings[OVERHEAD] = perf_counter() - start - env_s - policy_s

    def _frame_writer(self, unroll: Unroll, observations: Array) -> Callable[[int], Array]:
        """Store the older frames of row 0's stack; return where each row's newest frame goes."""
        frames = unroll["frames"]
        older = self._stack - 1
        channels = self._layout.frame_shape[0]
        for k in range(older):
            frames[k] = observations[:, k * channels : (k + 1) * channels]
        return list(frames[older:]).__getitem__

    def _sign(self, unroll: Unroll) -> None:
        """What the policy's answers decide, for the whole unroll at once."""
        arrays = unroll.arrays
        params, actions = cast(FloatArray, arrays["behaviour_params"]), cast(ActionArray, arrays["actions"])
        arrays["behaviour_log_prob"][...] = self._sampler.log_prob(params, actions)
        if self._sampler.exploration is not None:
            arrays["exploration"][...] = self._sampler.exploration
        self._policy.sign(unroll)
