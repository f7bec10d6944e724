"""Quality of an exported policy: parity with the trained one, returns on the same seeds, latency; and the gate.

Full precision plays first: its steps and the measured latency give the time that the compressed policy would take on
its target. Above a minute onnxruntime plays instead, which report and card state. The bar of ``accel.runs.quality`` has
to hold, unless its loss was accepted beforehand. Gates are bounds of the caller's own: the one on returns compares the
mean with its bound, and its message states the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from accel.compressors.artifact import TensorSpec
from accel.compressors.checks.verify import module_outputs
from accel.envs.spaces import ACTION_MASK
from accel.errors import ConfigError, ExportError
from accel.exporting.run_policy import Array, PolicySession, measure_latency, mismatch, run_rows
from accel.json_object import Json
from accel.runs.quality import Quality, Returns
from accel.runs.trained_policy import TrainedPolicy

MakeSession = Callable[[int], PolicySession]
BATCHES = (1, 4, 32)


@dataclass(frozen=True)
class Agreement:
    """Greatest difference of an exported model from the trained policy, over inputs of one kind and several batches.

    Attributes:
        model: ``fp32 onnx``, or the format. inputs: ``real`` or ``random``. rows: how many. batches: rows a call.
        relative: root mean square difference over the root mean square deviation of the trained policy's parameters
            from their mean.
        greatest: greatest absolute difference of any output, recurrent states included.
    """

    model: str
    inputs: str
    rows: int
    batches: tuple[int, ...]
    relative: float
    greatest: float


def reference_outputs(run: TrainedPolicy, inputs: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    """Outputs of the policy in torch by name, [N, ...]."""
    outputs = module_outputs(run.policy, map(torch.from_numpy, inputs.values()))
    return dict(zip(names, outputs, strict=True))


def random_inputs(
    specs: tuple[TensorSpec, ...], real: Mapping[str, Array], rng: np.random.Generator
) -> dict[str, Array]:
    """As many random inputs as real ones: uniform pixels, or normal with the real mean and 3 times the deviation."""
    drawn: dict[str, Array] = {}
    for spec in specs:
        array = real[spec.name]
        if spec.dtype == "uint8":
            most = 2 if spec.name == ACTION_MASK else 256
            drawn[spec.name] = rng.integers(0, most, array.shape, dtype=np.uint8)
        else:
            floats = array.astype(np.float64)
            noise = rng.standard_normal(array.shape) * 3.0 * floats.std(axis=0) + floats.mean(axis=0)
            greatest = np.finfo(spec.dtype).max
            drawn[spec.name] = noise.clip(-greatest, greatest).astype(spec.dtype)
    return drawn


def agreement(
    model: str, kind: str, wanted: Mapping[str, Array], inputs: Mapping[str, Array], make_session: MakeSession
) -> Agreement:
    """Run a model on inputs in calls of ``BATCHES`` rows, and compare its outputs with the trained policy's."""
    count = len(next(iter(inputs.values())))
    batches = tuple(batch for batch in BATCHES if batch <= count)
    params = next(iter(wanted))
    relative, greatest = [], []
    for batch in batches:
        rows = count // batch * batch
        found = run_rows(make_session(batch), {name: array[:rows] for name, array in inputs.items()})
        differences = {name: mismatch(found[name], wanted[name][:rows]) for name in wanted}
        relative.append(differences[params][0])
        greatest += [most for _, most in differences.values()]
    return Agreement(model, kind, count, batches, float(np.max(relative)), float(np.max(greatest)))  # keeps NaN


def latency(model: PolicySession, fp32: PolicySession) -> Json:
    """Microseconds a call of one observation, both measured in turns on one thread."""
    ours, theirs = measure_latency(model, fp32)
    return {"batch": 1, "model": ours, "fp32_onnx": theirs, "speed_up_p50": theirs["p50_us"] / ours["p50_us"]}


@dataclass(frozen=True)
class Gate:
    """Bounds that a policy must satisfy to be exported.

    Attributes:
        max_return_loss: greatest loss of mean return, as a share of the magnitude of full precision's; None for any.
        max_mismatch: greatest relative difference of its parameters from the trained policy's, on real inputs; None
            for any.
        accept_loss: whether a policy that does not hold the bar is exported too.
    """

    max_return_loss: float | None = None
    max_mismatch: float | None = None
    accept_loss: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError: a bound that no policy, or every policy, satisfies."""
        for name, value in (("max_return_loss", self.max_return_loss), ("max_mismatch", self.max_mismatch)):
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value}: give a share of at least 0, such as 0.05, or leave it out")

    def check(self, mismatch: Agreement, quality: Quality) -> None:
        """Raise ExportError unless the policy satisfies the bounds."""
        failures, returns = [], quality.returns
        if self.max_mismatch is not None and not mismatch.relative <= self.max_mismatch:
            failures.append(
                f"its parameters differ from the trained policy's by {mismatch.relative:.4g} of their spread, over "
                f"max-mismatch {self.max_mismatch:g}"
            )
        if self.max_return_loss is not None and returns is not None and not returns.loss <= self.max_return_loss:
            failures.append(f"it loses {_loss_text(returns)}, over max-return-loss {self.max_return_loss:.2%}")
        if not self.accept_loss and not quality.holds:
            failures.append(f"{quality.verdict} (--accept-loss exports it all the same)")
        if failures:
            remedy = "Choose a milder scheme, or a greater bound"
            raise ExportError(f"the policy is not exported: {'; '.join(failures)}. {remedy}")


def _loss_text(returns: Returns) -> str:
    """The loss of mean return, the two means, and the interval."""
    difference = returns.difference
    ends = "one episode each" if difference is None else f"difference {difference} (95 %)"
    means = f"mean {returns.episodes.returns.mean():.5g} against {returns.full.returns.mean():.5g}"
    caveat = "" if returns.caveat is None else f"; {returns.caveat}"
    return f"{returns.loss:.2%} of the return ({means}, {ends}{caveat})"
