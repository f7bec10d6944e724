"""Time, size and mismatch of a policy call, numpy observations to numpy parameters, by runtime and scheme."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from accel.acting.torch_policy import memory_format
from accel.bench.checks import RUNTIMES, SCHEMES, check_budget, check_counts, check_runtimes, check_schemes
from accel.bench.policies import Inputs, MeasuredPolicy, Policies, Variant
from accel.bench.rows import Notify, Row, provenance, speedups, spread
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.runtime import PolicySession, Runtime
from accel.runs.trained_policy import TrainedPolicy
from accel.system.timing import interleave, timed_calls, torch_threads

Call = Callable[[], npt.NDArray[np.generic]]

logger = logging.getLogger("accel")


def bench_policy(
    policies: Policies,
    *,
    batches: Sequence[int] = (1, 8, 64),
    schemes: Sequence[str] = SCHEMES,
    runtimes: Sequence[str] = RUNTIMES,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time one call of a policy on one thread, runtimes and schemes in turns, and measure the schemes' mismatch.

        rows = bench_policy(Policies(["mlp:256x2"]), batches=[8], schemes=["fp32", "int8"])

    Args:
        policies: what is measured.
        batches: rows per call: environments that one actor steps together.
        schemes: compression schemes. Full precision is always measured too.
        runtimes: any of ``torch`` (eager, as torch actors run it), ``onnxruntime`` and ``native`` (compiled kernels,
            for the policies that these run here).
        seconds: total measuring time, without exporting and compressing.
        repeats: samples of each cell at most, each 2 ms or one call.
        notify: called with a message about each scheme or runtime that does not work here.
    Returns:
        Flat rows: ``network``, ``batch``, ``runtime``, ``scheme``; ``us``, ``us_low``, ``us_high`` (median, 10th and
        90th percentile of a call, µs); ``bytes`` of the serialised policy; ``speedup_torch``, ``speedup_fp32``
        (against torch eager, and against onnxruntime's fp32; None where that was not measured); ``kl``, ``ess``,
        ``greedy_agreement`` against torch on held-out inputs (KL(fp32‖scheme) in nats; None on torch); ``weights``
        (``random`` ones say little about mismatch) and ``inputs``; threads, machine and versions.
    Raises:
        ConfigError: an empty list, an unknown runtime, a batch that is not positive.
        SchemeError: an unknown scheme. What ``Policies`` raises.
    """
    check_budget(seconds, repeats)
    batches, schemes = check_counts(batches, "batch"), check_schemes(schemes)
    check_runtimes(runtimes)
    rows: list[Row] = []
    budget_s = seconds / len(policies) / len(batches)
    with torch_threads():
        for policy in policies:
            logger.info("compressing %s", policy.network)
            variants = policy.variants(schemes, runtimes, notify)
            for batch in batches:
                logger.info("measuring %s, batch %d", policy.network, batch)
                rows += _measure(policy, variants, batch, budget_s, repeats)
    shared: Row = {"torch_threads": 1, "onnxruntime_threads": 1} | provenance()
    return [row | shared for row in rows]


def _measure(
    policy: MeasuredPolicy, variants: Sequence[Variant], batch: int, budget_s: float, repeats: int
) -> list[Row]:
    """A row for each variant."""
    inputs = policy.first_inputs(batch)
    with torch.inference_mode():
        takers = {variant: timed_calls(variant_call(policy, variant, inputs)) for variant in variants}
        samples, cpu_share = interleave(takers, budget_s, repeats)
    cells: list[Row] = []
    for variant, times_us in samples.items():
        cell: Row = {"network": policy.network, "batch": batch, "runtime": variant.runtime, "scheme": variant.scheme}
        cell |= spread("us", times_us) | {"bytes": len(variant.payload), "samples": len(times_us)}
        cells.append(cell | variant.mismatch | {"weights": policy.weights, "inputs": policy.source})
    return [row | speedups(row, cells, "us") | {"cpu_share": cpu_share} for row in cells]


def variant_call(policy: MeasuredPolicy, variant: Variant, inputs: Inputs) -> Call:
    """One call of a variant on these inputs."""
    if variant.artifact is None:
        return torch_call(policy.run, inputs)
    return session_call(variant.artifact, inputs, "native" if variant.runtime == "native" else "onnxruntime")


def session_call(artifact: CompressedPolicy, inputs: Inputs, runtime: Runtime = "native") -> Call:
    """As an actor calls a session: copy observations in, run, carry the recurrent state over. Raises ArtifactError."""
    session = PolicySession(artifact, batch=len(next(iter(inputs.values()))), runtime=runtime)
    for name, array in session.inputs.items():
        array[...] = inputs[name]
    arrays = list(session.inputs.values())
    count = len(arrays) - len(session.outputs) + 1
    observed = list(zip(arrays[:count], map(np.ascontiguousarray, inputs.values()), strict=False))
    states = arrays[count:]
    params, *following = session.outputs.values()
    carried = list(zip(states, following, strict=True))
    run = session.run

    def call() -> npt.NDArray[np.generic]:
        for target, part in observed:
            target[...] = part
        run()
        for state, next_state in carried:
            state[...] = next_state
        return params

    return call


def torch_call(run: TrainedPolicy, inputs: Inputs) -> Call:
    """Torch eager, as a torch actor runs the policy; call it within ``torch.inference_mode``."""
    layout = memory_format(run.policy, run.spec)
    module = copy.deepcopy(run.policy).to(memory_format=layout)  # type: ignore[call-overload]
    arrays = [np.ascontiguousarray(array) for array in inputs.values()]
    states = [array for name, array in zip(inputs, arrays, strict=True) if name.startswith("state_")]
    observed = arrays[: len(arrays) - len(states)]
    carried = [torch.from_numpy(state) for state in states]

    def call() -> npt.NDArray[np.generic]:
        tensors = [torch.from_numpy(part).contiguous(memory_format=layout) for part in observed]
        params, *carried[:] = module(*tensors, *carried)
        array: npt.NDArray[np.generic] = params.numpy()
        return array

    return call
