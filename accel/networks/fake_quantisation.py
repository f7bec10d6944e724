"""The policy side of a whole network as the learner computes it: in single precision, or as int8 actors do.

Quantisation-aware training: the critic's own parts stay in single precision, as no actor has them. Scales and ranges
are those of the bound int8 plan, so the learner computes with the codes that the next publication writes, with
straight-through gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from accel.experience.transfer import to_device
from accel.networks.core import GRUCore, LSTMCore, RecurrentCore
from accel.networks.heads import in_single_precision
from accel.networks.observations import Parts
from accel.networks.torsos import train_features

if TYPE_CHECKING:
    from accel.compressors.qat.forward_pass import QuantisedPass

_LSTM = "core.lstm"


class PolicyParts:
    """How a network's ``forward`` computes its policy side: in single precision, here.

    Args:
        torso, head: the network's.
    """

    def __init__(self, torso: nn.Module, head: nn.Module) -> None:
        self._torso, self._head = torso, head

    def torso(self, x: Tensor | Parts) -> Tensor:
        """[N, *obs] float, or a dictionary of parts, to [N, F]."""
        return train_features(self._torso, x)

    def core(
        self, core: RecurrentCore, features: Tensor, first: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[T, B, F], [T, B] and each [B, H] to [T, B, H] and the state after the last row."""
        result: tuple[Tensor, tuple[Tensor, ...]] = core(features, first, state)
        return result

    def head(self, features: Tensor) -> Tensor:
        """[N, F] to [N, P]."""
        return in_single_precision(self._head, features)


class QuantisedParts(PolicyParts):
    """As its int8 graph does, with the network's present weights.

    Args:
        torso, head: as for ``PolicyParts``. started: the quantiser's pass over these weights.
    """

    def __init__(self, torso: nn.Module, head: nn.Module, started: QuantisedPass) -> None:
        super().__init__(torso, head)
        self._pass = started

    def torso(self, x: Tensor | Parts) -> Tensor:
        """See ``PolicyParts``."""
        return cast("Tensor", self._pass.call("torso", self._torso, x))

    def core(
        self, core: RecurrentCore, features: Tensor, first: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See ``PolicyParts``."""
        if not isinstance(core, LSTMCore):
            by_layers = (True,) if isinstance(core, GRUCore) else ()
            called = self._pass.call("core", core, features, first, state, *by_layers)
            return cast("tuple[Tensor, tuple[Tensor, ...]]", called)
        if not self._pass.quantises(_LSTM):
            return super().core(core, features, first, state)
        keep = to_device(torch.logical_not(first), features.device).to(features.dtype).unsqueeze(2)
        hidden, cell = state
        return self._pass.lstm(_LSTM, features, keep, (hidden, cell))

    def head(self, features: Tensor) -> Tensor:
        """See ``PolicyParts``."""
        return cast("Tensor", self._pass.call("policy_head", self._head, features))
