"""What every recurrent core promises: a whole unroll is its steps one by one, forgetting where an episode begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from accel.networks.core import GRUCore, LSTMCore, RecurrentCore

T, B, FEATURES = 9, 4, 5
CORES: dict[str, Callable[[], RecurrentCore]] = {
    "none": lambda: RecurrentCore(FEATURES),
    "lstm": lambda: LSTMCore(FEATURES, 7),
    "gru": lambda: GRUCore(FEATURES, 7),
}
each = pytest.mark.parametrize("name", CORES)
State = tuple[Tensor, ...]


def make(name: str) -> tuple[RecurrentCore, Tensor, State]:
    """A core, features [T, B, F] and a state that is not zero."""
    torch.manual_seed(3)
    core = CORES[name]()
    return core, torch.randn(T, B, FEATURES), tuple(torch.randn(B, *shape) for shape in core.state_shapes)


def resets(kind: str) -> Tensor:
    first = torch.zeros(T, B, dtype=torch.bool)
    if kind == "at the start":
        first[0, 1] = True
    if kind == "anywhere":
        first[0, 0] = first[3, 1] = first[4, 1] = first[T - 1, 2] = True
    if kind == "everywhere":
        first[...] = True
    return first


def stepped(core: RecurrentCore, features: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
    outputs = []
    for t in range(T):
        keep = (~first[t]).float().unsqueeze(1)
        output, state = core.step(features[t], tuple(part * keep for part in state))
        outputs.append(output)
    return torch.stack(outputs), state


@each
@pytest.mark.parametrize("kind", ["none", "at the start", "anywhere", "everywhere"])
def test_an_unroll_is_its_steps(name: str, kind: str) -> None:
    core, features, state = make(name)
    first = resets(kind)
    output, last = core(features, first, state)
    expected, expected_last = stepped(core, features, first, state)
    assert output.shape == (T, B, core.size) and torch.allclose(output, expected, atol=1e-6)
    assert tuple(part.shape[1:] for part in last) == core.state_shapes
    for one, two in zip(last, expected_last, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    if core.state_shapes and kind != "none":
        never, _ = stepped(core, features, resets("none"), state)
        assert not torch.allclose(output, never, atol=1e-3)


@each
def test_two_halves_are_one_unroll(name: str) -> None:
    core, features, state = make(name)
    first = resets("anywhere")
    whole, last = core(features, first, state)
    early, between = core(features[:4], first[:4], state)
    late, end = core(features[4:], first[4:], between)
    assert torch.allclose(whole, torch.cat((early, late)), atol=1e-6)
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(last, end, strict=True))


@each
def test_gradients_are_those_of_the_steps_and_stop_at_an_episodes_start(name: str) -> None:
    core, features, state = make(name)
    first = resets("anywhere")
    found = []
    for run in (core, lambda *inputs: stepped(core, *inputs)):
        inputs = features.clone().requires_grad_()
        run(inputs, first, state)[0].square().sum().backward()
        found.append(inputs.grad)
    assert torch.allclose(found[0], found[1], atol=1e-5)
    inputs = features.clone().requires_grad_()
    core(inputs, first, state)[0][3, 1].sum().backward()
    assert inputs.grad is not None
    assert not inputs.grad[:3].any() and inputs.grad[3, 1].any()


@each
def test_environments_do_not_touch_each_other(name: str) -> None:
    core, features, state = make(name)
    first = resets("anywhere")
    whole, _ = core(features, first, state)
    for b in range(B):
        alone, _ = core(features[:, b : b + 1], first[:, b : b + 1], tuple(part[b : b + 1] for part in state))
        assert torch.allclose(alone[:, 0], whole[:, b], atol=1e-6)
