"""The actor: pull policy → unroll → push. No torch; it waits for the learner only when all buffers are under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, cast

import numpy as np

from accel.acting.central import CentralPolicy
from accel.acting.collector import Collector, UnrollCollector
from accel.acting.policy import SessionPolicy
from accel.acting.priorities import TemporalDifferences
from accel.acting.ready import AHEAD, ReadyCollector, ReadyPolicy
from accel.acting.rules import ActorPlace, RuleSpec, Sampler, make_rule
from accel.config.actor import ActorAgreement, ActorConfig
from accel.envs.base import AsyncEnvironments, EnvRequest, VectorEnvironment
from accel.envs.factory import make_vector_env
from accel.envs.pool import EnvironmentPool
from accel.envs.spaces import EnvSpec
from accel.errors import TransportError
from accel.experience.unroll import ACTOR_PHASES, Unroll, UnrollLayout
from accel.supervision.activity import PREPARING
from accel.transport.base import ActorTransport, PolicyUpdate
from accel.transport.child_actor import ChildActor

SEND, WAIT, PULL, DESERIALISE, LOAD = (
    ACTOR_PHASES.index(name) for name in ("send", "wait", "pull", "deserialise", "load")
)
PREPARATION_S = 600.0
"""Time limit of the learner from the last actor's answer to its first policy: imports, a GPU, binding every level."""


