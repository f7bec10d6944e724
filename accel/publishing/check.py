"""The check of an artifact before any actor sees it: it loads, fits, is finite, and is close enough to the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from accel.publishing.distillation import PolicyDivergence
from accel.publishing.inputs import RecentInputs, made_up_inputs
from accel.spaces import EnvSpec
from compressors.artifact import CompressedPolicy
from compressors.cpu import cpu_features
from compressors.verify import verify_artifact

ROWS = 256
IMAGES = 32


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
        self._divergence = PolicyDivergence(spec.action)

    def __call__(self, artifact: CompressedPolicy, module: torch.nn.Module) -> float:
        """The mean KL in nats.

        An artifact for CPUs that can do more than this one is run regardless, but not held to the bound: what this CPU
        saturates, the actors' do not.

        Raises:
            VerificationError: the artifact does not pass; see ``verify_artifact``.
        """
        bound = self._max_kl
        if not set(artifact.cpu_features) <= cpu_features():
            artifact, bound = dataclasses.replace(artifact, cpu_features=()), None
        mismatch = verify_artifact(artifact, module, self.inputs(), bound, measure=self._divergence.of_arrays)
        return mismatch.measured

    def inputs(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """What the next artifact is run on, [N, *shape] by name."""
        rows = IMAGES if self._spec.is_image else ROWS
        if self._recent.rows:
            return self._recent.newest(rows)
        return made_up_inputs(self._spec, self._state_shapes, rows)
