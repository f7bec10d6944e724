"""The offline study: more bits cost less, 8 bits cost what int8 costs, and it says that it is simulated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from accel.compressors.checks.verify import relative_error, verify_artifact
from accel.compressors.errors import CalibrationError, SchemeError
from accel.compressors.quantisation.simulation import Simulation
from tests.compressors.policies import CASES, randomise


def error(simulation: Simulation, bits: int, *, activations: bool = True) -> float:
    with torch.no_grad():
        found = simulation.policy(bits, activations=activations)(*simulation.tensors)
    first = found if isinstance(found, torch.Tensor) else found[0]
    return relative_error(first.numpy(), simulation.reference.numpy())


@pytest.mark.parametrize("name", ["tanh-mlp", "nature-cnn", "lstm"])
def test_error_falls_with_every_bit(name: str) -> None:
    case = CASES[name]
    module = randomise(case.make(), seed=0)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    simulation = Simulation(module, case.inputs(128))
    errors = [error(simulation, bits) for bits in range(2, 9)]
    assert all(more < less for less, more in itertools.pairwise(errors))
    weights = [error(simulation, bits, activations=False) for bits in (2, 4, 8)]
    assert weights[2] < weights[1] < weights[0]
    assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())


@pytest.mark.parametrize("per_channel", [False, True])
def test_eight_bits_cost_what_int8_costs(per_channel: bool) -> None:
    case = CASES["relu-mlp"]
    module = randomise(case.make(), seed=0)
    inputs = case.inputs(256)
    scheme = "int8(per_channel,u8s8,x8)" if per_channel else "int8(u8s8,x8)"
    plan = case.bind(scheme, module)
    for _ in range(100):
        plan.calibrate(inputs)
    measured = verify_artifact(plan.refresh(module, version=1), module, inputs, None)
    assert error(Simulation(module, inputs, per_channel=per_channel), 8) == pytest.approx(measured.relative, rel=0.25)


def test_wrong_requests_are_refused() -> None:
    case = CASES["relu-mlp"]
    with pytest.raises(SchemeError, match="from 2 to 16"):
        Simulation(case.make(), case.inputs(8)).policy(1, activations=True)
    with pytest.raises(CalibrationError, match="at least two"):
        Simulation(case.make(), {"observations": np.zeros((1, 11), np.float32)})


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
