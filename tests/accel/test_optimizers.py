"""The optimisers do what torch's do, bit for bit, and import no compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from accel.algorithms.optimizers import QuickAdam, QuickRMSprop

PAIRS = {
    "adam": (QuickAdam, torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.99), "fused": True}),
    "rmsprop": (QuickRMSprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "foreach": True}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_steps_and_state_equal_torchs(name: str) -> None:
    quick, library, options = PAIRS[name]
    torch.manual_seed(0)
    start = torch.randn(5, 3)
    results = []
    for kind in (quick, library):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = kind([parameter], **options)
        for k in range(4):
            parameter.grad = torch.sin(parameter.detach() * (k + 1))
            optimizer.step()
        again = kind([torch.nn.Parameter(start.clone())], **options)
        again.load_state_dict(optimizer.state_dict())
        results.append((parameter.detach(), optimizer.state_dict()["state"], again.state_dict()["state"]))
    assert torch.equal(results[0][0], results[1][0])
    for mine, theirs in zip(results[0][1:], results[1][1:], strict=True):
        for key, value in theirs[0].items():
            assert torch.equal(torch.as_tensor(mine[0][key]), torch.as_tensor(value))


@pytest.mark.parametrize("name", PAIRS)
def test_a_skipped_step_moves_no_parameter_and_counts_as_none(name: str) -> None:
    quick, library, options = PAIRS[name]
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    ours, theirs = quick([parameters[0]], **options), library([parameters[1]], **options)
    ours.skip = torch.zeros(())
    for k in range(3):
        for parameter, optimizer in zip(parameters, (ours, theirs), strict=True):
            parameter.grad = torch.cos(parameter.detach() + k)
            optimizer.step()
    assert torch.equal(*parameters)
    before, ours.skip = parameters[0].detach().clone(), torch.ones(())
    parameters[0].grad = torch.full((3,), torch.nan)
    ours.step()
    assert torch.equal(parameters[0], before)
    if name == "adam":
        assert ours.state[parameters[0]]["step"] == 3


def test_a_step_imports_no_compiler() -> None:
    code = """
import sys, torch
from accel.algorithms.optimizers import QuickAdam, QuickRMSprop
for kind in (QuickAdam, QuickRMSprop):
    layer = torch.nn.Linear(3, 3)
    optimizer = kind(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
