"""Milliseconds from new weights to a loaded policy, and how seldom a policy must change for a scheme to pay."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from accel.bench.calls import session_call
from accel.bench.checks import check_budget, check_counts, check_networks, check_schemes
from accel.bench.rows import Notify, Row, is_faster, number, provenance, spread
from accel.bench.subject import (
    FULL_PRECISION,
    Subject,
    environment_spec,
    make_subject,
    refusal,
)
from accel.bench.timing import interleave, timed_calls, torch_threads
from accel.bench.transport import bench_transport
from accel.bench.upkeep import upkeep_row
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from compressors.artifact import CompressedPolicy
from compressors.errors import CompressorError
from compressors.plan import Plan
from compressors.runtime import PolicySession

SCHEMES = ("fp32", "fp16", "int8", "int8(per_channel)", "int8-dynamic", "prune(0.5)", "prune(0.5)+int8")
CARRIERS = ("none", "local", "mpi")
_BINDS, _BINDING_S = 3, 1.0
_STEP = 1e-3
_LEARNERS = ("requantise_ms", "serialise_ms", "schedule_ms", "upkeep_ms")

logger = logging.getLogger("accel")


class Times(NamedTuple):
    """Seconds of one refresh."""

    requantise: float
    serialise: float
    load: float


def bench_refresh(
    networks: Sequence[str] = ("mlp:64x2", "mlp:512x3"),
    *,
    envs: int = 8,
    schemes: Sequence[str] = SCHEMES,
    send: str = "none",
    spec: EnvSpec | None = None,
    config: TrainConfig | None = None,
    run: Path | None = None,
    activation: str = "tanh",
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time every part of bringing new weights to an actor, schemes in turns, on one thread.

        rows = bench_refresh(["mlp:512x3"], schemes=["fp32", "int8"], envs=8)

    The weights change before every refresh, so that nothing is saved by their being the same.

    Args:
        networks: network texts; with ``run`` its own network is measured and these are not looked at.
        envs: environments that the actor steps together: the batch of the session that is loaded and called.
        schemes: compression schemes. Full precision is always measured beside them.
        send: also time the journey to an actor on this machine: ``local`` or ``mpi``; ``none`` leaves it out.
        spec: observations and actions; None: those of ``config``'s environment, or ``default_spec``.
        config: a configuration whose environment gives layout and real inputs; inputs are random numbers without.
        run: a run's directory: its trained weights and its intervals, on inputs that it meets.
        activation: of mlp torsos with random weights, without ``config``.
        seconds: measuring time in all; binding and sending come on top.
        repeats: refreshes of each scheme at most.
        notify: told in a line what is refused.
    Returns:
        Flat rows: ``network``, ``scheme``, ``envs``, ``parameters``; ``bind_ms``, once per architecture;
        ``requantise_ms``, ``serialise_ms`` on the learner, ``send_ms`` (None where not asked for), ``load_ms`` on the
        actor (medians; each with ``_low`` and ``_high``, but for bind and send); ``refresh_ms_per_million_parameters``,
        the learner's part; ``schedule_ms`` and ``upkeep_ms``, a publication's share of what is not done for each one,
        beside the learner and in its thread (``accel.bench.upkeep``); ``bytes``; ``us`` per call of the loaded policy;
        ``weights``, ``kl``, ``ess``, ``greedy_agreement`` as of ``bench_policy``; ``saving_us_per_env_step`` against
        fp32; ``break_even_env_steps``: an actor that steps more than so often between two refreshes gains by the scheme
        against onnxruntime's fp32 (0: always, None: never, as its call is no faster);
        ``break_even_shared_env_steps``, the same where one core does everything else as well: the learner's part,
        upkeep and schedule; threads, machine and versions.
    Raises:
        ConfigError: an empty list, an unknown network or carrier, a count that is not positive, a run beside a config.
        SchemeError: an unknown scheme. EnvError, MissingExtraError: the environment cannot be made.
        RunDirectoryError, CheckpointError: the run cannot be read. LaunchError: mpirun does not work.
    """
    check_budget(seconds, repeats)
    (envs,) = check_counts((envs,), "envs")
    schemes = check_schemes(schemes)
    if send not in CARRIERS:
        raise ConfigError(f"unknown carrier {send!r}: choose from {', '.join(CARRIERS)}")
    if run is not None and (config is not None or spec is not None):
        raise ConfigError("a run brings its own environment and network: leave out the others")
    texts = ("",) if run is not None else check_networks(networks)
    if config is not None and spec is None:
        spec = environment_spec(config)
    rows: list[Row] = []
    with torch_threads():
        for text in texts:
            subject = make_subject(text, spec, config, run, activation)
            rows += _Contest(subject, envs, schemes, notify).measure(seconds / len(texts), repeats)
    _send(rows, send)
    rows = [row | _break_even(row, rows) for row in rows]
    shared: Row = {"torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


class _Contest:
    """One network under every scheme that takes it, refreshed in turns from weights that change every time."""

    def __init__(self, subject: Subject, envs: int, schemes: Sequence[str], notify: Notify) -> None:
        self._subject, self._envs = subject, envs
        self._plans: dict[str, Plan] = {}
        self._bind_ms: dict[str, float] = {}
        self._mismatches: dict[str, Row] = {}
        self._weights_change = _changing(subject.run.policy)
        logger.info("binding %s", subject.network)
        subject.bind(FULL_PRECISION)  # imports of the exporter are nobody's time
        for scheme in dict.fromkeys((FULL_PRECISION, *schemes)):
            try:
                plan, self._bind_ms[scheme] = _timed_bind(subject, scheme)
                subject.teach(plan)
                artifact = plan.refresh(subject.run.policy, 0)
                PolicySession(artifact, batch=envs)
                self._plans[scheme], self._mismatches[scheme] = plan, subject.mismatch_of(artifact)
            except CompressorError as error:
                if scheme == FULL_PRECISION:
                    raise
                notify(refusal(scheme, subject.network, error))

    def measure(self, budget_s: float, repeats: int) -> list[Row]:
        """Rows without what is sent."""
        logger.info("refreshing %s", self._subject.network)
        takers = {scheme: self._taker(plan) for scheme, plan in self._plans.items()}
        samples, cpu_share = interleave(takers, 0.8 * budget_s, repeats)
        artifacts = {scheme: plan.refresh(self._subject.run.policy, 1) for scheme, plan in self._plans.items()}
        calls_us = self._calls(artifacts, 0.2 * budget_s, repeats)
        upkeep = {scheme: upkeep_row(self._subject, scheme, plan) for scheme, plan in self._plans.items()}
        parameters = sum(tensor.numel() for tensor in self._subject.run.policy.parameters())
        rows: list[Row] = []
        for scheme, taken in samples.items():
            row: Row = {"network": self._subject.network, "scheme": scheme, "envs": self._envs}
            row |= {"parameters": parameters, "bind_ms": self._bind_ms[scheme]}
            for name in ("requantise", "serialise", "load"):
                row |= spread(f"{name}_ms", [1e3 * getattr(times, name) for times in taken])
            learner_ms = [1e3 * (times.requantise + times.serialise) for times in taken]
            row |= {"refresh_ms_per_million_parameters": float(np.median(learner_ms)) * 1e6 / parameters}
            row |= upkeep[scheme] | self._mismatches[scheme]
            row |= {"weights": self._subject.weights, "inputs": self._subject.source}
            row |= {"bytes": len(artifacts[scheme].to_bytes()), "samples": len(taken), "cpu_share": cpu_share}
            rows.append(row | spread("us", calls_us[scheme]))
        return rows

    def _taker(self, plan: Plan) -> Callable[[], Times]:
        policy, envs = self._subject.run.policy, self._envs

        def take() -> Times:
            next(self._weights_change)
            began = time.perf_counter()
            artifact = plan.refresh(policy, 1)
            requantised = time.perf_counter()
            payload = artifact.to_bytes()
            serialised = time.perf_counter()
            PolicySession(CompressedPolicy.from_bytes(payload), batch=envs)
            return Times(requantised - began, serialised - requantised, time.perf_counter() - serialised)

        return take

    def _calls(
        self, artifacts: Mapping[str, CompressedPolicy], budget_s: float, repeats: int
    ) -> dict[str, list[float]]:
        """Microseconds of calls of the loaded policies."""
        inputs = {n: np.resize(a, (self._envs, *a.shape[1:])) for n, a in self._subject.held_out.items()}
        takers = {scheme: timed_calls(session_call(artifact, inputs)) for scheme, artifact in artifacts.items()}
        return interleave(takers, budget_s, repeats).samples


def _timed_bind(subject: Subject, scheme: str) -> tuple[Plan, float]:
    """The plan, and the median milliseconds of a few binds, calibration included."""
    times_ms: list[float] = []
    while True:
        began = time.perf_counter()
        plan = subject.bind(scheme)
        times_ms.append((time.perf_counter() - began) * 1e3)
        if len(times_ms) == _BINDS or sum(times_ms) > _BINDING_S * 1e3:
            return plan, float(np.median(times_ms))


def _changing(policy: torch.nn.Module) -> Iterator[None]:
    """Every ``next`` moves the weights a little, to and fro."""
    generator = torch.Generator().manual_seed(0)
    weights: list[torch.Tensor] = list(policy.parameters())
    moves = [_STEP * torch.randn(weight.shape, generator=generator) for weight in weights]
    for sign in cycle((1.0, -1.0)):
        with torch.no_grad():
            torch._foreach_add_(weights, moves, alpha=sign)
        yield


def _send(rows: list[Row], carrier: str) -> None:
    """Add ``send_ms``: the median journey of as many bytes, from publish() to the actor's hands."""
    journeys: dict[int, float] = {}
    if carrier != "none":
        sizes = sorted({int(number(row, "bytes")) for row in rows})
        logger.info("sending over %s", carrier)
        found = bench_transport(sizes=sizes, repeats=20, carriers=(carrier,))
        journeys = {int(number(row, "bytes")): number(row, "us") / 1e3 for row in found if row["direction"] == "policy"}
    for row in rows:
        row["send_ms"] = journeys.get(int(number(row, "bytes")))
        row["carrier"] = carrier


def _break_even(row: Row, rows: Sequence[Row]) -> Row:
    """From how many environment steps per refresh on the faster call makes up for the slower refresh."""
    baseline = next(r for r in rows if r["network"] == row["network"] and r["scheme"] == FULL_PRECISION)
    saving_us = (number(baseline, "us") - number(row, "us")) / number(row, "envs")
    pays = is_faster(row, baseline, "us")
    actor_ms = _sum(row, ("load_ms", "send_ms")) - _sum(baseline, ("load_ms", "send_ms"))
    learner_ms = _sum(row, _LEARNERS) - _sum(baseline, _LEARNERS)
    return {
        "saving_us_per_env_step": saving_us,
        "break_even_env_steps": max(0.0, actor_ms * 1e3 / saving_us) if pays else None,
        "break_even_shared_env_steps": max(0.0, (actor_ms + learner_ms) * 1e3 / saving_us) if pays else None,
    }


def _sum(row: Row, names: Sequence[str]) -> float:
    return sum(number(row, name) for name in names if row[name] is not None)
