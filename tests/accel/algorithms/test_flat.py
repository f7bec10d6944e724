"""Parameters as views of one vector; that its steps are theirs: ``test_actor_critics``."""

from __future__ import annotations

import copy

import torch
from torch import nn

from accel.algorithms.flat import FlatParameters


def test_a_copy_has_parameters_of_its_own_and_loading_writes_into_the_vector() -> None:
    network = nn.Linear(3, 4)
    flat = FlatParameters(list(network.parameters()))
    twin = copy.deepcopy(network)
    with torch.no_grad():
        twin.weight.fill_(7.0)
    assert not bool((flat.values == 7.0).any())
    network.load_state_dict(twin.state_dict())
    assert int((flat.values == 7.0).sum()) == 12
