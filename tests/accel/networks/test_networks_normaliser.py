"""ObservationNormaliser: statistics against numpy over everything seen, and the constants it exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import build_network
from accel.networks.normaliser import ObservationNormaliser

ROWS = arrays(np.float32, st.tuples(st.integers(0, 6), st.just(3)), elements=st.floats(-1e3, 1e3, width=32))


@given(st.lists(ROWS, max_size=6))
def test_batches_merge_into_the_statistics_of_everything_seen(batches: list[np.ndarray]) -> None:
    normaliser = ObservationNormaliser((3,))
    for batch in batches:
        normaliser.update(torch.from_numpy(batch))
    seen = np.concatenate([np.zeros((0, 3), np.float32), *batches]).astype(np.float64)
    assert float(normaliser.count) == len(seen)
    if len(seen):
        np.testing.assert_allclose(normaliser.running_mean.numpy(), seen.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(normaliser.variance.numpy(), seen.var(0), rtol=1e-9, atol=1e-7)
    else:
        assert torch.equal(normaliser.mean, torch.zeros(3)) and torch.equal(normaliser.rstd, torch.ones(3))


def test_small_deviations_around_a_large_mean_survive() -> None:
    rng = np.random.default_rng(0)
    values = (4096.0 + rng.integers(0, 4, (50, 20, 2))).astype(np.float32)
    normaliser = ObservationNormaliser((2,))
    for batch in values:
        normaliser.update(torch.from_numpy(batch))
    expected = values.reshape(-1, 2).astype(np.float64).std(0)
    np.testing.assert_allclose(1.0 / normaliser.rstd.numpy(), expected, rtol=1e-6)
    single = values.reshape(-1, 2)
    naive = np.sqrt(np.abs((single**2).mean(0, dtype=np.float32) - single.mean(0, dtype=np.float32) ** 2))
    assert np.abs(naive / expected - 1.0).max() > 0.01, "a naive single-precision formula would do"


def test_observations_are_standardised_and_clipped() -> None:
    normaliser = ObservationNormaliser((2,))
    observations = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 0.1]) + 3.0
    normaliser.update(observations)
    normalised = normaliser(observations)
    torch.testing.assert_close(normalised.mean(0), torch.zeros(2), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(normalised.std(0, correction=0), torch.ones(2), rtol=1e-5, atol=0.0)
    assert torch.equal(normaliser(torch.tensor([[1e6, -1e6]])), torch.tensor([[10.0, -10.0]]))


def test_a_constant_feature_becomes_zero() -> None:
    normaliser = ObservationNormaliser((1,))
    for _ in range(7):
        normaliser.update(torch.full((3, 1), 0.1))
    assert torch.equal(normaliser(torch.full((2, 1), 0.1)), torch.zeros(2, 1))


def test_only_update_changes_the_statistics_and_no_gradient_reaches_them() -> None:
    spec = EnvSpec((3,), "float32", ActionSpec("categorical", (2,)))
    network = build_network("mlp:8x1", spec, normalise_observations=True)
    before = {name: tensor.clone() for name, tensor in network.normaliser.state_dict().items()}
    observations = torch.randn(4, 2, 3)
    output = network(observations, torch.zeros(4, 2, dtype=torch.bool))
    (output.params.sum() + output.values.sum()).backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in network.normaliser.state_dict().items())
    assert not any(name.startswith("normaliser") for name, _ in network.named_parameters())
    network.normaliser.update(observations.flatten(0, 1))
    assert not torch.equal(network(observations, torch.zeros(4, 2, dtype=torch.bool)).params, output.params)


def test_statistics_are_restored_from_a_state_dict_bit_for_bit() -> None:
    normaliser, other = ObservationNormaliser((3,)), ObservationNormaliser((3,))
    normaliser.update(torch.randn(11, 3))
    other.load_state_dict(normaliser.state_dict())
    more = torch.randn(5, 3)
    normaliser.update(more)
    other.update(more)
    assert all(torch.equal(t, other.state_dict()[name]) for name, t in normaliser.state_dict().items())


def test_an_identity_is_what_an_unused_normaliser_is_up_to_the_clip() -> None:
    observations = torch.tensor([[-3.0, 9.5]])
    assert torch.equal(ObservationNormaliser((2,))(observations), observations)
    assert ObservationNormaliser((2,)).variance.tolist() == pytest.approx([0.0, 0.0])
