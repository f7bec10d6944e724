"""A scheme against fp32 on this machine: speed, measured in turns, and mismatch, on a run's own observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from accel.algorithms.distributions import ActionDistribution
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.executed_kernels import weight_only_layers
from accel.compressors.runtime import PolicySession, Runtime
from accel.envs.spaces import ActionSpec
from accel.runs.summary import SchemeComparison

ROUNDS = 25
ROUND_S = 0.002

Array = npt.NDArray[np.generic]


def compare_with_fp32(
    artifact: CompressedPolicy,
    fp32: CompressedPolicy,
    inputs: Mapping[str, Array],
    distribution: Callable[[torch.Tensor], ActionDistribution],
    action: ActionSpec,
    *,
    batch: int,
    env_us: float,
    runtime: Runtime = "native",
) -> SchemeComparison:
    """Time both policies in turns and compare their outputs; takes about a tenth of a second.

    Args:
        artifact: the compressed policy. fp32: the same weights, uncompressed.
        inputs: [N, *shape] by input name, real ones.
        distribution: of outputs [N, P]. action: the action space.
        batch: rows per call, as on an actor.
        env_us: duration of a vector step of the environments, for comparison.
        runtime: see ``PolicySession``.
    """
    sessions = [PolicySession(a, batch=batch, runtime=runtime) for a in (artifact, fp32)]
    rows = len(next(iter(inputs.values())))
    order = np.resize(np.arange(rows), batch)
    for session in sessions:
        for name, values in inputs.items():
            session.inputs[name][...] = values[order]
    samples: list[list[float]] = [[], []]
    calls = max(int(ROUND_S / max(_seconds(sessions[1], 3), 1e-7)), 1)
    for turn in range(ROUNDS):
        for k in (0, 1) if turn % 2 else (1, 0):
            samples[k].append(1e6 * _seconds(sessions[k], calls))
    params = [torch.from_numpy(_outputs(session, inputs, batch)) for session in sessions]
    compressed, full = (distribution(p) for p in params)
    agreement = None
    if action.kind != "gaussian":
        agreement = float((compressed.mode() == full.mode()).float().mean())
    return SchemeComparison(
        scheme=artifact.scheme,
        batch=batch,
        policy_us=float(np.median(samples[0])),
        fp32_us=float(np.median(samples[1])),
        env_us=env_us,
        kl=float(full.kl(compressed).mean()),
        agreement=agreement,
        bytes=len(artifact.to_bytes()),
        fp32_bytes=len(fp32.to_bytes()),
        weight_only=bool(weight_only_layers(artifact)),
    )


def _seconds(session: PolicySession, calls: int) -> float:
    """Mean seconds of a call, the first one excluded."""
    session.run()
    start = perf_counter()
    for _ in range(calls):
        session.run()
    return (perf_counter() - start) / calls


def _outputs(session: PolicySession, inputs: Mapping[str, Array], batch: int) -> npt.NDArray[np.float32]:
    rows = len(next(iter(inputs.values())))
    answers = []
    for start in range(0, rows, batch):
        order = np.arange(start, start + batch) % rows
        for name, values in inputs.items():
            session.inputs[name][...] = values[order]
        session.run()
        answers.append(np.array(session.outputs["params"], np.float32))
    return np.concatenate(answers)[:rows]
