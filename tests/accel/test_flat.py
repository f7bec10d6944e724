"""Parameters as views of one vector."""

from __future__ import annotations

import copy

import torch
from torch import nn

from accel.algorithms.flat import FlatParameters


def test_a_step_of_the_vector_is_a_step_of_every_parameter() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    twin, parameters = copy.deepcopy(network), list(network.parameters())
    flat = FlatParameters(parameters)
    for ours, theirs in zip(parameters, twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    x = torch.randn(5, 3)
    for module in (network, twin):
        module(x).square().sum().backward()
    torch.testing.assert_close(
        flat.gradient, torch.cat([p.grad.reshape(-1) for p in twin.parameters() if p.grad is not None])
    )
    for optimizer in (torch.optim.SGD([flat.values], 0.1), torch.optim.SGD(twin.parameters(), 0.1)):
        optimizer.step()
    torch.testing.assert_close(network(x), twin(x))
    flat.gradient.zero_()
    assert not any(bool(parameter.grad.any()) for parameter in parameters if parameter.grad is not None)


def test_a_copy_has_parameters_of_its_own_and_loading_writes_into_the_vector() -> None:
    network = nn.Linear(3, 4)
    flat = FlatParameters(list(network.parameters()))
    twin = copy.deepcopy(network)
    with torch.no_grad():
        twin.weight.fill_(7.0)
    assert not bool((flat.values == 7.0).any())
    network.load_state_dict(twin.state_dict())
    assert int((flat.values == 7.0).sum()) == 12
