"""The check of an artifact before any actor sees it: it loads, fits, is finite, and is close enough to the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from accel.envs.spaces import EnvSpec
from accel.publishing.distillation import PolicyDivergence
from accel.publishing.inputs import RecentInputs, made_up_inputs
from compressors.artifact import CompressedPolicy
from compressors.checks.probe import ArtifactProbe
from compressors.checks.verify import check_outputs, reference_outputs, verify_artifact
from compressors.cpu import cpu_features
from compressors.errors import ArtifactError, VerificationError

ROWS = 256
IMAGES = 32
FEW_ROWS = 16
FEW_IMAGES = 4
MORE_ROWS = 64
MORE_IMAGES = 16
DEVIATIONS = 2.0
"""Standard errors of a mean over few rows that must fit below the bound too."""

Params = npt.NDArray[np.generic]
Inputs = Mapping[str, Params]


class ArtifactCheck:
    """Holds artifacts against the policy they were made from, on recent inputs where there are any.

    Args:
        spec: the environment's layout.
        state_shapes: of the policy's recurrent state.
        recent: where inputs come from; made-up ones stand in until it has some.
        max_kl: greatest mean KL(policy ‖ artifact) in nats; None: shapes and finiteness alone count.
    """

    def __init__(
        self, spec: EnvSpec, state_shapes: tuple[tuple[int, ...], ...], recent: RecentInputs, max_kl: float | None
    ) -> None:
        self._spec = spec
        self._state_shapes = state_shapes
        self._recent = recent
        self._max_kl = max_kl
        self._made_up: Inputs = {}
        self.divergence = PolicyDivergence(spec.action)

    def __call__(self, artifact: CompressedPolicy, module: torch.nn.Module) -> float:
        """The mean KL in nats.

        Raises:
            VerificationError: the artifact does not pass; see ``verify_artifact``.
        """
        artifact, bound = self.terms(artifact)
        mismatch = verify_artifact(artifact, module, self.inputs(), bound, measure=self.divergence.of_arrays)
        return mismatch.measured

    def terms(self, artifact: CompressedPolicy) -> tuple[CompressedPolicy, float | None]:
        """What to run and which bound to hold it to.

        An artifact for CPUs that can do more than this one is run regardless, but not held to the bound: what this CPU
        saturates, the actors' do not.
        """
        if set(artifact.cpu_features) <= cpu_features():
            return artifact, self._max_kl
        return dataclasses.replace(artifact, cpu_features=()), None

    def inputs(self) -> Inputs:
        """What the next artifact is run on, [N, *shape] by name."""
        rows = IMAGES if self._spec.is_image else ROWS
        return self._recent.newest(rows) if self._recent.rows else self._substitutes()

    def few_inputs(self) -> Inputs:
        """A few of them, others at each call, to be read at once."""
        rows = FEW_IMAGES if self._spec.is_image else FEW_ROWS
        if self._recent.rows:
            return self._recent.next_few(rows)
        return {name: values[:rows] for name, values in self._substitutes().items()}

    def more_inputs(self) -> Inputs | None:
        """Thrice as many others, 64 (16 images) with the few, as copies; None where so many are not kept."""
        few, more = (FEW_IMAGES, MORE_IMAGES) if self._spec.is_image else (FEW_ROWS, MORE_ROWS)
        if self._recent.rows < more:
            return None
        portions = [self._recent.next_few(few) for _ in range(more // few - 1)]
        return {name: np.concatenate([portion[name] for portion in portions]) for name in portions[0]}

    def _substitutes(self) -> Inputs:
        if not self._made_up:
            rows = IMAGES if self._spec.is_image else ROWS
            self._made_up = made_up_inputs(self._spec, self._state_shapes, rows)
        return self._made_up


class QuickCheck:
    """The check of every artifact of one level, on few inputs, in a session that stays open.

    Few rows say little about the mean over all. An artifact passes when two standard errors above their mean KL are
    still within the bound, of few rows or else of four times as many; whether any other passes, the whole check must
    say, so that chance keeps none back.
    """

    def __init__(self, check: ArtifactCheck) -> None:
        self._check = check
        self._probe: ArtifactProbe | None = None
        self._device: torch.device | None = None

    def __call__(self, artifact: CompressedPolicy, module: torch.nn.Module) -> bool:
        """Whether the artifact is surely close enough to the policy.

        Raises:
            VerificationError: it cannot be loaded or run, or an output has a wrong shape or is not finite.
        """
        artifact, bound = self._check.terms(artifact)
        inputs = self._check.few_inputs()
        found, wanted = self._compare(artifact, module, inputs, len(inputs[artifact.inputs[0].name]))
        if bound is None or self._check.divergence.at_most(found, wanted) <= bound:
            return True
        rows = self._divergences(found, wanted)
        if greatest_mean(rows) <= bound:
            return True
        more = self._check.more_inputs()
        if more is None:
            return False
        others = self._divergences(*self._compare(artifact, module, more, len(rows)))
        return greatest_mean(np.concatenate([rows, others])) <= bound

    def close(self) -> None:
        """Drop the open session; the next artifact opens another."""
        self._probe = None

    def _compare(
        self, artifact: CompressedPolicy, module: torch.nn.Module, inputs: Inputs, batch: int
    ) -> tuple[Params, Params]:
        """Distribution parameters [N, P] of artifact and policy, after a look at all outputs; N is a multiple of the
        session's batch."""
        found = self._outputs(artifact, inputs, batch)
        if self._device is None:
            self._device = next(module.parameters()).device
        wanted = reference_outputs(artifact, module, inputs, self._device)
        check_outputs(artifact, found, wanted)
        return found[0], wanted[0]

    def _divergences(self, found: Params, wanted: Params) -> Params:
        return self._check.divergence.of_rows(torch.from_numpy(found), torch.from_numpy(wanted)).numpy()

    def _outputs(self, artifact: CompressedPolicy, inputs: Inputs, batch: int) -> list[Params]:
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


def greatest_mean(sample: npt.NDArray[np.generic]) -> float:
    """Two standard errors above a sample's mean; infinite for a single number, and NaN if the sample has one."""
    count = len(sample)
    if count < 2:
        return float("inf")
    values = sample.astype(np.float64)
    mean = float(values.sum()) / count
    deviations = values - mean
    return mean + DEVIATIONS * float(np.sqrt(float(deviations @ deviations) / (count * (count - 1))))