class Actor:
    """One actor: owns environments, policy and unrolls, and talks to the learner through its end of a transport.

    Raises:
        EnvError, MissingExtraError: the environment cannot be made here.
    """

    def __init__(self, config: ActorConfig, transport: ActorTransport) -> None:
        self.config = config
        self._transport = transport
        incarnation = [config.incarnation] if config.incarnation else []
        number = config.number(transport.actor)
        seeds = np.random.SeedSequence([config.seed, number, config.restart, *incarnation]).spawn(2)
        self._environment = _make_environment(config, number, int(seeds[0].generate_state(1)[0]))
        self._environment.activity = transport.activity
        self.spec: EnvSpec = self._environment.spec
        self._generator = np.random.default_rng(seeds[1])
        self._views: dict[int, Unroll] = {}
        self._rows = config.envs_per_actor * self.spec.agents
        self._env_steps_per_unroll = config.actors * self._rows * config.unroll_length
        # the learner waits that long for the slowest actor, and only then prepares and publishes
        self._timeout_s = config.peer_timeout_s + PREPARATION_S
        self._send_s = 0.0
        self._newest = -1

    def start(self) -> None:
        """Take the learner's agreement, wait for the first policy and reset the environments.

        Raises:
            TransportError: the learner is gone, sent nothing in time, or lays out unrolls differently.
            CompressorError: its policy does not load here.
        """
        config = self.config
        agreement = ActorAgreement.from_json(self._transport.welcome(self._timeout_s))
        rule = make_rule(RuleSpec(agreement.rule, agreement.rule_options), self.spec.action)
        self.layout = UnrollLayout(
            self.spec,
            config.unroll_length,
            self._rows,
            agreement.state_shapes,
            agreement.output_size,
            agreement.explores,
            agreement.priorities is not None,
        )
        if self.layout.digest != agreement.digest:
            raise TransportError(
                "actors and learner lay out unrolls differently: install the same version on every node"
            )
        place = ActorPlace(self._rows, config.unroll_length, config.number(self._transport.actor), config.actors)
        sampler = rule.bind(place, self._generator)
        self._transport.configure(self.layout.nbytes, config.unrolls_in_flight)
        self._policy = self._make_policy(sampler)
        if not config.central:
            self._load(self._transport.wait_policy(self._timeout_s))
        priorities = None
        if agreement.priorities is not None:
            priorities = TemporalDifferences(self.layout, agreement.priorities)
        before = self._transport.activity.enter(PREPARING)
        self._collector = self._make_collector(sampler, priorities)
        self._transport.activity.enter(before)

    def step(self, is_over: Callable[[], object] | None = None) -> None:
        """Collect one unroll: acquire a buffer, pull the newest policy, take T vector steps, push. Raises Stopped.

        ``is_over``: see ``Collector.collect``. The policy is pulled after the wait for a free buffer, as one
        pulled before it would be older.
        """
        before = perf_counter()
        buffer = self._transport.acquire()
        newer = self._wait_for_newer() if self.config.waits_for_policy and self._collector.unrolls else None
        acquired = perf_counter()
        update = self._transport.pull() if newer is None else newer
        pulled = perf_counter()
        deserialise_s = 0.0 if update is None else self._load(update)
        loaded = perf_counter()
        unroll = self._views.get(id(buffer))
        if unroll is None:
            unroll = self._views[id(buffer)] = self.layout.view(buffer)
        env_steps = self.config.env_steps + self._collector.unrolls * self._env_steps_per_unroll
        try:
            self._collector.collect(unroll, env_steps, is_over)
        finally:
            if self._environment.failures:
                self._report_failures()
        timings = unroll["timings_s"]
        timings[WAIT], timings[PULL] = acquired - before, pulled - acquired
        timings[DESERIALISE], timings[LOAD] = deserialise_s, loaded - pulled - deserialise_s
        timings[SEND] = self._send_s
        before = perf_counter()
        self._transport.push(buffer)
        self._send_s = perf_counter() - before

    def _report_failures(self) -> None:
        for failure in self._environment.failures:
            self._transport.report(failure.to_json())
        self._environment.failures.clear()

    def close(self) -> None:
        """Close the environments."""
        self._transport.activity.enter(PREPARING)  # It may take longer than a step.
        self._environment.close()

    def generator_state(self) -> Mapping[str, object]:
        """State of the sampling noise's generator, for a checkpoint of a run in one process."""
        return self._generator.bit_generator.state

    def set_generator_state(self, state: Mapping[str, object]) -> None:
        """Inverse of ``generator_state``."""
        self._generator.bit_generator.state = state

    def _make_collector(self, sampler: Sampler, priorities: TemporalDifferences | None) -> Collector:
        if isinstance(self._environment, VectorEnvironment):
            return UnrollCollector(self._environment, self._policy, sampler, self.layout, priorities)
        ahead = 0 if self.config.waits_for_policy else AHEAD
        policy = cast(ReadyPolicy, self._policy)
        return ReadyCollector(self._environment, policy, sampler, self.layout, priorities, ahead)

    def _make_policy(self, sampler: Sampler) -> SessionPolicy:
        if self.config.central:
            transport = cast(ChildActor, self._transport)
            return CentralPolicy(self.layout, sampler, transport, self._timeout_s)
        if self.config.torch_options is not None:
            from accel.acting.torch_policy import TorchPolicy, make_module

            return TorchPolicy(make_module(self.config.torch_options, self.spec), self.layout, sampler)
        make = ReadyPolicy if self.config.env_workers else SessionPolicy
        return make(self.layout, sampler, self.config.schemes, self.config.runtime)

    def _wait_for_newer(self) -> PolicyUpdate:
        """The policy that was learned from this actor's last unroll, waited for. Raises Stopped, TransportError."""
        while (update := self._transport.wait_policy(self._timeout_s)).version <= self._newest:
            self._load(update)  # another scheme of the same version
        return update

    def _load(self, update: PolicyUpdate) -> float:
        """Load a newer policy, or keep the old one; returns the seconds that deserialising took."""
        self._newest = update.version
        before = self._transport.activity.enter(PREPARING)  # No environment hangs meanwhile.
        try:
            return self._policy.load_or_keep(update, f"actor {self._transport.actor}", self._transport.report)
        finally:
            self._transport.activity.enter(before)


def _make_environment(config: ActorConfig, number: int, seed: int) -> VectorEnvironment | AsyncEnvironments:
    """The environments of the actor of this number among the run's."""
    id, args, wrappers = config.task(number), config.env_args, config.wrappers
    if config.env_workers and config.backend == "envpool":
        from accel.envs.envpool_backend import AsyncEnvPool

        request = EnvRequest(id, config.envs_per_actor, args, wrappers, seed, config.squash_actions)
        return AsyncEnvPool(request, config.env_workers)
    environment: dict[str, Any] = {
        "id": id,
        "num_envs": config.envs_per_actor,
        "backend": config.backend,
        "env_args": args,
        "wrappers": wrappers,
        "seed": seed,
        "squash_actions": config.squash_actions,
    }
    if not config.env_workers:
        return make_vector_env(**environment)
    return EnvironmentPool(
        environment,
        config.env_workers,
        step_s=config.actor_timeout_s,
        preparation_s=config.peer_timeout_s,
        max_restarts=config.max_actor_restarts,
    )
