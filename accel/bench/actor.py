"""Microseconds per environment step of the real actor loop by part, beside those of the environment alone."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from accel.acting.actor import Actor
from accel.acting.collector import ENV, POLICY
from accel.acting.policy import SessionPolicy
from accel.acting.rules import Sampler, make_sampler
from accel.acting.torch_policy import TorchPolicy
from accel.algorithms.catalogue import agreement_for
from accel.bench.checks import RUNTIMES, SCHEMES, check_budget, check_counts, check_runtimes, check_schemes
from accel.bench.policies import MeasuredPolicy, Policies, Variant
from accel.bench.rows import Notify, Row, number, provenance, speedups, spread
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.envs.base import Actions
from accel.errors import contained
from accel.networks.policy import PolicyModule
from accel.runs.finishing import MIXED
from accel.runs.trained_policy import TrainedPolicy, make_env
from accel.system.timing import interleave, torch_threads
from accel.transport.local import LocalActor, LocalLearner

SAMPLE_S = 0.02

logger = logging.getLogger("accel")


@contained(": mend the environment")
def bench_actor(
    policies: Policies,
    *,
    envs_per_actor: Sequence[int] = (1, 8, 64),
    schemes: Sequence[str] = SCHEMES,
    runtimes: Sequence[str] = RUNTIMES,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time the actor loop on one thread: environments, policy, sampling, filling and sending unrolls.

        rows = bench_actor(Policies(run=Path("results/cheetah")), envs_per_actor=[8])

    Actors of each runtime and scheme run in turns with environments that random actions step alone. Policies do not
    change; ``bench_refresh`` measures loading.

    Args:
        policies: what acts, in CartPole-v1 where these have no environment.
        envs_per_actor: environments that one actor steps together.
        schemes: compression schemes. Full precision is always measured too.
        runtimes: ``torch`` (eager, uncompressed), ``onnxruntime``, ``native`` (compiled kernels, for the policies that
            these run here).
        seconds: total measuring time, without making environments and compressing.
        repeats: samples of each cell at most, each of whole unrolls over 20 ms or more.
        notify: called with a message about each refused scheme.
    Returns:
        Flat rows: ``env``, ``network``, ``runtime``, ``scheme``, ``envs``; ``us_per_env_step`` with ``_low`` and
        ``_high`` (median, 10th and 90th percentile, µs), the sum of ``env_us`` (environment), ``policy_us`` (policy
        and sampling) and ``overhead_us`` (the rest); ``env_only_us``, environments alone; ``env_share``, their ratio to
        the actor within a round, with ``_low`` and ``_high``; ``speedup_torch`` and ``speedup_fp32`` of the actor;
        ``bytes``; ``weights``, and ``kl``, ``ess``, ``greedy_agreement`` as of ``bench_policy``; ``cpu_share``;
        threads, machine and versions.
    Raises:
        ConfigError: an empty list, an unknown runtime, a count that is not positive.
        SchemeError: an unknown scheme. What ``Policies`` raises.
    """
    check_budget(seconds, repeats)
    schemes, counts = check_schemes(schemes), check_counts(envs_per_actor, "envs-per-actor")
    check_runtimes(runtimes)
    policies = policies.in_environment()
    budget_s = seconds / len(policies) / len(counts)
    rows: list[Row] = []
    with torch_threads():
        for policy in policies:
            logger.info("compressing %s", policy.network)
            variants = policy.variants(schemes, runtimes, notify)
            for envs in counts:
                logger.info("measuring %s, environments per actor: %d", policy.network, envs)
                rows += _measure(policy, variants, envs, budget_s, repeats)
    shared: Row = {"torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


def _measure(
    policy: MeasuredPolicy, variants: Sequence[Variant], envs: int, budget_s: float, repeats: int
) -> list[Row]:
    """A row for each variant, with so many environments."""
    run = replace(policy.run, config=policy.run.config.replace(envs_per_actor=envs))
    with ExitStack() as stack:
        random = stack.enter_context(closing(RandomStepper(run.config)))
        takers: dict[Variant | None, Callable[[], Split]] = {None: _filled(random.unroll)}
        for variant in variants:
            takers[variant] = _filled(stack.enter_context(closing(ActorLoop(run, variant))).unroll)
        samples, cpu_share = interleave(takers, budget_s, repeats)
    env_only = samples[None]
    cells = []
    for variant in variants:
        taken = samples[variant]
        row: Row = {"env": run.config.environment.env, "network": policy.network, "runtime": variant.runtime}
        row |= {"scheme": variant.scheme, "envs": envs}
        row |= spread("us_per_env_step", [sample.total for sample in taken])
        env_us, policy_us = median_parts(taken)
        overhead_us = number(row, "us_per_env_step") - env_us - policy_us
        row |= {"env_us": env_us, "policy_us": policy_us, "overhead_us": overhead_us}
        row |= spread("env_only_us", [sample.total for sample in env_only])
        row |= spread("env_share", [env.total / actor.total for env, actor in zip(env_only, taken, strict=True)])
        row |= variant.mismatch | {"weights": policy.weights, "inputs": policy.source}
        row |= {"unroll_length": run.config.acting.unroll_length, "bytes": len(variant.payload), "samples": len(taken)}
        cells.append(row)
    return [row | speedups(row, cells, "us_per_env_step") | {"cpu_share": cpu_share} for row in cells]


def _filled(unroll: Callable[[], tuple[Split, int]]) -> Callable[[], Split]:
    """A contestant for ``interleave``: a sample is as many whole unrolls as fill ``SAMPLE_S``; where these are several,
    after one that is not measured."""
    once = max(unroll()[0].total, 1e-6)
    count = max(1, min(200, round(SAMPLE_S / once)))

    def take() -> Split:
        if count > 1:
            unroll()
        seconds, steps = zip(*(unroll() for _ in range(count)), strict=True)
        return Split(*(1e6 * sum(part) / max(sum(steps), 1) for part in zip(*seconds, strict=True)))

    return take


def median_parts(taken: Sequence[Split]) -> tuple[float, float]:
    """Environment and policy of the median total, by their shares of the middle half of samples."""
    ordered = sorted(taken)
    quarter = len(ordered) // 4
    middle = np.asarray(ordered[quarter : len(ordered) - quarter])
    median = float(np.median([sample.total for sample in taken]))
    _, env, policy = median * middle.sum(0) / middle[:, 0].sum()
    return float(env), float(policy)


class Split(NamedTuple):
    """One sample in microseconds per environment step; only valid rows count as steps."""

    total: float
    env: float
    policy: float


class _TorchActor(Actor):
    """A real actor that runs a module on torch."""

    module: PolicyModule

    def _make_policy(self, sampler: Sampler) -> SessionPolicy:
        return TorchPolicy(self.module, self.layout, sampler)


class ActorLoop:
    """A real actor on a local transport, whose learner's end receives its unrolls."""

    def __init__(self, run: TrainedPolicy, variant: Variant) -> None:
        on_torch = variant.artifact is None
        config = run.config.replace(
            actors=1, inference="local", actor_runtime="native" if on_torch else variant.runtime
        )
        if config.schedule.waits_for_policy:
            config = config.replace(schedule="asynchronous")  # there is no learner to wait for
        self._learner = LocalLearner()
        told = ActorConfig.of(config, schemes=(variant.scheme, MIXED))  # what a finished scheme may be called
        self._actor = (_TorchActor if on_torch else Actor)(told, LocalActor(self._learner, 0))
        if isinstance(self._actor, _TorchActor):
            self._actor.module = copy.deepcopy(run.policy)
        agreement, self._layout = agreement_for(
            config, self._actor.spec, run.policy.state_shapes, run.rule_spec, run.rule.output_size, run.rule.explores
        )
        self._learner.welcome(agreement.to_json())
        self._learner.configure(self._layout.nbytes)
        self._learner.publish(0, variant.payload)
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
        return Split(elapsed_s, float(timings[ENV]), float(timings[POLICY])), steps

    def close(self) -> None:
        """Close the environments."""
        self._actor.close()
        self._learner.close()


class RandomStepper:
    """The environment alone, stepped by uniform (Box: clipped standard normal) actions drawn in advance."""

    def __init__(self, config: TrainConfig) -> None:
        self._environment = make_env(config, config.acting.envs_per_actor, config.run.seed)
        self._length = config.acting.unroll_length
        action, envs = self._environment.spec.action, self._environment.num_envs
        self._sampler = make_sampler(action, envs, self._length, np.random.default_rng(config.run.seed))
        self._params = np.zeros((envs, action.param_size), np.float32)
        self._actions = np.zeros((self._length, envs, *action.shape), action.dtype)
        self._same_step = self._environment.spec.autoreset == "same_step"
        self._resetting = 0
        self._environment.reset()

    def unroll(self) -> tuple[Split, int]:
        """Seconds of an unroll's vector steps, and their environment steps."""
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
        return Split(env_s, env_s, 0.0), steps

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()
