"""Milliseconds from new weights to a loaded policy, and the break-even refresh interval."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import numpy as np
import torch

from accel.bench.checks import SCHEMES, check_budget, check_counts, check_schemes
from accel.bench.policies import MeasuredPolicy, Policies, refusal
from accel.bench.policy import session_call
from accel.bench.rows import FULL_PRECISION, Notify, Row, is_faster, number, provenance, spread
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CompressorError
from accel.compressors.plan import Plan
from accel.compressors.runtime import PolicySession
from accel.monitor.timers import PhaseTimer
from accel.networks.policy import PolicyModule
from accel.system.timing import interleave, timed_calls, torch_threads

_BINDS, _BINDING_S = 3, 1.0
_STEP = 1e-3

logger = logging.getLogger("accel")


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
        policies: what is refreshed.
        envs: environments that the actor steps together: the batch of the session that is loaded and called.
        schemes: compression schemes. Full precision is always measured too.
        seconds: total measuring time, without binding.
        repeats: refreshes of each scheme at most.
        notify: called with a message about each refused scheme.
    Returns:
        Flat rows: ``network``, ``scheme``, ``envs``, ``parameters``; ``bind_ms``, once per architecture;
        ``requantise_ms``, ``serialise_ms`` on the learner, ``load_ms`` on the actor (medians; all but bind with
        ``_low`` and ``_high``); ``refresh_ms_per_million_parameters``, the learner's part; ``bytes``; ``us`` per call
        of the loaded policy; ``weights``, ``kl``, ``ess``, ``greedy_agreement`` as of ``bench_policy``;
        ``saving_us_per_env_step`` against fp32; ``break_even_env_steps``, the fewest environment steps per refresh at
        which an actor is faster than with fp32 (0: always, None: never, as the call is no faster); threads, machine
        and versions.
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
            rows += _measure(policy, envs, schemes, seconds / len(policies), repeats, notify)
    rows = [row | break_even(row, rows) for row in rows]
    shared: Row = {"torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


def _measure(
    measured: MeasuredPolicy, envs: int, schemes: Sequence[str], budget_s: float, repeats: int, notify: Notify
) -> list[Row]:
    """A row for each scheme that the network supports, refreshed in turns from changing weights."""
    policy = measured.run.policy
    plans: dict[str, Plan] = {}
    found: dict[str, Row] = {}
    weights_change = changing_weights(policy)
    logger.info("binding %s", measured.network)
    measured.bind(FULL_PRECISION)  # the first export imports the exporter
    for scheme in dict.fromkeys((FULL_PRECISION, *schemes)):
        try:
            plan, bind_ms = _timed_bind(measured, scheme)
            measured.teach(plan)
            artifact = plan.refresh(policy, 0)
            PolicySession(artifact, batch=envs)
            plans[scheme], found[scheme] = plan, {"bind_ms": bind_ms, **measured.mismatch_of(artifact)}
        except CompressorError as error:
            if scheme == FULL_PRECISION:
                raise
            notify(refusal(scheme, measured.network, error))
    logger.info("refreshing %s", measured.network)
    takers = {scheme: _taker(policy, plan, envs, weights_change) for scheme, plan in plans.items()}
    samples, cpu_share = interleave(takers, 0.8 * budget_s, repeats)
    artifacts = {scheme: plan.refresh(policy, 1) for scheme, plan in plans.items()}
    inputs = measured.first_inputs(envs)
    calls = {scheme: timed_calls(session_call(artifact, inputs)) for scheme, artifact in artifacts.items()}
    calls_us = interleave(calls, 0.2 * budget_s, repeats).samples
    parameters = sum(tensor.numel() for tensor in policy.parameters())
    rows: list[Row] = []
    for scheme, taken in samples.items():
        row: Row = {"network": measured.network, "scheme": scheme, "envs": envs, "parameters": parameters}
        for name in taken[0]:
            row |= spread(f"{name}_ms", [times_ms[name] for times_ms in taken])
        learner_ms = [times_ms["requantise"] + times_ms["serialise"] for times_ms in taken]
        row |= {"refresh_ms_per_million_parameters": float(np.median(learner_ms)) * 1e6 / parameters}
        row |= found[scheme]
        row |= {"weights": measured.weights, "inputs": measured.source}
        row |= {"bytes": len(artifacts[scheme].to_bytes()), "samples": len(taken), "cpu_share": cpu_share}
        rows.append(row | spread("us", calls_us[scheme]))
    return rows


def _taker(
    policy: PolicyModule, plan: Plan, envs: int, weights_change: Iterator[None]
) -> Callable[[], dict[str, float]]:
    """A contestant for ``interleave``: milliseconds of each part of one refresh."""

    def take() -> dict[str, float]:
        next(weights_change)
        clock = PhaseTimer(("requantise", "serialise", "load"))
        artifact = plan.refresh(policy, 1)
        clock.mark("requantise")
        payload = artifact.to_bytes()
        clock.mark("serialise")
        PolicySession(CompressedPolicy.from_bytes(payload), batch=envs)
        clock.mark("load")
        return {part: 1e3 * seconds for part, seconds in clock.snapshot().items()}

    return take


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
