"""Dict observations inside networks: records as parts by name, a normaliser and a torso for each; action masks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from accel.envs.spaces import ACTION_MASK, MASKED, EnvSpec
from accel.networks.normaliser import CLIP, ObservationNormaliser
from accel.networks.torsos import Torso

Parts = dict[str, Tensor]


def split_observations(spec: EnvSpec, observations: Tensor) -> Parts:
    """Records [..., *observation_shape] as the policy's inputs by name, [..., *shape]; twin of ``EnvSpec.split``."""
    if not spec.parts:
        return {"observations": observations}
    parts: Parts = {}
    for part in spec.parts:
        stored = observations[..., part.start : part.stop]
        if part.dtype == "float32" and stored.dtype == torch.uint8:
            stored = stored.view(torch.float32)
        stored = stored.to(getattr(torch, part.dtype))
        parts[part.name] = stored.reshape(*observations.shape[:-1], *part.shape)
    return parts


def mask_outputs(outputs: Tensor, mask: Tensor) -> Tensor:
    """Outputs [..., P] with MASKED for each action that the mask [..., n] does not allow; n ≤ P, the actions first.

    No gradient reaches what is masked.
    """
    actions = mask.shape[-1]
    of_actions = torch.where(mask != 0, outputs[..., :actions], MASKED)
    return of_actions if outputs.shape[-1] == actions else torch.cat((of_actions, outputs[..., actions:]), -1)


class DictNormaliser(ObservationNormaliser):
    """The statistics of all numbers of a record, one after the other; images and masks pass."""

    def __init__(self, spec: EnvSpec) -> None:
        places, end = {}, 0
        for part in spec.parts:
            if part.dtype == "float32":
                places[part.name] = slice(end, end + part.size)
                end += part.size
        super().__init__((end,))
        self._spec, self._places = spec, places

    def collect(self, observations: Tensor) -> None:
        """Keeps the sums of new records [N, *observation_shape] for ``collected``."""
        parts = split_observations(self._spec, observations)
        super().collect(torch.cat([parts[name] for name in self._places], -1))

    def forward(self, parts: Mapping[str, Tensor] | Tensor) -> Parts | Tensor:  # type: ignore[override]
        """Normalises the parts of numbers, each [N, n]; or records [N, n] that are all numbers."""
        if isinstance(parts, Tensor):
            return super().forward(parts)
        normalised = dict(parts)
        for name, place in self._places.items():
            normalised[name] = torch.clamp((parts[name] - self.mean[place]) * self.rstd[place], -CLIP, CLIP)
        return normalised


class DictTorso(Torso):
    """A torso for each part by its name, their features one after the other."""

    def __init__(self, torsos: Mapping[str, Torso]) -> None:
        super().__init__()
        self._names = list(torsos)
        self.torsos = nn.ModuleList(torsos.values())
        self.features = sum(torso.features for torso in torsos.values())

    def forward(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Each [N, *shape] float to [N, features]."""
        return torch.cat([torso(parts[name]) for name, torso in zip(self._names, self.torsos, strict=True)], -1)

    def train_features(self, observations: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        """``forward``, the way that trains fastest."""
        pairs = zip(self._names, self.torsos, strict=True)
        return torch.cat([torso.train_features(observations[name]) for name, torso in pairs], -1)  # type: ignore[operator]


def example_inputs(spec: EnvSpec, state_shapes: tuple[tuple[int, ...], ...]) -> Parts:
    """One row of zeros for each input of an acting module, in order; a mask of ones."""
    inputs = {part.name: torch.zeros(1, *part.shape, dtype=getattr(torch, part.dtype)) for part in spec.inputs}
    if spec.action.masked:
        inputs[ACTION_MASK] = torch.ones_like(inputs[ACTION_MASK])
    return inputs | {f"state_{i}": torch.zeros(1, *shape) for i, shape in enumerate(state_shapes)}
