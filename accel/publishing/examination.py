"""The examination of one level's payloads, each before it is published: a quick check, or the whole one."""

from __future__ import annotations

from time import perf_counter

import torch

from accel.publishing.check import ArtifactCheck, QuickCheck
from accel.publishing.figures import LevelFigures
from compressors.artifact import CompressedPolicy
from compressors.qat.differences import code_differences
from compressors.qat.fake_quantiser import FakeQuantisedPolicy, FakeQuantiser


class Examiner:
    """Holds one level's artifacts to the learner's policy, and writes down what it found.

    Args:
        check: the whole check.
        figures: of the level.
        follows: whether the artifact's bytes follow from the policy; a student's stay as the policy leaves it behind.
    Attributes:
        due: whether the next artifact gets the whole check.
    """

    def __init__(self, check: ArtifactCheck, figures: LevelFigures, *, follows: bool) -> None:
        self.due = True
        self._check = check
        self._quick_check = QuickCheck(check)
        self._figures = figures
        self._follows = follows
        self._passed = b""

    def examine(
        self, artifact: CompressedPolicy, payload: bytes, module: torch.nn.Module, quantiser: FakeQuantiser | None
    ) -> None:
        """The quick check of a new payload; the whole one when it is due, or when the quick one leaves a doubt.

        Args:
            artifact: what is going to be published. payload: its bytes.
            module: the learner's acting module. quantiser: what the learner trains with at a ``qat`` level.
        Raises:
            VerificationError: it is unfit.
        """
        if not self.due and payload == self._passed and self._follows:
            return
        reference = module if quantiser is None else FakeQuantisedPolicy(quantiser, module)
        if self.due or not self._passes_quickly(artifact, reference):
            self._run_check(artifact, reference, module, quantiser)
        self._passed = payload

    def rest(self) -> None:
        """Keep neither a session nor a payload while the level is out of use."""
        self._quick_check.close()
        self._passed = b""

    def _passes_quickly(self, artifact: CompressedPolicy, reference: torch.nn.Module) -> bool:
        figures, started = self._figures, perf_counter()
        figures.quick_checks += 1
        try:
            passes = self._quick_check(artifact, reference)
        finally:
            figures.quick_check_s += perf_counter() - started
        figures.inconclusive_checks += not passes
        return passes

    def _run_check(
        self,
        artifact: CompressedPolicy,
        reference: torch.nn.Module,
        module: torch.nn.Module,
        quantiser: FakeQuantiser | None,
    ) -> None:
        self.due = False
        figures, started = self._figures, perf_counter()
        try:
            figures.check_kl = self._check(artifact, reference)
            if quantiser is not None:
                figures.code_differences = code_differences(quantiser, artifact, module, self._check.inputs())
        finally:
            figures.check_s = perf_counter() - started
