"""Quantisation-aware training of a whole network: its policy side computes as the int8 actors do.

The critic's own parts stay in single precision: no actor has them. Scales and ranges are those of the bound int8 plan,
so the learner computes with the codes that the next publication writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from accel.experience.transfer import to_device
from accel.networks.core import GRUCore, LSTMCore, RecurrentCore
from accel.networks.observations import Parts
from accel.networks.policy import PolicyNetwork, PolicyParts

if TYPE_CHECKING:
    from accel.compressors.qat.fake_quantiser import FakeQuantiser

_LSTM = "core.lstm"


class FakeQuantisation:
    """Makes a network's policy side compute as its int8 graph does, with straight-through gradients.

    Args:
        quantiser: follows the plan that publishes the network's acting module.
    """

    def __init__(self, quantiser: FakeQuantiser) -> None:
        self._quantiser = quantiser

    def parts(self, network: PolicyNetwork) -> PolicyParts:
        """See ``PolicyQuantisation.parts``."""
        return _QuantisedParts(network, self._quantiser)

    def act(self, module: nn.Module, tensors: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        """See ``PolicyQuantisation.act``."""
        return cast("tuple[Tensor, ...]", self._quantiser.start(tensors).call("", module, *inputs))


class _QuantisedParts(PolicyParts):
    def __init__(self, network: PolicyNetwork, quantiser: FakeQuantiser) -> None:
        super().__init__(network)
        self._pass = quantiser.start(dict(network.named_parameters()))

    def torso(self, x: Tensor | Parts) -> Tensor:
        return cast("Tensor", self._pass.call("torso", self._network.torso, x))

    def core(
        self, core: RecurrentCore, features: Tensor, first: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
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
        return cast("Tensor", self._pass.call("policy_head", self._network.policy_head, features))
