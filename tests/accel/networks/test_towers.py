from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from accel.compressors.kernels.library import kernels_here, why_none
from accel.config.parts import Activation
from accel.networks.compiled_towers import (
    FEW_THREADS,
    MOST_ROWS,
    WIDEST,
    WIDEST_WITH_AVX512,
    CompiledTowers,
    CompiledWay,
    Layer,
    Tower,
    suits,
)
from accel.networks.dense import FUNCTIONS
from accel.networks.towers import Towers

KERNELS = kernels_here()
LIMIT = WIDEST_WITH_AVX512 if KERNELS and KERNELS[0].lanes == 16 else WIDEST
needs_kernels = pytest.mark.skipif(not KERNELS, reason=f"needs compiled kernels, {why_none()}")


def layer(inputs: int, outputs: int, *, transposed: bool = False) -> Layer:
    """A layer with room for its gradients; transposed: its weight lies as [in, out]."""
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    weight, of_weight = torch.randn(shape) / inputs**0.5, torch.full(shape, 7.0)
    if transposed:
        weight, of_weight = weight.t(), of_weight.t()
    return Layer(weight, torch.randn(outputs), of_weight, torch.full((outputs,), 7.0))


def make(inputs: int, towers: list[tuple[list[int], list[int]]], *, transposed: bool = False) -> list[Tower]:
    """Towers of such widths and such heads."""
    made = []
    for widths, heads in towers:
        sizes = [inputs, *widths]
        layers = [layer(a, b, transposed=transposed) for a, b in zip(sizes, widths, strict=False)]
        made.append(Tower(layers, [layer(widths[-1], outputs, transposed=transposed) for outputs in heads]))
    return made


def parts(towers: list[Tower], *names: str) -> list[Tensor]:
    return [getattr(layer, name) for tower in towers for layer in (*tower.layers, *tower.heads) for name in names]


def by_autograd(towers: list[Tower], activation: Activation, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The heads' outputs in double precision, with a graph, and what they depend on: x, then all parameters."""
    leaves = [tensor.double().requires_grad_() for tensor in (x, *parts(towers, "weight", "bias"))]
    parameters, outputs = iter(leaves[1:]), []
    for tower in towers:
        features = leaves[0]
        for _ in tower.layers:
            features = FUNCTIONS[activation](nn.functional.linear(features, next(parameters), next(parameters)))
        outputs += [nn.functional.linear(features, next(parameters), next(parameters)) for _ in tower.heads]
    return outputs, leaves


widths = st.integers(1, 40)
several = st.lists(widths, min_size=1, max_size=3)
shapes = st.lists(st.tuples(several, several), min_size=1, max_size=3)


@needs_kernels
@pytest.mark.parametrize("kernels", KERNELS, ids=[kernels.suffix for kernels in KERNELS])
@given(
    inputs=widths,
    towers=shapes,
    rows=st.sampled_from([1, 3, 8, 13, 64, 257, 600]),
    activation=st.sampled_from(["relu", "tanh", "sigmoid", "elu"]),
    transposed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_compiled_towers_have_the_gradients_of_autograd(
    kernels, inputs, towers, rows, activation, transposed, seed
) -> None:
    torch.manual_seed(seed)
    made, x = make(inputs, towers, transposed=transposed), torch.randn(rows, inputs)
    expected, leaves = by_autograd(made, activation, x)
    found, way = CompiledTowers(made, activation, kernels).run(x)
    torch.testing.assert_close(
        [output.double() for output in found], [e.detach() for e in expected], rtol=1e-4, atol=1e-4
    )
    gradients = [torch.randn_like(output) for output in found]
    of_x, *of_parameters = torch.autograd.grad(expected, leaves, [gradient.double() for gradient in gradients])
    before = [tensor.clone() for tensor in parts(made, "of_weight", "of_bias")]
    first = seed % inputs
    columns = way.pull_input(gradients, first)
    assert all(map(torch.equal, before, parts(made, "of_weight", "of_bias")))
    way.pull(gradients)
    ours = parts(made, "of_weight", "of_bias")
    for mine, wanted in zip([columns, *ours], [of_x[:, first:], *of_parameters], strict=True):
        scale = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=2e-5 * scale)


@needs_kernels
@pytest.mark.parametrize(("width", "rows"), [(16, MOST_ROWS + 1), (WIDEST + 1, 8)])
def test_much_is_left_to_torchs_threads_and_gives_the_same(width: int, rows: int) -> None:
    if width > LIMIT:
        pytest.skip("runs on a machine with AVX-512")
    torch.manual_seed(0)
    made, x = make(5, [([width, 9], [3, 2]), ([7], [1])]), torch.randn(rows, 5)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (FEW_THREADS, FEW_THREADS + 1):
            torch.set_num_threads(count)
            outputs, way = Towers(made, "tanh").run(x)
            assert isinstance(way, CompiledWay) == (count == FEW_THREADS)
            gradients = [torch.ones_like(output) for output in outputs]
            columns = way.pull_input(gradients, 2)
            way.pull(gradients)
            found.append([*outputs, columns, *(tensor.clone() for tensor in parts(made, "of_weight", "of_bias"))])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "elu"])
