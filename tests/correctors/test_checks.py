"""Wrong arguments are named before any arithmetic, by every corrector alike; results carry no gradient."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import accel.correctors
from accel.correctors import DtypeError, OptionError, ShapeError, nstep, retrace, vtrace

T, B = 5, 3
Corrector = Callable[..., tuple[Tensor, Tensor]]


def arguments(corrector: Corrector, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = ["log_rhos", "rewards", "discounts", "values"] + (["q_taken"] if corrector is retrace else [])
    drawn = {name: torch.rand(T, B, generator=generator, dtype=dtype) for name in names}
    return drawn | {
        "bootstrap_value": torch.rand(B, generator=generator, dtype=dtype),
        "valid": torch.rand(T, B, generator=generator) < 0.8,
        "cut": torch.rand(T, B, generator=generator) < 0.3,
        "cut_values": torch.rand(T, B, generator=generator, dtype=dtype),
    }


CASES = [
    pytest.param(corrector, name, id=f"{corrector.__name__}-{name}")
    for corrector in (vtrace, retrace, nstep)
    for name in arguments(corrector)
]
EVERY = pytest.mark.parametrize("corrector", [vtrace, retrace, nstep])


@pytest.mark.parametrize(("corrector", "name"), CASES)
def test_a_wrong_shape_names_the_argument_its_shape_and_the_shape_it_needs(corrector: Corrector, name: str) -> None:
    """Each of these would broadcast to a silent, wrong answer."""
    given = arguments(corrector)
    given[name] = given[name][..., :1]
    if name == "log_rhos":  # it fixes [T, B], so the next argument is the one that differs
        with pytest.raises(ShapeError, match=r"rewards has shape \(5, 3\), needs \(5, 1\), \[T, B\] of log_rhos"):
            corrector(**given)
        return
    needs = r"\(3,\), \[B\]" if name == "bootstrap_value" else r"\(5, 3\), \[T, B\]"
    has = r"\(1,\)" if name == "bootstrap_value" else r"\(5, 1\)"
    with pytest.raises(ShapeError, match=rf"^{name} has shape {has}, needs {needs} of log_rhos$"):
        corrector(**given)


@EVERY
@pytest.mark.parametrize("shape", [(T,), (0, B), (T, B, 1), ()])
def test_log_rhos_must_be_a_time_major_matrix(corrector: Corrector, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"log_rhos has shape .*, needs \[T, B\] with T >= 1"):
        corrector(**arguments(corrector) | {"log_rhos": torch.zeros(shape)})


@pytest.mark.parametrize(("corrector", "name"), CASES)
def test_a_wrong_dtype_is_never_converted(corrector: Corrector, name: str) -> None:
    given = arguments(corrector)
    given[name] = given[name].half() if name == "log_rhos" else given[name].double()
    with pytest.raises(DtypeError, match=rf"^{name} is torch\.float(16|64), needs torch\.(float32|bool)"):
        corrector(**given)


@EVERY
@pytest.mark.parametrize("missing", ["cut", "cut_values"])
def test_cut_and_cut_values_come_together(corrector: Corrector, missing: str) -> None:
    with pytest.raises(OptionError, match=f"without {missing}:"):
        corrector(**arguments(corrector) | {missing: None})


@pytest.mark.parametrize(
    ("corrector", "option", "value"),
    [(c, "lambda_", x) for c in (vtrace, retrace, nstep) for x in (-0.1, 1.1, float("nan"))]
    + [(c, o, x) for c in (vtrace, retrace) for o in ("clip_c", "clip_pg_rho") for x in (0.0, -1.0, float("nan"))]
    + [(vtrace, "clip_rho", 0.0)],
)
def test_options_out_of_range_are_named(corrector: Corrector, option: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"^{option} is {value}, needs"):
        corrector(**arguments(corrector), **{option: value})


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_returned_carries_a_gradient_or_shares_memory(corrector: Corrector, dtype: torch.dtype) -> None:
    given = arguments(corrector, dtype)
    kept = {name: tensor.clone() for name, tensor in given.items()}
    for tensor in given.values():
        tensor.requires_grad_(tensor.is_floating_point())
    for result in corrector(**given):
        assert not result.requires_grad
        assert result.grad_fn is None
        assert result.dtype == dtype
        assert all(result.data_ptr() != tensor.data_ptr() for tensor in given.values())
        result.fill_(7.0)
    assert all(torch.equal(given[name], kept[name]) for name in given)


def test_submodules_do_not_hide_functions() -> None:
    for name in ("nstep", "retrace", "vtrace"):
        importlib.import_module(f"accel.correctors.{name}")
        assert callable(getattr(accel.correctors, name))
