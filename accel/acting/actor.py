"""The actor: pull policy → unroll → push. No torch, and no waiting for the learner except under back-pressure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import cast

import numpy as np
import numpy.typing as npt

from accel.acting.policy import ActingPolicy, SessionPolicy
from accel.acting.rules import ActionArray, FloatArray, Sampler, make_sampler
from accel.acting.shared import SharedPolicy
from accel.envs import VectorEnvironment, make_vector_env
from accel.envs.base import Actions
from accel.envs.spaces import EnvSpec
from accel.experience.unroll import ACTOR_PHASES, Unroll, UnrollLayout
from accel.networks.text import parse_network
from accel.transport.base import ActorTransport, PolicyUpdate
from compressors.errors import CompressorError

ENV, POLICY, OVERHEAD, SEND, WAIT, PULL, DESERIALISE, LOAD = range(len(ACTOR_PHASES))
PREPARATION_S = 600.0
"""How long a learner may take from the last actor's answer to its first policy: imports, a GPU, binding every level."""


class UnrollCollector:
    """Steps environments with a policy and fills unrolls; keeps what one unroll hands to the next."""

    def __init__(
        self, environment: VectorEnvironment, policy: ActingPolicy, sampler: Sampler, layout: UnrollLayout
    ) -> None:
        self._environment = environment
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
        self._observations = environment.reset()
        self.unrolls = 0

    def collect(self, unroll: Unroll, scheme_id: int | npt.NDArray[np.int16]) -> None:
        """Fill every field of one unroll by stepping T times; ``scheme_id`` is one for all environments, or [B].

        Timings already in ``timings_s`` for sending, waiting and loading are kept; environment, policy and overhead
        are written.
        """
        start = perf_counter()
        arrays = unroll.arrays
        policy, environment, sampler = self._policy, self._environment, self._sampler
        act, step = policy.act, environment.step
        to_env = cast(Callable[[ActionArray], Actions], sampler.to_env)
        for target, state in zip(unroll.states, policy.states(), strict=True):
            target[...] = state
        recurrent = bool(unroll.states)
        sampler.begin()
        observations = self._observations
        write = (
            self._frame_writer(unroll, observations) if self._stack > 1 else list(arrays["observations"]).__getitem__
        )
        newest = slice(-(self._layout.frame_shape[0]), None) if self._stack > 1 else None
        first, valid = self._first, self._valid
        env_s = policy_s = 0.0
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
            after_env = perf_counter()
            policy_s += before_env - before_policy
            env_s += after_env - before_env
            if self._same_step:
                arrays["final_observations"][t] = environment.final_observations
            if recurrent:
                done = terminated | truncated
                first, valid = (done, valid) if self._same_step else (~valid, ~done)
        write(self._layout.unroll_length)[...] = observations if newest is None else observations[:, newest]
        self._observations = observations
        self._finish(unroll, scheme_id)
        timings = arrays["timings_s"]
        timings[ENV], timings[POLICY] = env_s, policy_s
        timings[OVERHEAD] = perf_counter() - start - env_s - policy_s

    def _frame_writer(
        self, unroll: Unroll, observations: npt.NDArray[np.generic]
    ) -> Callable[[int], npt.NDArray[np.generic]]:
        """Store the older frames of row 0's stack; return where each row's newest frame goes."""
        frames = unroll["frames"]
        older = self._stack - 1
        channels = self._layout.frame_shape[0]
        for k in range(older):
            frames[k] = observations[:, k * channels : (k + 1) * channels]
        return list(frames[older:]).__getitem__

    def _finish(self, unroll: Unroll, scheme_id: int | npt.NDArray[np.int16]) -> None:
        """Everything that can be computed for the whole unroll at once."""
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
        params, actions = cast(FloatArray, arrays["behaviour_params"]), cast(ActionArray, arrays["actions"])
        arrays["behaviour_log_prob"][...] = self._sampler.log_prob(params, actions)
        arrays["policy_version"][...] = self._policy.version
        arrays["scheme_id"][...] = scheme_id
        self._record_episodes(arrays["rewards"], done, valid[:-1], arrays["episode_return"], arrays["episode_length"])
        header = arrays["header"]
        header[0], header[1], header[2], header[3] = (
            self.unrolls,
            self._policy.version,
            int(np.count_nonzero(valid[:-1])),
            0,
        )
        self.unrolls += 1

    def _record_episodes(
        self,
        rewards: npt.NDArray[np.generic],
        done: npt.NDArray[np.bool_],
        valid: npt.NDArray[np.generic],
        returns: npt.NDArray[np.generic],
        lengths: npt.NDArray[np.generic],
    ) -> None:
        """Undiscounted raw return and length of each episode that ends here, at its last row; zero elsewhere."""
        reward_sums = np.cumsum(np.where(valid, rewards, 0), axis=0, dtype=np.float64)
        step_sums = np.cumsum(valid, axis=0)
        envs, rows = np.nonzero(done.T)
        returns[...] = 0.0
        lengths[...] = 0
        if envs.size:
            new_env = np.empty(envs.size, np.bool_)
            new_env[0] = True
            np.not_equal(envs[1:], envs[:-1], out=new_env[1:])
            last = np.append(new_env[1:], True)
            ended = envs[last]
            step_at = step_sums[rows, envs]
            step_before = np.where(new_env, -self._length[envs], np.roll(step_at, 1))
            lengths[rows, envs] = step_at - step_before
            self._length[ended] = -step_at[last]
        self._length += step_sums[-1]
        if not (np.isfinite(reward_sums[-1]).all() and np.isfinite(self._return).all()):
            self._record_infinite_returns(np.where(valid, rewards, 0), done, returns)
            return
        if envs.size:
            reward_at = reward_sums[rows, envs]
            reward_before = np.where(new_env, -self._return[envs], np.roll(reward_at, 1))
            returns[rows, envs] = reward_at - reward_before
            self._return[ended] = -reward_at[last]
        self._return += reward_sums[-1]

    def _record_infinite_returns(
        self, rewards: npt.NDArray[np.generic], done: npt.NDArray[np.bool_], returns: npt.NDArray[np.generic]
    ) -> None:
        """Returns summed step by step: differences of sums would carry an infinite reward into every later episode."""
        for row, ends in enumerate(done):
            with np.errstate(invalid="ignore"):
                self._return += rewards[row]
            returns[row, ends] = self._return[ends]
            self._return[ends] = 0.0


