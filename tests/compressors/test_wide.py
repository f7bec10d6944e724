"""Activations of two bytes: the same answers everywhere, finer than one byte; weights fitted to calibration rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from accel.compressors.graph.policy_graph import export_policy
from accel.compressors.int8.calibrated import fitted_weight, rounded_codes
from accel.compressors.int8.feature_steps import feature_steps, folds, largest_weights
from accel.compressors.kernels.chain import make_chain
from accel.compressors.module_state import read_state
from accel.compressors.quantisation.affine import GREATEST_HIGH, LOW_CODES, WEIGHT_INT8, two_byte_parameters
from tests.compressors.emulated import every_kernels, kernels_of
from tests.compressors.policies import Case, error_of
from tests.compressors.test_kernels import NETWORKS, Wired, on_kernels, on_onnxruntime

Floats = NDArray[np.float32]
EVERY = every_kernels()
PLAIN, WIDE = Case(nn.Module, {"observations": (11,)}), "int8(0=x16,2=x16,4=x16)"


def mlp(activation: type[nn.Module] = nn.ReLU, outputs: int = 5) -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Linear(11, 50), activation(), nn.Linear(50, 37), activation(), nn.Linear(37, outputs))
    return nn.Sequential(*layers).eval()


def rows(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, 11)).astype(np.float32)


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_kernels_give_onnxruntimes_answers_to_the_bit(suffix: str, batch: int, factor: float) -> None:
    """Far beyond the calibrated range too, where both saturate."""
    module, x = mlp(), factor * rows(batch, seed=batch)
    artifact = PLAIN.bind(WIDE, module).refresh(module, 1)
    np.testing.assert_array_equal(on_kernels(artifact, x, suffix=suffix), on_onnxruntime(artifact, x))


@pytest.mark.parametrize("suffix", EVERY)
@pytest.mark.parametrize("network", ["tanh", "gelu", "norm", "wired", "residual"])
def test_any_chain_may_have_layers_of_two_bytes(network: str, suffix: str) -> None:
    module = NETWORKS[network]().eval()
    case = Case(NETWORKS[network], {"observations": (11,)})
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    scheme = f"int8({','.join(f'{name}=x16' for name in names)})"
    artifact, x = case.bind(scheme, module).refresh(module, 1), rows(6)
    assert not isinstance(make_chain(artifact, kernels_of(suffix)), str)
    np.testing.assert_allclose(
        on_kernels(artifact, x, suffix=suffix), on_onnxruntime(artifact, x), rtol=1e-3, atol=1e-4
    )


def test_two_bytes_are_finer_than_one_and_their_weights_have_eight_bits() -> None:
    module, inputs = mlp(), PLAIN.inputs(512)
    plans = [PLAIN.bind(scheme, module, rows=512) for scheme in ("int8(x8)", WIDE)]
    one, two = (error_of(plan.refresh(module, 1), module, inputs) for plan in plans)
    fitted = plans[1].fit(module, PLAIN.inputs(512, seed=1), 1)
    assert two < 0.6 * one and error_of(fitted, module, inputs) < 0.8 * two


@pytest.mark.parametrize(("low", "high"), [(0.0, 3.0), (-1.0, 1.0), (-5.0, 0.1), (-0.3, 1e-30), (0.0, 0.0)])
def test_parameters_of_two_bytes_cover_the_range_and_multiply_exactly(low: float, high: float) -> None:
    step, zero = two_byte_parameters(low, high)
    coarse = LOW_CODES * step
    assert 0 <= zero <= GREATEST_HIGH and -zero * coarse <= low
    assert (GREATEST_HIGH - zero) * coarse + 63 * step >= high
    codes = np.arange(GREATEST_HIGH + 1)
    exact = codes.astype(np.float64) * float(coarse)
    np.testing.assert_array_equal(codes.astype(np.float32) * coarse, exact)


def test_rounding_to_rows_is_nearer_than_rounding_to_the_nearest() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 24)) + 0.05 * rng.standard_normal((400, 24))
    inputs -= inputs.mean(axis=0)
    weight = rng.standard_normal((7, 24))
    coarse = np.abs(weight).max(axis=1) / 7
    nearest = np.rint(weight / coarse[:, None])
    gram = inputs.T @ inputs / len(inputs)
    found = rounded_codes(weight, coarse, gram, WEIGHT_INT8)

    def lost(codes: NDArray[np.generic]) -> float:
        return float(np.square(inputs @ (codes * coarse[:, None] - weight).T).mean())

    assert lost(found) < 0.2 * lost(nearest)
    np.testing.assert_allclose(fitted_weight(weight, gram, weight @ gram), weight, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.Tanh])
def test_steps_per_feature_change_no_answer(activation: type[nn.Module]) -> None:
    module, x = mlp(activation), rows(64)
    graph = export_policy(module, {"observations": torch.zeros(1, 11)}, ["params"])
    layers = [node for node in graph.nodes if node.op_type == "Gemm"]
    found = folds(graph, [node.input[0] for node in layers])
    assert len(found) == (0 if activation is nn.Tanh else 2)
    parameters = dict(graph.read(read_state(module)))
    for fold in found:
        reach = np.abs(graph.subgraph([fold.value])({"observations": x, **parameters})[fold.value]).max(axis=0)
        weights = np.max([largest_weights(parameters[name], axis) for name, axis in fold.readers], axis=0)
        steps = feature_steps(reach, weights)
        assert steps.max() > 1.3 * steps.min() and np.log(steps).mean() == pytest.approx(0.0, abs=1e-5)
        for name, axis, reads in fold.parameters:
            factors = steps if reads else 1.0 / steps
            parameters[name] = parameters[name] * (
                factors[:, None] if axis == 0 and parameters[name].ndim > 1 else factors
            )
    outputs = graph.subgraph(["params"])({"observations": x, **parameters})["params"]
    np.testing.assert_allclose(outputs, module(torch.from_numpy(x)).detach(), rtol=1e-4, atol=1e-5)


def test_values_with_other_readers_have_no_steps_of_their_own() -> None:
    """A sum or a norm reads them too, or a layer is used twice."""
    graph = export_policy(Wired(), {"observations": torch.zeros(1, 11)}, ["params"])
    assert folds(graph, [node.input[0] for node in graph.nodes if node.op_type == "Gemm"]) == ()
