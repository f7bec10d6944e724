"""Time, size and mismatch of a policy call, numpy observations to numpy parameters, by runtime and scheme."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accel.acting.torch_policy import serialise_module
from accel.bench.checks import RUNTIMES, SCHEMES, check_budget, check_counts, check_runtimes, check_schemes
from accel.bench.policies import NO_MISMATCH, Inputs, MeasuredPolicy, Policies, placed
from accel.bench.rows import FULL_PRECISION, Notify, Row, provenance, speedups, spread
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.runtime import PolicySession, Runtime
from accel.runs.trained_policy import TrainedPolicy
from accel.system.timing import interleave, timed_calls, torch_threads

Call = Callable[[], npt.NDArray[np.generic]]

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"

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
        runtimes: any of ``torch`` (eager, in the memory format that is faster here), ``onnxruntime`` and ``native``
            (compiled kernels, for the policies that these run here).
        seconds: total measuring time, without exporting and compressing.
        repeats: samples of each cell at most, each 2 ms or one call.
        notify: called with a message about each scheme or runtime that does not work here.
    Returns:
        Flat rows: ``network``, ``batch``, ``runtime``, ``scheme``; ``us``, ``us_low``, ``us_high`` (median, 10th and
        90th percentile of a call, µs); ``bytes`` of the serialised policy; ``speedup_torch``, ``speedup_fp32``
        (against torch eager, and against onnxruntime's fp32; None where that was not measured); ``kl``, ``ess``,
        ``greedy_agreement`` against torch on held-out inputs (KL(fp32‖scheme) in nats; None on torch); ``weights``
        (``random`` ones say little about mismatch) and ``inputs``; ``memory_format``; threads, machine
        and versions.
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
        calls = _calls(policy, inputs, runtimes, sessions)
        logger.info("measuring %s, batch %d", policy.network, batch)
        with torch.inference_mode():
            takers = {key: timed_calls(call) for key, call in calls.items()}
            samples, cpu_share = interleave(takers, budget_s, repeats)
        cells: list[Row] = []
        for (runtime, scheme), (detail, times_us) in _faster_formats(samples).items():
            is_compressed = runtime != "torch"
            size = len(artifacts[scheme].to_bytes()) if is_compressed else torch_bytes
            cell: Row = {"network": policy.network, "batch": batch, "runtime": runtime, "scheme": scheme}
            cell |= spread("us", times_us) | {"bytes": size, "samples": len(times_us), "cpu_share": cpu_share}
            cell |= mismatches.get(scheme, NO_MISMATCH) if is_compressed else NO_MISMATCH
            cell |= {"memory_format": detail}
            cells.append(cell)
        rows += [row | speedups(row, cells, "us") for row in cells]
    shared: Row = {"weights": policy.weights, "inputs": policy.source, "torch_threads": 1, "onnxruntime_threads": 1}
    return [row | shared for row in rows]


def _calls(
    policy: MeasuredPolicy,
    inputs: Inputs,
    runtimes: Sequence[str],
    sessions: Sequence[tuple[Runtime, str, CompressedPolicy]],
) -> dict[tuple[str, str, str | None], Call]:
    """Calls by runtime, scheme and memory format for one batch."""
    calls: dict[tuple[str, str, str | None], Call] = {}
    if "torch" in runtimes:
        with torch.inference_mode():
            for layout, module in eager_modules(policy.run).items():
                calls["torch", FULL_PRECISION, layout] = torch_call(module, inputs, layout)
    for runtime, scheme, artifact in sessions:
        calls[runtime, scheme, None] = session_call(artifact, inputs, runtime)
    return calls


def _faster_formats(
    samples: dict[tuple[str, str, str | None], list[float]],
) -> dict[tuple[str, str], tuple[str | None, list[float]]]:
    """For each runtime and scheme, the memory format with the lower median, and its samples."""
    chosen: dict[tuple[str, str], tuple[str | None, list[float]]] = {}
    for (runtime, scheme, layout), times_us in sorted(samples.items(), key=lambda item: float(np.median(item[1]))):
        chosen.setdefault((runtime, scheme), (layout, times_us))
    return {(runtime, scheme): chosen[runtime, scheme] for runtime, scheme, _ in samples}


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


def torch_call(module: Callable[..., tuple[torch.Tensor, ...]], inputs: Inputs, memory_format: str) -> Call:
    """An eager module; call it within ``torch.inference_mode``."""
    arrays = [np.ascontiguousarray(array) for array in inputs.values()]
    states = [array for name, array in zip(inputs, arrays, strict=True) if name.startswith("state_")]
    observed = arrays[: len(arrays) - len(states)]
    carried = [torch.from_numpy(state) for state in states]
    channels_last = memory_format == CHANNELS_LAST

    def call() -> npt.NDArray[np.generic]:
        tensors = [torch.from_numpy(part) for part in observed]
        if channels_last:
            tensors = [tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors]
        params, *carried[:] = module(*tensors, *carried)
        array: npt.NDArray[np.generic] = params.numpy()
        return array

    return call


def eager_modules(run: TrainedPolicy) -> dict[str, nn.Module]:
    """The policy by memory format: convolutions may be faster with channels last."""
    modules: dict[str, nn.Module] = {CONTIGUOUS: run.policy}
    if run.spec.is_image and any(isinstance(part, nn.Conv2d) for part in run.policy.modules()):
        modules[CHANNELS_LAST] = copy.deepcopy(run.policy).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return modules