class Actor:
    """One actor: owns environments, policy and unrolls, and talks to the learner through a transport.

    Args:
        config: the run's configuration as plain JSON, validated by the learner, with ``schemes`` (which names the
            unrolls' scheme ids) and ``restart`` (how often the run was resumed, so that noise never repeats).
        transport: this actor's end of the transport.
    Raises:
        EnvError, MissingExtraError: the environment cannot be made here.
    """

    def __init__(self, config: Mapping[str, object], transport: ActorTransport) -> None:
        self.config = config
        self._transport = transport
        envs, length = int(config["envs_per_actor"]), int(config["unroll_length"])  # type: ignore[call-overload]
        seeds = np.random.SeedSequence([int(config["seed"]), transport.actor, int(config["restart"])]).spawn(2)  # type: ignore[call-overload]
        self._environment = make_vector_env(
            str(config["env"]),
            envs,
            backend=config["backend"],  # type: ignore[arg-type]
            env_args=config["env_kwargs"],  # type: ignore[arg-type]
            wrappers=config["wrapper"],  # type: ignore[arg-type]
            seed=int(seeds[0].generate_state(1)[0]),
            squash_actions=bool(config["squash_actions"]),
        )
        self.spec: EnvSpec = self._environment.spec
        self._generator = np.random.default_rng(seeds[1])
        self._sampler = make_sampler(self.spec.action, envs, length, self._generator)
        self._envs = envs
        self.layout = UnrollLayout(self.spec, length, envs, parse_network(str(config["network"])).state_shapes)
        self._schemes: Sequence[str] = config["schemes"]  # type: ignore[assignment]
        self._views: dict[int, Unroll] = {}
        self._send_s = 0.0
        self._refused = False

    def start(self) -> None:
        """Wait for the first policy and reset the environments.

        Raises:
            TransportError: the learner is gone or sent nothing in time. CompressorError: its policy does not load here.
        """
        self._transport.configure(self.layout.nbytes, int(self.config["unrolls_in_flight"]))  # type: ignore[call-overload]
        self._policy = self._make_policy()
        # the learner waits that long for the slowest actor, and only then prepares and publishes
        timeout_s = float(self.config["peer_timeout_s"]) + PREPARATION_S  # type: ignore[arg-type]
        self._load(self._transport.wait_policy(timeout_s))
        self._collector = UnrollCollector(self._environment, self._policy, self._sampler, self.layout)

    def step(self) -> None:
        """One unroll: a free buffer, the policy that is newest then, T environment steps, off it goes. Raises Stopped.

        Where the learner is behind, the wait is for the buffer: a policy taken before it would be older by that long.
        """
        before = perf_counter()
        buffer = self._transport.acquire()
        acquired = perf_counter()
        update = self._transport.pull()
        pulled = perf_counter()
        deserialise_s = 0.0 if update is None else self._load(update)
        loaded = perf_counter()
        unroll = self._views.get(id(buffer))
        if unroll is None:
            unroll = self._views[id(buffer)] = self.layout.view(buffer)
        self._collector.collect(unroll, self._policy.scheme_ids(self._schemes))
        timings = unroll["timings_s"]
        timings[WAIT], timings[PULL] = acquired - before, pulled - acquired
        timings[DESERIALISE], timings[LOAD] = deserialise_s, loaded - pulled - deserialise_s
        timings[SEND] = self._send_s
        before = perf_counter()
        self._transport.push(buffer)
        self._send_s = perf_counter() - before

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def generator_state(self) -> Mapping[str, object]:
        """State of the sampling noise's generator, for a checkpoint of a run in one process."""
        return self._generator.bit_generator.state

    def set_generator_state(self, state: Mapping[str, object]) -> None:
        """Inverse of ``generator_state``."""
        self._generator.bit_generator.state = state

    def _make_policy(self) -> ActingPolicy:
        if self.config["actor_runtime"] == "torch":
            from accel.acting.torch_policy import TorchPolicy

            return TorchPolicy(self.config, self.spec, self._envs, self._sampler)
        if self.config.get("shares_levels"):
            return SharedPolicy(self.spec, self._envs, self._sampler, self.layout.state_shapes, self._transport.report)
        return SessionPolicy(self.spec, self._envs, self._sampler, self.layout.state_shapes)

    def _load(self, update: PolicyUpdate) -> float:
        """Take a newer policy; seconds that deserialising took.

        One that cannot be loaded is reported and the old one stays; a first one must load. Notices that a refused
        policy is also a newer version's then say nothing of the old one.
        """
        if update.payload is None and self._refused:
            return 0.0
        try:
            deserialise_s = self._policy.load(update)
            self._refused = False
            return deserialise_s
        except CompressorError as error:
            self._refused = True
            if self._policy.version < 0:
                raise
            self._transport.report(
                {
                    "warning": f"actor {self._transport.actor} keeps policy {self._policy.version}: "
                    f"version {update.version} does not load: {error}"
                }
            )
            return 0.0
