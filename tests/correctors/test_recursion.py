"""The backward recursion against its definition, the O(T²) sum, on every path that can run here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from accel.correctors.recursion import doubling_scan, row_loop

Path = Callable[[Tensor, Tensor], Tensor]
PATHS = pytest.mark.parametrize("path", [row_loop, doubling_scan])


def summed(increments: np.ndarray, decays: np.ndarray) -> np.ndarray:
    """x_s = Σ_{t≥s} (Π_{s≤i<t} b_i) a_t, term by term."""
    length = len(increments)
    total = np.zeros_like(increments)
    for s in range(length):
        for t in range(s, length):
            total[s] += np.prod(decays[s:t], axis=0) * increments[t]
    return total


def drawn(length: int, batch: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    increments = torch.randn(length, batch, generator=generator, dtype=torch.float64)
    decays = scale * torch.rand(length, batch, generator=generator, dtype=torch.float64)
    return increments, decays.masked_fill(torch.rand(length, batch, generator=generator) < 0.1, 0.0)


@PATHS
@given(
    length=st.integers(1, 40), batch=st.integers(1, 5), seed=st.integers(0, 2**31), scale=st.sampled_from([1.0, 2.0])
)
def test_solves_the_sum(path: Path, length: int, batch: int, seed: int, scale: float) -> None:
    increments, decays = drawn(length, batch, seed, scale)
    expected = summed(increments.numpy(), decays.numpy())
    torch.testing.assert_close(path(increments, decays), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [20, 80, 512])
def test_float32_scan_is_no_worse_than_the_loop(length: int) -> None:
    increments, decays = drawn(length, 64, seed=1)
    exact = row_loop(increments.clone(), decays)
    solved = {path.__name__: path(increments.float(), decays.float()) for path in (row_loop, doubling_scan)}
    errors = {name: (solution.double() - exact).abs().max() for name, solution in solved.items()}
    assert errors["doubling_scan"] <= 2 * errors["row_loop"] + 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scan_survives_products_that_overflow(dtype: torch.dtype) -> None:
    """Unclipped weights of e^20 for 64 steps multiply to 10^555, but what they multiply is zero: an episode ended."""
    increments, decays = drawn(80, 4, seed=5)
    increments, decays = increments.to(dtype), decays.to(dtype)
    increments[6:70], decays[6:70], decays[69] = 0.0, float(np.exp(20.0)), 0.0
    expected = row_loop(increments.clone(), decays)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(doubling_scan(increments, decays), expected)
    assert not torch.isfinite(_scan_without_guards(increments, decays)).all()


@PATHS
def test_a_sum_that_overflows_leaves_what_is_cut_from_it_alone(path: Path) -> None:
    increments, decays = (x.float() for x in drawn(40, 2, seed=6))
    decays[10] = 0.0
    expected = path(increments.clone(), decays)[:11]
    decays[11:] = 1e30
    found = path(increments, decays)
    assert found.isfinite().all() and torch.equal(found[:11], expected)


def _scan_without_guards(increments: Tensor, decays: Tensor) -> Tensor:
    """The textbook scan: products in the input's own dtype, free to become infinite."""
    sums, products, shift = increments.clone(), decays.clone(), 1
    while shift < len(sums):
        later_sums = torch.cat((sums[shift:], torch.zeros_like(sums[:shift])))
        later_products = torch.cat((products[shift:], torch.zeros_like(products[:shift])))
        sums, products = sums + products * later_sums, products * later_products
        shift *= 2
    return sums


@PATHS
def test_keeps_dtype_and_decays_whatever_the_strides(path: Path) -> None:
    increments, decays = (x.float().T for x in drawn(3, 6, seed=2))
    expected, kept = summed(increments.double().numpy(), decays.double().numpy()), decays.clone()
    solution = path(increments, decays)
    assert solution.dtype == torch.float32
    assert torch.equal(decays, kept)
    torch.testing.assert_close(solution.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


@PATHS
def test_the_last_decay_is_never_read(path: Path) -> None:
    increments, decays = drawn(6, 2, seed=3)
    expected = path(increments.clone(), decays)
    decays[-1] = float("nan")
    assert torch.equal(path(increments, decays), expected)


@PATHS
def test_passes_not_a_number_on_without_a_warning(path: Path) -> None:
    increments, decays = drawn(6, 2, seed=3)
    increments[4, 0] = float("nan")
    decays[:] = 0.5
    solution = path(increments, decays)
    assert solution[:5, 0].isnan().all()
    assert solution[:, 1].isfinite().all()
