"""Validation of a policy before publication: it loads, has the right shapes, is finite, and is close to the learner's.

A full check loads the artifact in onnxruntime and runs it on 256 recent rows (32 images). It is made of the first
artifact of a level, of the first with new ranges or a new selection of channels and bases, and at an interval, which is
every publication where an update takes hundreds of optimiser steps. Every other publication gets a quick check, as
loading takes most of the time of a full one: 16 rows (4 images), the newest first and older ones in turns, in a session
that stays open and takes the weights as inputs (``ArtifactProbe``). A quick check passes if the mean divergence of its
rows plus two standard errors is within the bound. Otherwise it adds three times as many rows; if all of them together
do not pass either, it is inconclusive, and a full check decides at once, so that no policy is withheld by chance.

Outputs must be finite and of the right shapes whatever the bound. A bound of 0.5 nats is where the effective sample
size of two Gaussians of one deviation, e^(−2 KL), is a third; HalfCheetah with pruned actors learned up to 0.8 and
collapsed above 2. The divergence is the action rule's (``PolicyDivergence``).

An unchanged payload is not checked again, except a student's, as the policy changes while the student does not. 4-bit
convolutions are loaded each time. ``qat`` is compared with the learner's rounded policy. An artifact for CPUs with more
features than this one is run but not compared with the bound, as this CPU's kernels saturate where the actors' do not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from accel.algorithms.distributions import PolicyDivergence
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.probe import ArtifactProbe
from accel.compressors.checks.verify import check_outputs, reference_outputs, verify_artifact
from accel.compressors.cpu import cpu_features
from accel.compressors.errors import ArtifactError, VerificationError
from accel.compressors.qat.fake_quantiser import FakeQuantisedPolicy, FakeQuantiser
from accel.envs.spaces import EnvSpec
from accel.publishing.inputs import RecentInputs, random_inputs, rows_within

_FULL_ROWS = 256
_FULL_IMAGES = 32
QUICK_ROWS = 16
QUICK_IMAGES = 4
EXTENSION = 4
"""Factor by which the sample of a quick check grows before it is inconclusive."""
STANDARD_ERRORS = 2.0
"""Standard errors added to a mean over few rows before it is compared with the bound."""

Array = npt.NDArray[np.generic]
Inputs = Mapping[str, Array]


class ValidationInputs:
    """The rows on which policies are validated: recent ones, or random ones until there are any."""

    def __init__(self, spec: EnvSpec, state_shapes: tuple[tuple[int, ...], ...], recent: RecentInputs) -> None:
        few, many = (QUICK_IMAGES, _FULL_IMAGES) if spec.has_images else (QUICK_ROWS, _FULL_ROWS)
        self._few, self._many = rows_within(few, spec), rows_within(many, spec)
        self._random = cache(partial(random_inputs, spec, state_shapes, self._many))
        self._recent = recent

    def full(self) -> Inputs:
        """Rows of a full check, [N, *shape] by name."""
        return self._recent.newest(self._many) if self._recent.rows else self._random()

    def quick(self) -> Inputs:
        """Rows of a quick check, other ones at each call; views, valid until the next call."""
        if self._recent.rows:
            return self._recent.next_few(self._few)
        return {name: values[: self._few] for name, values in self._random().items()}

    def further(self) -> Inputs | None:
        """Three times as many further rows, as copies; None if too few are kept."""
        if self._recent.rows < EXTENSION * self._few:
            return None
        portions = [{**self._recent.next_few(self._few)} for _ in range(EXTENSION - 1)]
        return {name: np.concatenate([portion[name] for portion in portions]) for name in portions[0]}


@dataclass
class ValidationStatistics:
    """What validation found at one level.

    Attributes:
        divergence: mean at the last complete full check. age_updates: learner updates since then.
        checks: made since the last reset, by the reader. checks_s: their total time.
    """

    divergence: float | None = None
    age_updates: int = 0
    checks: int = 0
    checks_s: float = 0.0


class Validator:
    """Validates the artifacts of one level.

    Args:
        divergence: of their first output from the policy's.
        bound: greatest mean divergence allowed; None: only shapes and finiteness count.
        follows_policy: whether equal bytes mean an equal policy; false for students, which stay unchanged while the
            policy changes.
    Attributes:
        full_check_due: whether the next artifact gets a full check.
    """

    def __init__(
        self,
        inputs: ValidationInputs,
        divergence: PolicyDivergence,
        bound: float | None,
        *,
        follows_policy: bool = True,
    ) -> None:
        self.full_check_due = True
        self.statistics = ValidationStatistics()
        self._inputs = inputs
        self._divergence = divergence
        self._bound = bound
        self._follows_policy = follows_policy
        self._passed = b""
        self._probe: ArtifactProbe | None = None

    def validate(
        self,
        artifact: CompressedPolicy,
        payload: bytes,
        module: torch.nn.Module,
        quantiser: FakeQuantiser | None = None,
    ) -> None:
        """A quick check of a new payload; a full one when it is due, or when the quick one is inconclusive.

        Args:
            payload: the artifact's bytes.
            module: the learner's acting module. quantiser: the learner's fake quantisation at a ``qat`` level.
        Raises:
            VerificationError: it cannot be loaded or run, an output has a wrong shape or is not finite, or the mean
                divergence exceeds the bound.
        """
        if not self.full_check_due and payload == self._passed and self._follows_policy:
            return
        reference = module if quantiser is None else FakeQuantisedPolicy(quantiser, module)
        started = perf_counter()
        self.statistics.checks += 1
        try:
            if self.full_check_due or not self.check_quickly(artifact, reference):
                self.full_check_due = False
                self.check_fully(artifact, reference)
        finally:
            self.statistics.checks_s += perf_counter() - started
        self._passed = payload

    def check_fully(self, artifact: CompressedPolicy, reference: torch.nn.Module) -> float:
        """The mean divergence over many rows, in a session of its own; VerificationError as for ``validate``."""
        artifact, bound = self._runnable(artifact)
        inputs = self._inputs.full()
        divergence = verify_artifact(artifact, reference, inputs, bound, measure=self._mean)
        self.statistics.divergence, self.statistics.age_updates = divergence, 0
        return divergence

    def check_quickly(self, artifact: CompressedPolicy, reference: torch.nn.Module) -> bool:
        """Whether a few rows suffice to show that the artifact is close enough, in a session that stays open.

        Raises VerificationError: it cannot be loaded or run, or an output has a wrong shape or is not finite.
        """
        artifact, bound = self._runnable(artifact)
        inputs = self._inputs.quick()
        batch = len(inputs[artifact.inputs[0].name])
        wanted, found = self._outputs(artifact, reference, inputs, batch)
        if bound is None or self._divergence.upper_bound(wanted, found) <= bound:
            return True
        few = self._divergence.of_rows(wanted, found)
        if upper_limit_of_mean(few) <= bound:
            return True
        further = self._inputs.further()
        if further is None:
            return False
        others = self._divergence.of_rows(*self._outputs(artifact, reference, further, batch))
        return upper_limit_of_mean(np.concatenate([few, others])) <= bound

    def count_update(self) -> None:
        """After each learner update."""
        self.statistics.age_updates += 1

    def close(self) -> None:
        """While the level is out of use: drop session, payload and findings."""
        self._probe = None
        self._passed = b""
        self.statistics.divergence = None

    def _runnable(self, artifact: CompressedPolicy) -> tuple[CompressedPolicy, float | None]:
        """The artifact to run on this machine, and its bound."""
        if set(artifact.cpu_features) <= cpu_features():
            return artifact, self._bound
        return dataclasses.replace(artifact, cpu_features=()), None

    def _mean(self, reference: Array, acting: Array) -> float:
        return float(self._divergence.of_rows(reference, acting).astype(np.float64).mean())

    def _outputs(
        self, artifact: CompressedPolicy, module: torch.nn.Module, inputs: Inputs, batch: int
    ) -> tuple[Array, Array]:
        """First outputs [N, P] of policy and artifact, after checking all outputs; N is a multiple of the batch."""
        found = self._run(artifact, inputs, batch)
        wanted = reference_outputs(artifact, module, inputs, next(module.parameters()).device)
        check_outputs(artifact, found, wanted)
        return wanted[0], found[0]

    def _run(self, artifact: CompressedPolicy, inputs: Inputs, batch: int) -> list[Array]:
        rows = len(inputs[artifact.inputs[0].name])
        portions = [{name: values[i : i + batch] for name, values in inputs.items()} for i in range(0, rows, batch)]
        try:
            if self._probe is None or self._probe.batch != batch or not self._probe.fits(artifact):
                self._probe = ArtifactProbe.open(artifact, portions[0])
            if len(portions) == 1:
                return list(self._probe.run(artifact, inputs).values())
            runs = [[values.copy() for values in self._probe.run(artifact, few).values()] for few in portions]
            return [np.concatenate(outputs) for outputs in zip(*runs, strict=True)]
        except ArtifactError as error:
            self._probe = None
            raise VerificationError(str(error)) from error


def upper_limit_of_mean(sample: Array) -> float:
    """Two standard errors above a sample's mean; infinite for a single number, and NaN if the sample has one."""
    count = len(sample)
    if count < 2:
        return float("inf")
    values = sample.astype(np.float64)
    mean = float(values.sum()) / count
    if not math.isfinite(mean):
        return mean
    deviations = values - mean
    return mean + STANDARD_ERRORS * float(np.sqrt(float(deviations @ deviations) / (count * (count - 1))))
