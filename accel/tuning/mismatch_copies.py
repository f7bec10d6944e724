"""Full-precision copies of a few versions' acting policies, and acting with them on the learner's device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from accel.networks import PolicyNetwork


class PolicyCopies:
    """A ring of copies of the acting module's parameters and buffers; memory is fixed once it is full.

    Args:
        network: what the learner trains.
        capacity: copies kept; the oldest gives way.
    """

    def __init__(self, network: PolicyNetwork, capacity: int) -> None:
        self._network = network
        self._module: nn.Module = network.acting_module()
        self._states = len(network.state_shapes)
        self._capacity = capacity
        self._copies: dict[int, dict[str, Tensor]] = {}
        self._sampled: dict[int, set[int]] = {}

    @property
    def versions(self) -> dict[int, set[int]]:
        """The versions kept, each with the scheme ids it was sampled for."""
        return self._sampled

    @property
    def oldest(self) -> int | None:
        """The version that gives way next; None while there is room."""
        return next(iter(self._copies)) if len(self._copies) == self._capacity else None

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(tensor.nbytes for copy in self._copies.values() for tensor in copy.values())

    def sampled(self, version: int) -> set[int]:
        """The scheme ids that a kept version was sampled for, to be added to."""
        return self._sampled[version]

    @torch.no_grad()
    def keep(self, version: int) -> None:
        """Copy the present policy as ``version``; the oldest copy's memory is used again once the ring is full."""
        if version in self._copies:
            return
        source = self._tensors()
        if len(self._copies) < self._capacity:
            copy = {name: tensor.detach().clone() for name, tensor in source.items()}
        else:
            oldest = next(iter(self._copies))
            copy = self._copies.pop(oldest)
            del self._sampled[oldest]
            torch._foreach_copy_(list(copy.values()), list(source.values()))
        self._copies[version] = copy
        self._sampled[version] = set()

    @torch.no_grad()
    def act(self, version: int | None, observations: Tensor, first: Tensor, states: tuple[Tensor, ...]) -> Tensor:
        """Distribution parameters over an unroll.

        Args:
            version: one that was kept, or None for the policy as it is now. Where the learner rounds its policy, a
                version is rounded too, at the scales of now.
            observations: [T, B, *obs]. first: [T, B] bool. states: recurrent state before row 0, [B, *shape] each.
        Returns:
            [T, B, P] float32.
        """
        if version is None and (self._states or self._network.fake_quantisation is not None):
            # What the learner itself computes with, faster over time and rounded where it rounds.
            return self._network(observations, first, states).params.float()  # type: ignore[no-any-return]
        weights = self._tensors() if version is None else self._copies[version]
        length, batch = first.shape
        if not self._states:
            (params,) = self._call(weights, observations.flatten(0, 1))
            return torch.as_tensor(params).float().view(length, batch, -1)
        rows = []
        for t in range(length):
            keep = torch.logical_not(first[t])
            states = tuple(state * keep.view(-1, *[1] * (state.dim() - 1)) for state in states)
            params, *following = self._call(weights, observations[t], *states)
            states = tuple(following)
            rows.append(params)
        return torch.stack(rows).float()

    def _call(self, weights: dict[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        quantisation = self._network.fake_quantisation
        if quantisation is not None:
            return quantisation.act(self._module, weights, *inputs)
        return functional_call(self._module, weights, inputs)  # type: ignore[no-any-return]

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
