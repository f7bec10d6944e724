"""Quality of an exported policy: parity with the trained one, returns on the same seeds, latency; and the gate.

Full precision plays first: its steps and the measured latency give the time that the compressed policy would take on
its target. Above a minute onnxruntime plays instead, which report and card state. The verdict uses the 95 % interval of
paired differences: no loss if it lies within the margin (5 % of the magnitude of full precision's mean), else higher or
lower if it excludes zero, else undecided, with the greatest loss and gain in it. Repeated games give no verdict. The
gate compares the mean with its bound, and its message states the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from accel.acting.policy import Array, InPlaceSession
from accel.compressors.artifact import TensorSpec
from accel.envs.spaces import ACTION_MASK, ActionSpec
from accel.errors import ConfigError, ExportError
from accel.exporting.run_policy import measure_latency, mismatch, run_rows
from accel.json_object import Json
from accel.monitor.divergence import divergences
from accel.monitor.statistics import Interval, mean_interval
from accel.runs.evaluation import interval_json, paired_difference
from accel.runs.playing import Episodes
from accel.runs.trained_policy import TrainedPolicy

# margin of equal returns, as a share of the magnitude of full precision's mean
MARGIN = 0.05
# accel.monitor.divergence.GREEDY_TOLERANCE in words
MEANS_AGREE = "means within half a standard deviation"
MakeSession = Callable[[int], InPlaceSession]


@dataclass(frozen=True)
class Agreement:
    """Difference of one stage of an export from the stage before, over inputs of one kind.

    Attributes:
        stage: what is compared, ``A -> B``. inputs: ``real`` or ``random``. batch: rows a call. rows: rows in all.
        relative: root mean square difference over the root mean square deviation of A's parameters from their mean.
        greatest: greatest absolute difference of any output, recurrent states included.
        kl: mean KL(A ‖ B) of the action distributions, nats.
        greedy_agreement: share of rows with the same most likely action; where actions are continuous, with every mean
            within half a standard deviation (``agreement_label`` says which).
    """

    stage: str
    inputs: str
    batch: int
    rows: int
    relative: float
    greatest: float
    kl: float
    greedy_agreement: float


def agreement_label(action: ActionSpec) -> str:
    """What ``greedy_agreement`` is a share of, for an action space."""
    if action.kind == "gaussian":
        return MEANS_AGREE
    return "same greedy action"


def reference_outputs(run: TrainedPolicy, inputs: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    """Outputs of the policy in torch by name, [N, ...]."""
    with torch.inference_mode():
        outputs = run.policy(*(torch.from_numpy(array) for array in inputs.values()))
    return {name: tensor.numpy() for name, tensor in zip(names, outputs, strict=True)}


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
    stage: str,
    kind: str,
    run: TrainedPolicy,
    wanted: Mapping[str, Array],
    inputs: Mapping[str, Array],
    make_session: MakeSession,
    batch: int,
) -> Agreement:
    """Run a session on inputs in calls of ``batch`` rows, and compare its outputs with the expected ones."""
    rows = len(next(iter(inputs.values()))) // batch * batch
    found = run_rows(make_session(batch), {name: array[:rows] for name, array in inputs.items()})
    params = next(iter(wanted))
    theirs, ours = wanted[params][:rows], found[params]
    acted = [run.rule.action_params(outputs.astype(np.float64), None) for outputs in (theirs, ours)]
    distance = divergences(run.spec.action, *acted)
    return Agreement(
        stage=stage,
        inputs=kind,
        batch=batch,
        rows=rows,
        relative=mismatch(ours, theirs)[0],
        greatest=max(mismatch(found[name], wanted[name][:rows])[1] for name in wanted),
        kl=float(distance.kl.mean()),
        greedy_agreement=float(distance.greedy_agrees.mean()),
    )


def latency(model: InPlaceSession, fp32: InPlaceSession) -> Json:
    """Microseconds a call of one observation, both measured in turns on one thread."""
    ours, theirs = measure_latency(model, fp32)
    return {"batch": 1, "model": ours, "fp32_onnx": theirs, "speed_up_p50": theirs["p50_us"] / ours["p50_us"]}


@dataclass(frozen=True)
class Returns:
    """Full and compressed policy on the same seeds.

    Attributes:
        episodes: of the compressed policy. full: of full precision.
        seed: of both. greedy: most likely actions instead of samples.
        engine: what the compressed policy was played on.
        margin: what counts as no loss, as a share of the magnitude of full precision's mean return.
    """

    episodes: Episodes
    full: Episodes
    seed: int
    greedy: bool
    engine: str
    margin: float = MARGIN

    @property
    def loss(self) -> float:
        """Mean return lost, as a share of the magnitude of full precision's mean return; negative for a gain."""
        lost = float(self.full.returns.mean() - self.episodes.returns.mean())
        return lost / max(abs(float(self.full.returns.mean())), 1e-12) if lost else 0.0

    @property
    def difference(self) -> Interval | None:
        """Mean of (compressed − full) by seed with its 95 % interval; None for a single episode."""
        return paired_difference(self.episodes, self.full)

    @property
    def caveat(self) -> str | None:
        """Why the interval is too narrow: a caveat on the games of either policy; None without one."""
        for name, episodes in (("the compressed policy's", self.episodes), ("full precision's", self.full)):
            if episodes.caveat is not None:
                return f"of {name} games, {episodes.caveat}"
        return None

    @property
    def verdict(self) -> str:
        """The verdict: within the margin of full precision, lower, higher, or undecided with its bounds."""
        difference = self.difference
        if difference is None:
            return "undecided: one episode says nothing"
        if self.caveat is not None:
            return f"undecided: {self.caveat}"
        scale = abs(float(self.full.returns.mean()))
        if max(-difference.low, difference.high) <= self.margin * scale:
            return f"within {_percent(self.margin)} of full precision"
        if difference.low > 0:
            return "higher than full precision"
        if difference.high < 0:
            return "lower than full precision"
        shares = [_percent(end / scale) if scale else f"{end:.3g}" for end in (-difference.low, difference.high)]
        return f"undecided: the loss may be up to {shares[0]}, the gain up to {shares[1]}"

    def to_json(self) -> Json:
        """A plain JSON object, every return included."""
        return {
            "model": _played(self.episodes),
            "fp32": _played(self.full),
            "difference": interval_json(self.difference),
            "loss": self.loss,
            "verdict": self.verdict,
            "margin": self.margin,
            "caveat": self.caveat,
            "seed": self.seed,
            "acted": "greedy" if self.greedy else "sampled",
            "engine": self.engine,
        }


