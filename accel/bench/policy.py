"""Time, size and mismatch of a policy call, numpy observations to numpy parameters, by runtime and scheme."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from accel.acting.torch_policy import memory_format, serialise_module
from accel.bench.checks import RUNTIMES, SCHEMES, check_budget, check_counts, check_runtimes, check_schemes
from accel.bench.policies import NO_MISMATCH, Inputs, MeasuredPolicy, Policies, placed
from accel.bench.rows import FULL_PRECISION, Notify, Row, provenance, speedups, spread
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
            rows += _measure(policy, batches, schemes, runtimes, budget_s, repeats, notify)
    shared = provenance()
    return [row | shared for row in rows]


def _measure(
    policy: MeasuredPolicy,
    batches: Sequence[int],
    schemes: Sequence[str],
    runtimes: Sequence[str],
    budget_s: float,
    repeats: int,
    notify: Notify,
) -> list[Row]:
    logger.info("compressing %s", policy.network)
    artifacts = policy.artifacts(schemes, notify) if {*runtimes} & {"onnxruntime", "native"} else {}
    sessions = placed(artifacts, runtimes, notify)
    mismatches = {scheme: policy.mismatch_of(artifact) for scheme, artifact in artifacts.items()}
    torch_bytes = len(serialise_module(policy.run.policy))
    rows: list[Row] = []
    for batch in batches:
        inputs = {name: np.resize(a, (batch, *a.shape[1:])) for name, a in policy.held_out.items()}
        calls: dict[tuple[str, str], Call] = {}
        if "torch" in runtimes:
            calls["torch", FULL_PRECISION] = torch_call(policy.run, inputs)
        calls |= {(runtime, scheme): session_call(artifact, inputs, runtime) for runtime, scheme, artifact in sessions}
        logger.info("measuring %s, batch %d", policy.network, batch)
        with torch.inference_mode():
            takers = {key: timed_calls(call) for key, call in calls.items()}
            samples, cpu_share = interleave(takers, budget_s, repeats)
        cells: list[Row] = []
        for (runtime, scheme), times_us in samples.items():
            is_compressed = runtime != "torch"
            size = len(artifacts[scheme].to_bytes()) if is_compressed else torch_bytes
            cell: Row = {"network": policy.network, "batch": batch, "runtime": runtime, "scheme": scheme}
            cell |= spread("us", times_us) | {"bytes": size, "samples": len(times_us), "cpu_share": cpu_share}
            cells.append(cell | (mismatches[scheme] if is_compressed else NO_MISMATCH))
        rows += [row | speedups(row, cells, "us") for row in cells]
    shared: Row = {"weights": policy.weights, "inputs": policy.source, "torch_threads": 1, "onnxruntime_threads": 1}
    return [row | shared for row in rows]


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
