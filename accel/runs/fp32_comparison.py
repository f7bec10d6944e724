"""A scheme against fp32 on this machine: speed as actors run them, in turns, and mismatch, on a run's own rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from accel.algorithms.distributions import ActionDistribution
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.executed_kernels import weight_only_layers
from accel.compressors.checks.verify import run_artifact
from accel.compressors.runtime import PolicySession, Runtime
from accel.envs.spaces import ActionSpec
from accel.runs.summary import SchemeComparison
from accel.system.timing import interleave, timed_calls

_ROUNDS, _ROUND_S = 25, 0.002

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
        inputs: [N, *shape] by input name, real ones.
        distribution: of outputs [N, P].
        batch: rows per call, as on an actor.
        env_us: duration of a vector step of the environments, for comparison.
    """
    samples = time_in_turns((artifact, fp32), inputs, batch, rounds=_ROUNDS, round_s=_ROUND_S, runtime=runtime)
    params = [torch.from_numpy(run_artifact(policy, inputs)[0]) for policy in (artifact, fp32)]
    compressed, full = (distribution(p) for p in params)
    discrete = action.kind != "gaussian"
    return SchemeComparison(
        scheme=artifact.scheme,
        batch=batch,
        policy_us=float(np.median(samples[0])),
        fp32_us=float(np.median(samples[1])),
        env_us=env_us,
        kl=float(full.kl(compressed).mean()),
        agreement=float((compressed.mode() == full.mode()).float().mean()) if discrete else None,
        bytes=len(artifact.to_bytes()),
        fp32_bytes=len(fp32.to_bytes()),
        weight_only=bool(weight_only_layers(artifact)),
    )


def time_in_turns(
    artifacts: Sequence[CompressedPolicy],
    inputs: Mapping[str, Array],
    batch: int,
    *,
    rounds: int,
    round_s: float,
    runtime: Runtime = "native",
) -> npt.NDArray[np.float64]:
    """Microseconds of a policy call, [artifact, round]: means over about ``round_s`` seconds, all in every round, in
    sessions as actors load them, with real rows as inputs."""
    sessions = [PolicySession(artifact, batch=batch, runtime=runtime) for artifact in artifacts]
    rows = np.resize(np.arange(len(next(iter(inputs.values())))), batch)
    for session in sessions:
        for name, values in inputs.items():
            session.inputs[name][...] = values[rows]
    takers = {place: timed_calls(session.run, round_s) for place, session in enumerate(sessions)}
    return np.array(list(interleave(takers, math.inf, rounds).samples.values()))
