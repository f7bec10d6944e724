"""The offline study: more bits cost less, 8 bits cost what int8 costs, and it says that it is simulated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from accel.compressors.checks.verify import verify_artifact
from accel.compressors.errors import CalibrationError, SchemeError
from accel.compressors.quantisation.study import Simulation, quantisation_study
from tests.compressors.policies import CASES, randomise


@pytest.mark.parametrize("name", ["tanh-mlp", "nature-cnn", "lstm"])
def test_error_falls_with_every_bit(name: str) -> None:
    case = CASES[name]
    rows = quantisation_study(randomise(case.make(), seed=0), case.inputs(128))
    assert [row.bits for row in rows] == [2, 3, 4, 5, 6, 7, 8]
    errors, weights = [row.error for row in rows], [row.weights_error for row in rows]
    assert all(more < less for less, more in itertools.pairwise(errors))
    assert weights[-1] < weights[2] < weights[0]
    assert all(row.simulated for row in rows)


@pytest.mark.parametrize("per_channel", [False, True])
def test_eight_bits_cost_what_int8_costs(per_channel: bool) -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    inputs = case.inputs(256)
    (row,) = quantisation_study(module, inputs, [8], per_channel=per_channel)
    scheme = "int8(per_channel,u8s8,x8)" if per_channel else "int8(u8s8,x8)"
    plan = case.bind(scheme, module)
    for _ in range(100):
        plan.calibrate(inputs)
    measured = verify_artifact(plan.refresh(module, version=1), module, inputs, None)
    assert row.error == pytest.approx(measured.relative, rel=0.25)


def test_an_output_that_never_changes_is_compared_with_its_size() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    inputs = {name: np.ones_like(array) for name, array in case.inputs(16).items()}
    coarse, fine = quantisation_study(module, inputs, [2, 8])
    assert 0 < fine.error < coarse.error < 10


def test_the_policy_is_left_alone_and_the_divergence_is_the_callers() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def divergence(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (found - wanted).abs().max()

    rows = quantisation_study(module, case.inputs(64), [3, 8], divergence=divergence)
    assert rows[0].divergence > rows[1].divergence > 0.0
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_wrong_requests_are_refused() -> None:
    case = CASES["relu-mlp"]
    with pytest.raises(SchemeError, match="from 2 to 16"):
        quantisation_study(case.make(), case.inputs(8), [1])
    with pytest.raises(CalibrationError, match="at least two"):
        quantisation_study(case.make(), {"observations": np.zeros((1, 11), np.float32)})


@pytest.mark.parametrize(("per_channel", "scales"), [(False, 3), (True, 67)])
def test_bytes_are_codes_scales_and_what_stays_whole(per_channel: bool, scales: int) -> None:
    """Layers [32, 11], [32, 32] and [3, 32]; biases, normaliser and its 64-bit count stay as they are."""
    case = CASES["relu-mlp"]
    simulation = Simulation(case.make(), case.inputs(8), per_channel=per_channel)
    whole = 4 * (32 + 32 + 3) + 4 * 2 * 11 + 8
    packed = {3: 132 + 384 + 36, 4: 176 + 512 + 48, 8: 352 + 1024 + 96}
    for bits, codes in packed.items():
        assert simulation.size_bytes(bits) == whole + codes + 4 * scales


def test_a_simulated_policy_rounds_to_so_many_levels() -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    simulation = Simulation(module, case.inputs(64))
    read: list[torch.Tensor] = []
    for activations in (False, True):
        policy = simulation.policy(3, activations=activations)
        assert len(policy.torso[2].weight.unique()) <= 7
        # behind the rounding, which is a hook of the same kind and was registered first
        policy.torso[2].register_forward_pre_hook(lambda layer, arguments: read.append(arguments[0]))
        policy(*simulation.tensors)
    assert len(read[0].unique()) > 8 >= len(read[1].unique())