def test_compiled_towers_hide_nothing_that_is_not_finite(activation: Activation) -> None:
    made = make(4, [([8], [2])])
    x = torch.zeros(6, 4)
    x[2, 1], x[4, 0] = float("nan"), float("inf")
    made[0].layers[0].weight.fill_(1.0)
    outputs, way = CompiledTowers(made, activation).run(x)
    expected, _ = by_autograd(made, activation, x)
    torch.testing.assert_close(outputs[0].double(), expected[0].detach(), equal_nan=True, rtol=1e-4, atol=1e-5)
    for gradient in (torch.ones(6, 2), torch.full((6, 2), float("nan"))):
        way.pull([gradient])
        assert all(bool(torch.isnan(tensor).any()) for tensor in parts(made, "of_weight"))


@needs_kernels
def test_what_does_not_fit_compiled_towers_is_refused() -> None:
    made = make(4, [([8], [2, 1])])
    towers = CompiledTowers(made, "relu")
    with pytest.raises(ValueError, match="layers of 4 inputs got 5"):
        towers.run(torch.zeros(3, 5))
    _, way = towers.run(torch.zeros(3, 4))
    for wrong in ([torch.zeros(3, 2)], [torch.zeros(3, 2), torch.zeros(2, 1)]):
        with pytest.raises(ValueError, match="of 3 rows got gradients"):
            way.pull(wrong)
    _, way = CompiledTowers([Tower(made[0].layers)], "relu").run(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="without heads"):
        way.pull([torch.zeros(3, 8)])


@needs_kernels
@given(kept=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=4), rows=st.sampled_from([3, 300]))
def test_of_parameters_that_nobody_trains_no_gradient_is_written(kept: list[tuple[bool, bool]], rows: int) -> None:
    torch.manual_seed(0)
    whole, x = make(4, [([8, 6], [2, 3])]), torch.randn(rows, 4)
    gradients = [torch.randn(rows, 2), torch.randn(rows, 3)]
    _, way = CompiledTowers(whole, "tanh").run(x)
    way.pull(gradients)
    layers = [*whole[0].layers, *whole[0].heads]
    some = [
        Layer(
            its.weight,
            its.bias,
            torch.empty_like(its.weight) if weight else None,
            torch.empty_like(its.bias) if bias else None,
        )
        for (weight, bias), its in zip(kept, layers, strict=True)
    ]
    _, way = CompiledTowers([Tower(some[:2], some[2:])], "tanh").run(x)
    way.pull(gradients)
    for mine, all_of_it in zip(some, layers, strict=True):
        for name in ("of_weight", "of_bias"):
            if getattr(mine, name) is not None:
                assert torch.equal(getattr(mine, name), getattr(all_of_it, name))


@needs_kernels
def test_only_towers_that_lie_as_the_kernels_read_them_are_compiled() -> None:
    whole = layer(8, 3)

    def is_taken(**parts: Tensor) -> bool:
        return suits([Tower([replace(whole, **parts)], [layer(3, 1)])])

    assert suits([Tower([layer(2, LIMIT)])]) and not suits([Tower([layer(2, LIMIT + 1)])])
    wide = torch.zeros(3, 16)
    assert is_taken() and is_taken(weight=torch.zeros(8, 3).t(), of_weight=torch.zeros(8, 3).t())
    assert not is_taken(weight=wide[:, ::2]) and not is_taken(of_weight=wide[:, :8]) and not is_taken(bias=wide[:, 0])
    assert not is_taken(weight=torch.zeros(8, 3).t())
    for name in ("weight", "bias", "of_weight", "of_bias"):
        for dtype in (torch.float64, torch.bfloat16):
            assert not is_taken(**{name: getattr(whole, name).to(dtype)})
        assert not is_taken(**{name: getattr(whole, name).to("meta")})


@needs_kernels
def test_towers_are_float32_whatever_the_default_is() -> None:
    made, x = make(4, [([8], [2])]), torch.randn(6, 4)
    torch.set_default_dtype(torch.float64)
    try:
        (output,), way = CompiledTowers(made, "relu").run(x)
        way.pull([torch.ones(6, 2)])
    finally:
        torch.set_default_dtype(torch.float32)
    (expected,), _ = CompiledTowers(made, "relu").run(x)
    assert output.dtype == torch.float32 and torch.equal(output, expected)
