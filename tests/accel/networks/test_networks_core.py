"""Recurrent cores: resets and gradients against the recurrence written from its definition, or torch's own layer."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from accel.networks.core import GRUCore, LSTMCore
from accel.networks.recurrence import unroll_gru, unroll_lstm
from accel.networks.transformer import MEMORY, TransformerCore


def _lstm_by_definition(core: LSTMCore, features: Tensor, first: Tensor, state: tuple[Tensor, ...]) -> list[Tensor]:
    """Gate by gate, step by step (Hochreiter and Schmidhuber 1997, in torch's gate order i, f, g, o)."""
    lstm, (hidden, cell), outputs = core.lstm, state, []
    for t in range(len(features)):
        keep = (~first[t]).to(features).unsqueeze(1)
        hidden, cell = hidden * keep, cell * keep
        gates = features[t] @ lstm.weight_ih_l0.T + lstm.bias_ih_l0 + hidden @ lstm.weight_hh_l0.T + lstm.bias_hh_l0
        i, f, g, o = gates.chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return [torch.stack(outputs), hidden, cell]


RESETS = st.integers(1, 7).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=9)
)


def _torch_gru(core: GRUCore) -> nn.GRUCell:
    """torch's own cell with the core's weights."""
    cell = nn.GRUCell(core.input.in_features, core.size).double()
    for theirs, ours in (("ih", core.input), ("hh", core.hidden)):
        setattr(cell, f"weight_{theirs}", ours.weight)
        setattr(cell, f"bias_{theirs}", ours.bias)
    return cell


@settings(max_examples=30)
@given(RESETS)
def test_an_unrolled_gru_and_its_gradients_equal_torchs_own_for_any_resets(rows: list[tuple[bool, ...]]) -> None:
    first = torch.tensor(rows)
    torch.manual_seed(0)
    core = GRUCore(3, 4).double()
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.7)
    features, state = torch.randn(*first.shape, 3).double(), torch.randn(first.shape[1], 4).double()
    inputs = [features.requires_grad_(), state.requires_grad_()]
    cell, keep, hidden, expected = _torch_gru(core), (~first).to(features).unsqueeze(2), state, []
    for x, m in zip(features, keep, strict=True):
        hidden = cell(x, hidden * m)
        expected.append(hidden)
    fused = unroll_gru(core.input(features), keep, state, core.hidden.weight, core.hidden.bias)
    by_rows, _ = core(features, first, (state,))
    wanted = [*inputs, *core.parameters()]
    gradients = []
    for output in (torch.stack(expected), fused, by_rows):
        weighted = (output * torch.arange(output.numel()).view(output.shape).cos()).sum()
        gradients.append(torch.autograd.grad(weighted, wanted, retain_graph=True))
        torch.testing.assert_close(output, torch.stack(expected))
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


@settings(max_examples=30)
@given(RESETS)
def test_packed_and_unrolled_lstms_and_their_gradients_equal_the_definition_for_any_resets(
    rows: list[tuple[bool, ...]],
) -> None:
    first = torch.tensor(rows)
    torch.manual_seed(0)
    core = LSTMCore(3, 4).double()
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.7)
    inputs = [torch.randn(*first.shape, 3), torch.randn(first.shape[1], 4), torch.randn(first.shape[1], 4)]
    inputs = [x.double().requires_grad_() for x in inputs]
    wanted = [*inputs, *core.parameters()]
    results, gradients = [], []
    keep = (~first).to(inputs[0]).unsqueeze(2)
    weights = (core.lstm.weight_ih_l0, core.lstm.weight_hh_l0, core.lstm.bias_ih_l0, core.lstm.bias_hh_l0)
    packed, state = core(inputs[0], first, (inputs[1], inputs[2]))
    unrolled = unroll_lstm(inputs[0], keep, (inputs[1], inputs[2]), weights)
    for outputs in (_lstm_by_definition(core, inputs[0], first, (inputs[1], inputs[2])), [packed, *state], [*unrolled]):
        weighted = sum((x * torch.arange(x.numel()).view(x.shape).cos()).sum() for x in outputs)
        found = torch.autograd.grad(weighted, wanted, allow_unused=True)
        gradients.append([torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)])
        results.append(outputs)
    for ours in (1, 2):
        torch.testing.assert_close(results[ours], results[0])
        torch.testing.assert_close(gradients[ours], gradients[0])


def test_the_biases_gradients_are_apart_so_that_clipping_scales_each_once() -> None:
    core = LSTMCore(3, 4)
    output, _ = core(torch.randn(4, 2, 3), torch.eye(4, 2, dtype=torch.bool), (torch.zeros(2, 4), torch.zeros(2, 4)))
    output.sum().backward()
    assert core.lstm.bias_ih_l0.grad.data_ptr() != core.lstm.bias_hh_l0.grad.data_ptr()
    assert torch.equal(core.lstm.bias_ih_l0.grad, core.lstm.bias_hh_l0.grad)


def _transformer() -> TransformerCore:
    torch.manual_seed(0)
    core = TransformerCore(3, 8, 2).double()
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.5)
    return core


def _no_memory(core: TransformerCore, batch: int) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(batch, *shape).double() for shape in core.state_shapes)


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=1, max_size=80), st.integers(0, 80))
def test_an_unrolled_transformer_is_its_steps_for_any_resets_and_cuts(chances: list[list[float]], cut: int) -> None:
    first, core = torch.tensor(chances) > 0.95, _transformer()
    features, state, outputs = torch.randn(*first.shape, 3).double(), _no_memory(core, 2), []
    for x, ends in zip(features, first, strict=True):
        kept = (part.masked_fill(ends.view(-1, *[1] * (part.dim() - 1)), 0.0) for part in state)
        output, state = core.step(x, tuple(kept))
        outputs.append(output)
    before, after = _no_memory(core, 2), []
    for rows in (slice(0, cut), slice(cut, None)):
        if len(first[rows]):
            output, before = core(features[rows], first[rows], before)
            after.append(output)
    torch.testing.assert_close(torch.cat(after), torch.stack(outputs))
    torch.testing.assert_close(before, state)


def test_a_transformer_sees_its_memory_and_no_further() -> None:
    core = _transformer()
    features = torch.randn(2 * MEMORY + 2, 1, 3).double().requires_grad_()
    output, _ = core(features, torch.zeros(len(features), 1, dtype=torch.bool), _no_memory(core, 1))
    (gradient,) = torch.autograd.grad(output[-1].sum(), features)
    seen = gradient.abs().sum((1, 2)) > 0
    assert seen[1:].all() and not seen[0]  # of two layers


def test_a_fresh_transformer_passes_its_input_on() -> None:
    torch.manual_seed(0)
    core = TransformerCore(8, 8, 1)
    x = torch.randn(16, 4, 8)
    output, _ = core(x, torch.zeros(16, 4, dtype=torch.bool), tuple(torch.zeros(4, *s) for s in core.state_shapes))
    assert (output - core.embedding(x)).norm() < 0.5 * core.embedding(x).norm()
