"""The optimisers do what torch's do, bit for bit, and import no compiler; rates on a device: ``test_algorithms``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from accel.algorithms.optimizers import Adam, Optimiser, RMSprop

PAIRS = [
    pytest.param(Adam, torch.optim.Adam, {"fused": True}, id="adam"),
    pytest.param(RMSprop, torch.optim.RMSprop, {"foreach": True}, id="rmsprop"),
]


@pytest.mark.parametrize(("kind", "library", "options"), PAIRS)
@pytest.mark.parametrize("skips", [False, True])
def test_steps_and_state_equal_torchs_and_a_skipped_step_moves_nothing(
    skips: bool, kind: type[Optimiser], library: type[torch.optim.Optimizer], options: dict[str, bool]
) -> None:
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours, oracle = kind(mine, 0.01, 1e-8), library([theirs], lr=0.01, eps=1e-8, **options)  # type: ignore[call-arg]
    if skips:
        ours.skip = torch.zeros(())
    for k in range(4):
        mine.grad = torch.sin(mine.detach() * (k + 1))
        theirs.grad = mine.grad.clone()
        ours.step()
        oracle.step()
        assert torch.equal(mine, theirs)
    if skips:
        ours.skip, mine.grad = torch.ones(()), torch.full((5, 3), torch.nan)
        ours.step()
        assert torch.equal(mine, theirs) and (kind is not Adam or ours.state["step"] == 4)
    else:
        assert ours.state.keys() == oracle.state[theirs].keys()
        assert all(torch.equal(value, oracle.state[theirs][name]) for name, value in ours.state.items())


def test_a_step_imports_no_compiler() -> None:
    code = """
import sys, torch
from accel.algorithms.flat import FlatParameters
from accel.algorithms.optimizers import Adam, RMSprop
for kind in (Adam, RMSprop):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = kind(parameter, 0.1, 1e-8)
    parameter.square().sum().backward()
    optimizer.step()
    optimizer.load(optimizer.save())
    with torch.device("meta"):  # where shapes of a run's checkpoint are checked
        kind(FlatParameters([torch.nn.Parameter(torch.empty(3))]).values, 0.1, 1e-8)
sys.exit(bool({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
