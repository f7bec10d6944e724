"""Quantisation-aware training of a whole network: its policy side computes with the numbers that int8 actors have.

The critic's own parts stay in single precision: no actor has them. Scales and ranges are those of the bound int8 plan,
so that what the learner rounds to are the codes that the next publication writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.func import functional_call

from accel.networks.policy import PolicyParts

if TYPE_CHECKING:
    from accel.networks.policy import PolicyNetwork
    from compressors.qat import FakeQuantiser

_LSTM = "core.lstm"


class NetworkRounding:
    """Makes a network's policy side compute with rounded weights and layer inputs; gradients pass through the rounding.

    Args:
        quantiser: follows the plan that publishes the network's acting module.
    """

    def __init__(self, quantiser: FakeQuantiser) -> None:
        self._quantiser = quantiser

    def parts(self, network: PolicyNetwork) -> PolicyParts:
        """The policy side, rounded for the network's present weights."""
        return _RoundedParts(network, self._quantiser)


class _RoundedParts(PolicyParts):
    def __init__(self, network: PolicyNetwork, quantiser: FakeQuantiser) -> None:
        super().__init__(network)
        self._quantiser = quantiser
        self._weights = quantiser.weights(network)

    def torso(self, x: Tensor) -> Tensor:
        return cast("Tensor", self._call("torso", self._network.torso, x))

    def core(
        self, core: nn.Module, features: Tensor, first: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        # unrolled over time, the LSTM is not called as a module: its input is rounded here
        features = self._quantiser.round_input(_LSTM, features)
        return cast("tuple[Tensor, tuple[Tensor, ...]]", self._call("core", core, features, first, state))

    def head(self, features: Tensor) -> Tensor:
        return cast("Tensor", self._call("policy_head", self._network.policy_head, features))

    def _call(self, name: str, part: nn.Module, *arguments: object) -> object:
        prefix = f"{name}."
        own = {n.removeprefix(prefix): w for n, w in self._weights.items() if n.startswith(prefix)}
        with self._quantiser.activations(self._network):
            return functional_call(part, own, arguments)
