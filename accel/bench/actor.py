"""Microseconds per environment step of the real actor loop, split, beside the limit that the environment sets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, cast

import numpy as np

from accel.acting import ActingPolicy, SessionPolicy
from accel.actor import ENV, POLICY, Actor
from accel.bench.checks import check_budget, check_counts, check_networks, check_schemes
from accel.bench.rows import Notify, Row, number, provenance, spread
from accel.bench.subject import FULL_PRECISION, Subject, environment_spec, environment_subject
from accel.bench.timing import interleave, torch_threads
from accel.config import TrainConfig
from accel.envs import make_vector_env
from accel.envs.base import Actions
from accel.errors import ConfigError
from accel.sampling import make_sampler
from accel.spaces import Json
from accel.torch_acting import serialise_module
from accel.transport.base import PolicyUpdate
from accel.transport.local import LocalTransport

RUNTIMES = ("torch", "onnxruntime")
SCHEMES = ("fp32", "int8", "int8-dynamic", "prune(0.5)", "prune(0.5)+int8")
SAMPLE_S = 0.02

logger = logging.getLogger("accel")


class Split(NamedTuple):
    """One sample, microseconds per environment step: valid rows only count as steps."""

    total: float
    env: float
    policy: float
    session: float


def bench_actor(
    config: TrainConfig | None = None,
    *,
    networks: Sequence[str] = ("mlp:64x2",),
    envs_per_actor: Sequence[int] = (1, 8),
    schemes: Sequence[str] = SCHEMES,
    runtimes: Sequence[str] = RUNTIMES,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time the loop that actors run, on one thread: environments, policy, sampling, unrolls and their hand-over.

        rows = bench_actor(TrainConfig.create(env="CartPole-v1"), networks=["mlp:64x2"], envs_per_actor=[8])

    Actors of every runtime and scheme take turns with each other and with environments stepped by random actions alone.
    Policies have random weights and stay the same; ``bench_refresh`` measures what loading costs.

    Args:
        config: environment, its options, unroll length and network options; None: the defaults, CartPole-v1.
        networks: network texts, in the place of the config's.
        envs_per_actor: environments that one actor steps together.
        schemes: compression schemes, on onnxruntime. Full precision is always measured beside them.
        runtimes: ``torch`` (eager, uncompressed), ``onnxruntime``.
        seconds: measuring time in all; making environments and compressing come on top.
        repeats: samples of each cell at most, each of whole unrolls over 20 ms or more.
        notify: told in a line what is refused.
    Returns:
        Flat rows: ``env``, ``network``, ``runtime``, ``scheme``, ``envs``; ``us_per_env_step`` with ``_low`` and
        ``_high`` (median, 10th and 90th percentile, µs), of which ``env_us`` in the environment, ``policy_us`` in the
        policy, sampling included, and ``own_us`` in all the rest (the median's parts, which add up to it);
        ``env_only_us``, environments alone; ``env_share`` = env_only_us / us_per_env_step;
        ``seconds_per_million_env_steps``; ``speedup_torch`` and ``speedup_fp32`` of the whole actor,
        ``policy_speedup_torch`` and ``policy_speedup_fp32`` of its policy; ``session_us``, the session's part of
        policy_us, and ``python_us_per_vector_step``, everything but environment and session (both None on torch);
        ``bytes``; ``cpu_share``; threads, machine and versions.
    Raises:
        ConfigError: an empty list, an unknown network or runtime, a count that is not positive.
        SchemeError: an unknown scheme. EnvError, MissingExtraError: the environment cannot be made.
    """
    check_budget(seconds, repeats)
    config = config or TrainConfig.create()
    networks, schemes = check_networks(networks), check_schemes(schemes)
    counts = check_counts(envs_per_actor, "envs-per-actor")
    unknown = sorted(set(runtimes) - set(RUNTIMES))
    if unknown or not runtimes:
        raise ConfigError(f"unknown runtimes {unknown}: choose from {', '.join(RUNTIMES)}")
    spec = environment_spec(config)
    budget_s = seconds / len(networks) / len(counts)
    rows: list[Row] = []
    with torch_threads():
        for network in networks:
            logger.info("compressing %s", network)
            subject = environment_subject(config.replace(network=network), spec)
            contest = _Contest(subject, schemes, runtimes, notify)
            for envs in counts:
                logger.info("measuring %s with %s, %d environments an actor", config.env, network, envs)
                rows += contest.measure(envs, budget_s, repeats)
    shared: Row = {"unroll_length": config.unroll_length, "torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


class _Contest:
    """One network on every runtime and under every scheme that takes it."""

    def __init__(self, subject: Subject, schemes: Sequence[str], runtimes: Sequence[str], notify: Notify) -> None:
        self._subject = subject
        self._payloads: dict[tuple[str, str], bytes] = {}
        artifacts = subject.artifacts(schemes, notify) if "onnxruntime" in runtimes else {}
        if "torch" in runtimes:
            self._payloads["torch", FULL_PRECISION] = serialise_module(subject.run.policy)
        for scheme, artifact in artifacts.items():
            self._payloads["onnxruntime", scheme] = artifact.to_bytes()

    def measure(self, envs: int, budget_s: float, repeats: int) -> list[Row]:
        """Rows for one number of environments."""
        config = self._subject.run.config.replace(envs_per_actor=envs)
        takers: dict[tuple[str, str], Callable[[], Split]] = {}
        with ExitStack() as stack:
            random = _RandomStepper(config)
            stack.callback(random.close)
            takers["environment", ""] = _filled(random.unroll)
            for (runtime, scheme), payload in self._payloads.items():
                actor = _Loop(config, runtime, scheme, payload)
                stack.callback(actor.close)
                takers[runtime, scheme] = _filled(actor.unroll)
            samples, cpu_share = interleave(takers, budget_s, repeats)
        env_only = samples.pop(("environment", ""))
        cells = [self._cell(key, envs, taken, env_only) for key, taken in samples.items()]
        return [row | _speedups(row, cells) | {"cpu_share": cpu_share} for row in cells]

    def _cell(self, key: tuple[str, str], envs: int, taken: Sequence[Split], env_only: Sequence[Split]) -> Row:
        runtime, scheme = key
        config = self._subject.run.config
        row: Row = {"env": config.env, "network": config.network, "runtime": runtime, "scheme": scheme, "envs": envs}
        row |= spread("us_per_env_step", [sample.total for sample in taken])
        env_us, policy_us, session_us = _parts(taken)
        total = number(row, "us_per_env_step")
        row |= {"env_us": env_us, "policy_us": policy_us, "own_us": total - env_us - policy_us}
        row |= spread("env_only_us", [sample.total for sample in env_only])
        row |= {"env_share": number(row, "env_only_us") / total, "seconds_per_million_env_steps": total}
        in_session = runtime == "onnxruntime"
        row |= {"session_us": session_us if in_session else None}
        row |= {"python_us_per_vector_step": (total - env_us - session_us) * envs if in_session else None}
        return row | {"bytes": len(self._payloads[key]), "samples": len(taken)}


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


class _Loop:
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


class _RandomStepper:
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


def _filled(unroll: Callable[[], tuple[Split, int]]) -> Callable[[], Split]:
    """A contestant for ``interleave`` whose samples are of whole unrolls, enough of them to fill ``SAMPLE_S``."""
    once = max(unroll()[0].total, 1e-6)
    count = max(1, min(200, round(SAMPLE_S / once)))

    def take() -> Split:
        seconds, steps = zip(*(unroll() for _ in range(count)), strict=True)
        return Split(*(1e6 * sum(part) / max(sum(steps), 1) for part in zip(*seconds, strict=True)))

    return take


def _parts(taken: Sequence[Split]) -> tuple[float, float, float]:
    """Environment, policy and session within the median total: their shares of the middle half of samples."""
    ordered = sorted(taken)
    quarter = len(ordered) // 4
    middle = np.asarray(ordered[quarter : len(ordered) - quarter])
    median = float(np.median([sample.total for sample in taken]))
    _, env, policy, session = median * middle.sum(0) / middle[:, 0].sum()
    return float(env), float(policy), float(session)


def _speedups(row: Row, cells: Sequence[Row]) -> Row:
    """How many times as fast as torch eager and as onnxruntime's full precision, the actor and its policy."""
    found: Row = {}
    for name, runtime in (("speedup_torch", "torch"), ("speedup_fp32", "onnxruntime")):
        baseline = next((c for c in cells if c["runtime"] == runtime and c["scheme"] == FULL_PRECISION), None)
        for prefix, column in (("", "us_per_env_step"), ("policy_", "policy_us")):
            found[f"{prefix}{name}"] = None if baseline is None else number(baseline, column) / number(row, column)
    return found