def _played(episodes: Episodes) -> Json:
    returns = episodes.returns
    interval = mean_interval(returns) if len(returns) > 1 else None
    return {
        "mean": float(returns.mean()),
        "interval": interval_json(interval),
        "worst": float(returns.min()),
        "returns": returns.tolist(),
        "lengths": episodes.lengths.tolist(),
        "distinct": episodes.distinct,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


@dataclass(frozen=True)
class Gate:
    """Bounds that a policy must satisfy to be exported.

    Attributes:
        max_return_loss: greatest loss of mean return, as a share of the magnitude of full precision's; None for any.
        max_mismatch: greatest relative difference of its parameters from the trained policy's, on real inputs; None
            for any.
    """

    max_return_loss: float | None = None
    max_mismatch: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError: a bound that no policy, or every policy, satisfies."""
        for name, value in (("max_return_loss", self.max_return_loss), ("max_mismatch", self.max_mismatch)):
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value}: give a share of at least 0, such as 0.05, or leave it out")

    def check(self, mismatch: Agreement, returns: Returns | None) -> None:
        """Raise ExportError unless the policy satisfies the bounds."""
        failures = []
        if self.max_mismatch is not None and not mismatch.relative <= self.max_mismatch:
            failures.append(
                f"its parameters differ from the trained policy's by {mismatch.relative:.4g} of their spread, over "
                f"max-mismatch {self.max_mismatch:g}"
            )
        if self.max_return_loss is not None and returns is not None and not returns.loss <= self.max_return_loss:
            failures.append(f"it loses {_loss_text(returns)}, over max-return-loss {self.max_return_loss:.2%}")
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
