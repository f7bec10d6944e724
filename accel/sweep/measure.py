"""How a compressed policy of a trained run is measured: mismatch, latency, bytes; episodes when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.loading import TrainedRun
from accel.runs.playing import Array, collect_inputs, play
from compressors.artifact import CompressedPolicy
from compressors.runtime import PolicySession

_ROUNDS = 40
_ROUND_S = 0.003


@dataclass(frozen=True)
class MeasureOptions:
    """How candidates are measured.

    Attributes:
        rows: real observations for calibration, and as many others for the mismatch.
        batch: rows of one policy call whose latency is measured.
        episodes: seeded episodes for the return.
        seed: of episodes and observations.
        sample: whether those episodes sample actions instead of taking the most likely ones.
    """

    rows: int
    batch: int
    episodes: int
    seed: int
    sample: bool = False


@dataclass(frozen=True)
class CallTime:
    """Microseconds of a policy call, over rounds: the median and both quartiles."""

    median_us: float
    q1_us: float
    q3_us: float


class Workbench:
    """Measures schemes on one trained run; everything but the latency is the same whoever measures.

    Attributes:
        fp32: the uncompressed artifact.
        caveat: what is to be said of the episodes played last, None for nothing.
    """

    def __init__(self, run: TrainedRun, options: MeasureOptions) -> None:
        """Plays for real observations. Raises what ``collect_inputs`` raises."""
        self._run = run
        self._options = options
        self.caveat: str | None = None
        self.fp32 = run.compress("fp32")
        self._calibration = collect_inputs(run, options.rows, options.seed, policy=self.fp32)
        self._inputs = collect_inputs(run, options.rows, options.seed + 1, policy=self.fp32)

    def compress(self, scheme: str) -> CompressedPolicy:
        """The policy under a scheme, calibrated on real observations. Raises CompressorError."""
        return self._run.compress(scheme, self._calibration)

    def screen(self, artifact: CompressedPolicy) -> dict[str, float]:
        """``kl``; ``policy_us`` and ``fp32_us``, medians measured in turns; ``bytes``; ``agreement`` of discrete
        actions."""
        found = compare_with_fp32(
            artifact, self.fp32, self._inputs, self._run.spec.action, batch=self._options.batch, env_us=0.0
        )
        measured = {
            "kl": found.kl, "policy_us": found.policy_us, "fp32_us": found.fp32_us, "bytes": float(found.bytes),
        }  # fmt: skip
        if found.agreement is not None:
            measured["agreement"] = found.agreement
        return measured

    def play(self, artifact: CompressedPolicy) -> list[float]:
        """Returns of the seeded episodes, the same seeds for every artifact."""
        options = self._options
        episodes = play(artifact, self._run, episodes=options.episodes, seed=options.seed, greedy=not options.sample)
        self.caveat = episodes.caveat
        return [float(value) for value in episodes.returns]

    def latencies(self, artifacts: Sequence[CompressedPolicy]) -> list[CallTime]:
        """Times of a call of each, all in turns within one session."""
        return latencies(artifacts, self._inputs, self._options.batch)


def latencies(artifacts: Sequence[CompressedPolicy], inputs: Mapping[str, Array], batch: int) -> list[CallTime]:
    """Times of a policy call of each artifact, over rounds that take them in turns.

    Args:
        artifacts: at least one.
        inputs: [N, *shape] by name, real ones, the first ``batch`` of them used.
        batch: rows of a call.
    """
    sessions = [PolicySession(artifact, batch=batch) for artifact in artifacts]
    rows = np.resize(np.arange(len(next(iter(inputs.values())))), batch)
    calls = []
    for session in sessions:
        for name, values in inputs.items():
            session.inputs[name][...] = values[rows]
        calls.append(max(int(_ROUND_S / max(_seconds(session, 3), 1e-7)), 1))
    samples = np.empty((_ROUNDS, len(sessions)))
    for number in range(_ROUNDS):
        for index, session in enumerate(sessions):
            samples[number, index] = 1e6 * _seconds(session, calls[index])
    q1, median, q3 = np.quantile(samples, (0.25, 0.5, 0.75), axis=0)
    return [CallTime(float(m), float(low), float(high)) for m, low, high in zip(median, q1, q3, strict=True)]


def _seconds(session: PolicySession, calls: int) -> float:
    session.run()
    start = perf_counter()
    for _ in range(calls):
        session.run()
    return (perf_counter() - start) / calls
