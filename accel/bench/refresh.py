"""Milliseconds from new weights to a loaded policy, upkeep between refreshes, and the break-even refresh interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from accel.bench.checks import SCHEMES, check_budget, check_counts, check_schemes
from accel.bench.policies import Inputs, MeasuredPolicy, Policies, refusal
from accel.bench.policy import session_call
from accel.bench.rows import FULL_PRECISION, Notify, Row, is_faster, number, provenance, spread
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import verify_artifact
from accel.compressors.errors import CompressorError
from accel.compressors.plan import Plan
from accel.compressors.qat.fake_quantiser import is_quantisation_aware
from accel.compressors.runtime import PolicySession
from accel.compressors.scheme import parse_scheme
from accel.publishing.background import Snapshot, UpkeepTask, perform_upkeep
from accel.publishing.level import (
    DISTILL_IMAGES,
    DISTILL_ROWS,
    DRIFT_IMAGES,
    DRIFT_ROWS,
    INTERVALS,
    REFIT_STEPS,
    distillation_schedule,
    interval_updates,
)
from accel.publishing.validation import FULL_IMAGES, FULL_ROWS
from accel.system.timing import interleave, timed_calls, torch_threads

_BINDS, _BINDING_S = 3, 1.0
_UPKEEP_TIMES = 3
_STEP = 1e-3

logger = logging.getLogger("accel")


class RefreshTimes(NamedTuple):
    """Seconds of one refresh."""

    requantise: float
    serialise: float
    load: float


def bench_refresh(
    policies: Policies,
    *,
    envs: int = 8,
    schemes: Sequence[str] = SCHEMES,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time each part of a refresh, from new weights to a loaded policy, schemes in turns, on one thread.

        rows = bench_refresh(Policies(["mlp:512x3"]), schemes=["fp32", "int8"], envs=8)

    The weights change before each refresh, so that no cached result is reused.

    Args:
        policies: what is refreshed; a run brings its optimiser steps an update.
        envs: environments that the actor steps together: the batch of the session that is loaded and called.
        schemes: compression schemes. Full precision is always measured too.
        seconds: total measuring time, without binding.
        repeats: refreshes of each scheme at most.
        notify: called with a message about each refused scheme.
    Returns:
        Flat rows: ``network``, ``scheme``, ``envs``, ``parameters``; ``bind_ms``, once per architecture;
        ``requantise_ms``, ``serialise_ms`` on the learner, ``load_ms`` on the actor (medians; all but bind with
        ``_low`` and ``_high``); ``refresh_ms_per_million_parameters``, the learner's part; ``schedule_ms`` and
        ``upkeep_ms``, the cost per publication of periodic work, see ``upkeep_row``; ``bytes``; ``us`` per call of the
        loaded policy;
        ``weights``, ``kl``, ``ess``, ``greedy_agreement`` as of ``bench_policy``; ``saving_us_per_env_step`` against
        fp32; ``break_even_env_steps``, the fewest environment steps per refresh at which an actor is faster than with
        fp32 (0: always, None: never, as the call is no faster); threads, machine and versions.
    Raises:
        ConfigError: an empty list, a count that is not positive.
        SchemeError: an unknown scheme. What ``Policies`` raises.
    """
    check_budget(seconds, repeats)
    (envs,) = check_counts((envs,), "envs")
    schemes = check_schemes(schemes)
    rows: list[Row] = []
    with torch_threads():
        for policy in policies:
            rows += _Refreshes(policy, envs, schemes, notify).measure(seconds / len(policies), repeats)
    rows = [row | break_even(row, rows) for row in rows]
    shared: Row = {"torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


class _Refreshes:
    """One network under each scheme that supports it, refreshed in turns from changing weights."""

    def __init__(self, measured: MeasuredPolicy, envs: int, schemes: Sequence[str], notify: Notify) -> None:
        self._measured, self._envs = measured, envs
        self._plans: dict[str, Plan] = {}
        self._bind_ms: dict[str, float] = {}
        self._mismatches: dict[str, Row] = {}
        self._weights_change = changing_weights(measured.run.policy)
        logger.info("binding %s", measured.network)
        measured.bind(FULL_PRECISION)  # the first export imports the exporter
        for scheme in dict.fromkeys((FULL_PRECISION, *schemes)):
            try:
                plan, self._bind_ms[scheme] = _timed_bind(measured, scheme)
                measured.teach(plan)
                artifact = plan.refresh(measured.run.policy, 0)
                PolicySession(artifact, batch=envs)
                self._plans[scheme], self._mismatches[scheme] = plan, measured.mismatch_of(artifact)
            except CompressorError as error:
                if scheme == FULL_PRECISION:
                    raise
                notify(refusal(scheme, measured.network, error))

    def measure(self, budget_s: float, repeats: int) -> list[Row]:
        """A row for each scheme."""
        logger.info("refreshing %s", self._measured.network)
        takers = {scheme: self._taker(plan) for scheme, plan in self._plans.items()}
        samples, cpu_share = interleave(takers, 0.8 * budget_s, repeats)
        artifacts = {scheme: plan.refresh(self._measured.run.policy, 1) for scheme, plan in self._plans.items()}
        calls_us = self._calls(artifacts, 0.2 * budget_s, repeats)
        upkeep = {scheme: upkeep_row(self._measured, scheme, plan) for scheme, plan in self._plans.items()}
        parameters = sum(tensor.numel() for tensor in self._measured.run.policy.parameters())
        rows: list[Row] = []
        for scheme, taken in samples.items():
            row: Row = {"network": self._measured.network, "scheme": scheme, "envs": self._envs}
            row |= {"parameters": parameters, "bind_ms": self._bind_ms[scheme]}
            for name in ("requantise", "serialise", "load"):
                row |= spread(f"{name}_ms", [1e3 * getattr(times, name) for times in taken])
            learner_ms = [1e3 * (times.requantise + times.serialise) for times in taken]
            row |= {"refresh_ms_per_million_parameters": float(np.median(learner_ms)) * 1e6 / parameters}
            row |= upkeep[scheme] | self._mismatches[scheme]
            row |= {"weights": self._measured.weights, "inputs": self._measured.source}
            row |= {"bytes": len(artifacts[scheme].to_bytes()), "samples": len(taken), "cpu_share": cpu_share}
            rows.append(row | spread("us", calls_us[scheme]))
        return rows

    def _taker(self, plan: Plan) -> Callable[[], RefreshTimes]:
        policy, envs = self._measured.run.policy, self._envs

        def take() -> RefreshTimes:
            next(self._weights_change)
            began = time.perf_counter()
            artifact = plan.refresh(policy, 1)
            requantised = time.perf_counter()
            payload = artifact.to_bytes()
            serialised = time.perf_counter()
            PolicySession(CompressedPolicy.from_bytes(payload), batch=envs)
            return RefreshTimes(requantised - began, serialised - requantised, time.perf_counter() - serialised)

        return take

    def _calls(
        self, artifacts: Mapping[str, CompressedPolicy], budget_s: float, repeats: int
    ) -> dict[str, list[float]]:
        """Microseconds of calls of the loaded policies."""
        inputs = {n: np.resize(a, (self._envs, *a.shape[1:])) for n, a in self._measured.held_out.items()}
        takers = {scheme: timed_calls(session_call(artifact, inputs)) for scheme, artifact in artifacts.items()}
        return interleave(takers, budget_s, repeats).samples


def _timed_bind(measured: MeasuredPolicy, scheme: str) -> tuple[Plan, float]:
    """The plan, and the median milliseconds of a few binds, calibration included."""
    times_ms: list[float] = []
    while True:
        began = time.perf_counter()
        plan = measured.bind(scheme)
        times_ms.append((time.perf_counter() - began) * 1e3)
        if len(times_ms) == _BINDS or sum(times_ms) > _BINDING_S * 1e3:
            return plan, float(np.median(times_ms))


def changing_weights(policy: torch.nn.Module) -> Iterator[None]:
    """Each ``next`` moves the weights a little, alternating in sign."""
    generator = torch.Generator().manual_seed(0)
    weights: list[torch.Tensor] = list(policy.parameters())
    moves = [_STEP * torch.randn(weight.shape, generator=generator) for weight in weights]
    for sign in cycle((1.0, -1.0)):
        with torch.no_grad():
            torch._foreach_add_(weights, moves, alpha=sign)
        yield


def break_even(row: Row, rows: Sequence[Row]) -> Row:
    """The environment steps per refresh at which the faster call makes up for the slower refresh."""
    baseline = next(r for r in rows if r["network"] == row["network"] and r["scheme"] == FULL_PRECISION)
    saving_us = (number(baseline, "us") - number(row, "us")) / number(row, "envs")
    pays = is_faster(row, baseline, "us")
    actor_ms = number(row, "load_ms") - number(baseline, "load_ms")
    steps = max(0.0, actor_ms * 1e3 / saving_us) if pays else None
    return {"saving_us_per_env_step": saving_us, "break_even_env_steps": steps}


@dataclass(frozen=True)
class UpkeepCost:
    """The cost of one kind of upkeep.

    Attributes:
        interval_updates: learner updates between two of them in a long run; the first ones follow more closely.
        worker_s: seconds in the background thread.
        learner_s: seconds in the learner's thread.
    """

    interval_updates: int
    worker_s: float
    learner_s: float


def upkeep_row(measured: MeasuredPolicy, scheme: str, plan: Plan) -> Row:
    """``schedule_ms`` and ``upkeep_ms``: the cost per publication of the work that runs at its own intervals.

    ``schedule_ms`` is spent in a background thread of lower priority (in the learner's where ``actors`` = 0):
    distillation steps, choices of channels and bases, calibration, drift detection. ``upkeep_ms`` is spent in the
    learner's thread, where an update waits for it: copying the policy for that work, adopting its results,
    least-squares compensation for pruned channels, and checks of artifacts. Each is the fastest of three; intervals are
    those of the policy's configuration.
    """
    costs = measure_upkeep(measured, scheme, plan)
    config = measured.run.config
    found = {"schedule_ms": 0.0, "upkeep_ms": 0.0}
    for cost in costs.values():
        share = 1e3 * config.schedule.publish_interval_updates / cost.interval_updates
        found["schedule_ms"] += share * cost.worker_s
        found["upkeep_ms"] += share * cost.learner_s
    return dict(found)


def measure_upkeep(measured: MeasuredPolicy, scheme: str, plan: Plan) -> dict[str, UpkeepCost]:
    """The cost of each kind of upkeep that ``accel.publishing.level`` does for the scheme, by name."""
    run, config, every = measured.run, measured.run.config, measured.calibration
    names = {method.name for method in parse_scheme(scheme).methods}
    rounds = is_quantisation_aware(scheme)
    reduces = not names.isdisjoint({"prune", "lowrank"}) and not rounds
    tasks: dict[str, tuple[int, UpkeepTask]] = {}
    if scheme != FULL_PRECISION:
        interval = interval_updates(config, INTERVALS.calibration)
        tasks["calibration"] = interval, UpkeepTask(calibration=every)
        if plan.statistics.calibrations:
            interval = interval_updates(config, INTERVALS.drift)
            few = _first(every, DRIFT_IMAGES if run.spec.has_images else DRIFT_ROWS)
            tasks["drift"] = interval, UpkeepTask(drift_inputs=few)
        if reduces:
            interval = interval_updates(config, INTERVALS.reselect)
            tasks["selection"] = interval, UpkeepTask(reselects=True, calibration=every)
        if "distill" in names:
            rows = _first(every, DISTILL_IMAGES if run.spec.has_images else DISTILL_ROWS)
            batch = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
            interval, trainings = distillation_schedule(config, INTERVALS)
            tasks["distill"] = interval, UpkeepTask(distill_batches=[batch] * trainings)
    costs = {name: _task_cost(interval, task, measured, plan) for name, (interval, task) in tasks.items()}
    if reduces and "prune" in names:
        refit_s = _fastest(lambda: plan.refit(run.policy, every))
        costs["refit"] = UpkeepCost(interval_updates(config, REFIT_STEPS), 0.0, refit_s)
    checked = _first(every, FULL_IMAGES if run.spec.has_images else FULL_ROWS)

    def measure(reference: npt.NDArray[np.generic], acting: npt.NDArray[np.generic]) -> float:
        return float(run.divergence.of_rows(reference, acting).mean())

    artifact = plan.refresh(run.policy, 0)
    check_s = _fastest(lambda: verify_artifact(artifact, run.policy, checked, None, measure=measure))
    costs["check"] = UpkeepCost(interval_updates(config, INTERVALS.check), 0.0, check_s)
    return costs


def _task_cost(interval_updates: int, task: UpkeepTask, measured: MeasuredPolicy, plan: Plan) -> UpkeepCost:
    policy, cancelled = measured.run.policy, threading.Event()
    copy = Snapshot(policy, next(policy.parameters()).device)
    worker_s, learner_s = [], []
    for _ in range(_UPKEEP_TIMES):
        learner_s.append(_seconds(copy.take))
        began = time.perf_counter()
        result = perform_upkeep(task, plan, copy.module, cancelled)
        worker_s.append(time.perf_counter() - began)
        if result is not None:
            learner_s[-1] += _seconds(result.update.commit)
    return UpkeepCost(interval_updates, min(worker_s), min(learner_s))


def _fastest(run: Callable[[], object]) -> float:
    return min(_seconds(run) for _ in range(_UPKEEP_TIMES))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _first(inputs: Inputs, rows: int) -> Inputs:
    return {name: values[:rows] for name, values in inputs.items()}
