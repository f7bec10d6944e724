"""Quality of a compressed policy on recorded observations: divergence and agreement on rows that calibrated nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import run_artifact
from accel.envs.spaces import ActionSpec
from accel.monitor.divergence import divergences
from accel.runs.evaluation import compress_run
from accel.runs.playing import collect_inputs, held_out
from accel.runs.trained_policy import TrainedPolicy

Floats = npt.NDArray[np.float64]

_ROWS = 4096


def compress_held_out(run: TrainedPolicy, scheme: str, seed: int) -> tuple[CompressedPolicy, str | None]:
    """The policy under a scheme, and its quality in words where it has recorded observations, None where it can play.

    Raises: what ``TrainedPolicy.compress`` raises.
    """
    if run.recorded is None:
        return compress_run(run, scheme, seed), None
    rows, calibration = held_out(collect_inputs(run, _ROWS + run.calibration_rows(scheme), seed), _ROWS)
    artifact = run.compress(scheme, calibration)
    outputs = [run_artifact(policy, rows)[0] for policy in (run.compress("fp32"), artifact)]
    full, ours = (run.rule.action_params(params.astype(np.float64), None).astype(np.float64) for params in outputs)
    found = divergences(run.spec.action, full, ours)
    text = f"{scheme} against fp32 on {len(full):,} other recorded observations: KL {found.kl.mean():.2g} nats, "
    if run.spec.action.kind != "gaussian":
        return artifact, f"{text}same greedy action in {found.greedy_agrees.mean():.2%}"
    mean, most, greatest = _errors(run.spec.action, full, ours)
    return (
        artifact,
        f"{text}action error {mean:.2%} of the range in the mean, {most:.2%} in 99 %, {greatest:.2%} at most",
    )


def _errors(action: ActionSpec, full: Floats, ours: Floats) -> tuple[float, float, float]:
    """Errors of greedy actions as shares of each action's range: its bounds', else the one that the rows show."""
    size = action.sizes[0]
    low, high = np.asarray(action.low), np.asarray(action.high)
    chosen = [np.tanh(p[:, :size]) if action.squash else np.clip(p[:, :size], low, high) for p in (full, ours)]
    shown = np.ptp(chosen[0], axis=0)
    bounds = np.full(size, 2.0) if action.squash else high - low
    errors = np.abs(chosen[1] - chosen[0]) / np.maximum(np.where(np.isfinite(bounds), bounds, shown), 1e-12)
    return float(errors.mean()), float(np.quantile(errors, 0.99)), float(errors.max())
