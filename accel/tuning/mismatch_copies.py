"""Full-precision copies of a few versions' acting policies, and acting with them on the learner's device."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from accel.experience.transfer import to_device
from accel.networks import PolicyNetwork
from accel.networks.observations import split_observations


class PolicyCopies:
    """A ring buffer of copies of the acting module's parameters and buffers; memory is constant once it is full.

    Args:
        network: what the learner trains.
        capacity: copies kept; the oldest is overwritten.
    Attributes:
        versions: those kept, each with the scheme ids that it was sampled for, to be added to.
    """

    def __init__(self, network: PolicyNetwork, capacity: int) -> None:
        self._network = network
        self._module: nn.Module = network.acting_module()
        self._states = len(network.state_shapes)
        self._capacity = capacity
        self._copies: dict[int, dict[str, Tensor]] = {}
        self.versions: dict[int, set[int]] = {}

    @property
    def oldest(self) -> int | None:
        """The version that is overwritten next; None while there is room."""
        return next(iter(self._copies)) if len(self._copies) == self._capacity else None

    @torch.no_grad()
    def keep(self, version: int) -> None:
        """Copy the current policy as ``version``, into the oldest copy's memory once the ring is full."""
        if version in self._copies:
            return
        source = self._tensors()
        if len(self._copies) < self._capacity:
            copy = {name: tensor.detach().clone() for name, tensor in source.items()}
        else:
            oldest = next(iter(self._copies))
            copy = self._copies.pop(oldest)
            del self.versions[oldest]
            torch._foreach_copy_(list(copy.values()), list(source.values()))
        self._copies[version] = copy
        self.versions[version] = set()

    @torch.no_grad()
    def act(self, version: int | None, observations: Tensor, first: Tensor, states: tuple[Tensor, ...]) -> Tensor:
        """Distribution parameters over an unroll.

        Args:
            version: one that was kept, or None for the current policy. If the learner uses fake quantisation, a version
                does too, with the current scales.
            observations: [T, B, *obs]. first: [T, B] bool, on any device. states: recurrent state before row 0,
                [B, *shape] each.
        Returns:
            [T, B, P] float32.
        """
        if version is None and (self._states or self._network.fake_quantisation is not None):
            # the learner's own unroll: faster over time steps, and with its fake quantisation
            return self._network(observations, first, states).params.float()  # type: ignore[no-any-return]
        weights = self._tensors() if version is None else self._copies[version]
        length, batch = first.shape
        if not self._states:
            (params,) = self._call(weights, observations.flatten(0, 1))
            return torch.as_tensor(params).float().view(length, batch, -1)
        rows = []
        keep = to_device(torch.logical_not(first), observations.device)
        for t in range(length):
            states = tuple(state * keep[t].view(-1, *[1] * (state.dim() - 1)) for state in states)
            params, *following = self._call(weights, observations[t], *states)
            states = tuple(following)
            rows.append(params)
        return torch.stack(rows).float()

    def _call(self, weights: dict[str, Tensor], observations: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        inputs = (*split_observations(self._network.spec, observations).values(), *states)
        quantisation = self._network.fake_quantisation
        if quantisation is not None:
            return quantisation.start(weights).call("", self._module, *inputs)  # type: ignore[return-value]
        return functional_call(self._module, weights, inputs)  # type: ignore[no-any-return]

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
