"""Sampled mismatch against its definition, its memory and its budget of the algorithm's time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter

import numpy as np
import pytest
import torch

from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.distributions import make_distribution
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batcher
from accel.experience.unroll import Unroll, UnrollLayout
from accel.monitor.mismatch import effective_horizon, factor_mismatch
from accel.networks import build_network
from accel.tuning.mismatch_copies import PolicyCopies
from accel.tuning.mismatch_sampling import COPIES, MismatchSampler

BOX = ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2)
VECTOR = EnvSpec((5,), "float32", BOX)
T, B = 8, 4
SCHEMES = ("fp32", "int8")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _config(**changes: object) -> TrainConfig:
    return TrainConfig.create(network="mlp:16x2", envs_per_actor=B, unroll_length=T, discount=0.9, **changes)


def _unroll(
    algorithm: Algorithm, version: int, seed: int = 0, *, scheme_ids: tuple[int, ...] = (1,) * B, error: float = 0.05
) -> Unroll:
    """What an actor would send whose compressed policy is off by ``error``: real shapes, masks and recorded μ."""
    network, spec = algorithm.network, algorithm.network.spec
    layout = UnrollLayout(spec, T, B, network.state_shapes)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    generator = torch.Generator().manual_seed(seed)
    random = np.random.default_rng(seed)
    unroll["observations"][...] = torch.randn(T + 1, B, *spec.observation_shape, generator=generator).numpy()
    unroll["valid"][...] = random.random((T + 1, B)) < 0.9
    unroll["first"][...] = random.random((T + 1, B)) < 0.1
    unroll["terminated"][...] = random.random((T, B)) < 0.1
    for state in unroll.states:
        state[...] = random.standard_normal(state.shape)
    with torch.no_grad():
        first = torch.from_numpy(unroll["first"][:T].copy())
        states = tuple(torch.from_numpy(state.copy()) for state in unroll.states)
        params = network(torch.from_numpy(unroll["observations"][:T].copy()), first, states).params
    params = params + error * torch.randn(params.shape, generator=generator)
    distribution = make_distribution(spec.action, params)
    actions = distribution.sample(generator)
    unroll["behaviour_params"][...] = params.numpy()
    unroll["actions"][...] = actions.numpy()
    unroll["behaviour_log_prob"][...] = distribution.log_prob(actions).numpy()
    unroll["policy_version"][...] = version
    unroll["scheme_id"][...] = scheme_ids
    unroll["header"][1] = version
    return unroll


def _made(
    config: TrainConfig | None = None, share: float = 1e6, clock: Callable[[], float] = perf_counter
) -> tuple[Algorithm, MismatchSampler]:
    config = config or _config()
    algorithm, batcher = make_algorithm(config, VECTOR, CPU), Batcher(VECTOR, CPU)
    return algorithm, MismatchSampler(config, algorithm, SCHEMES, batcher, time_share=share, clock=clock)


@pytest.mark.parametrize("network", ["mlp:16x2", "mlp:16x1+lstm:8"])
def test_sample_is_its_definition(network: str) -> None:
    config = _config(clip_rho=1.2, lambda_=0.8).replace(network=network)
    algorithm, sampler = _made(config, clock=lambda: 0.0)  # nothing costs anything
    sampler.published(3)
    sampler.observe(_unroll(algorithm, version=3))
    (first_sample,) = sampler.recent("int8")
    assert first_sample.total.states <= T, "one environment, as what they take is not known yet"
    sampler.forget()
    unroll = _unroll(algorithm, version=23)
    sampler.published(23)
    observations = torch.from_numpy(unroll["observations"][:T])
    first = torch.from_numpy(unroll["first"][:T])
    states = tuple(torch.from_numpy(state) for state in unroll.states)
    with torch.no_grad():
        of_version = algorithm.network(observations, first, states).params
        for parameter in algorithm.network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape)
        target = algorithm.network(observations, first, states).params
    sampler.observe(unroll)
    (sample,) = sampler.recent("int8")
    actions = torch.from_numpy(unroll["actions"])
    log_probs = [make_distribution(BOX, params).log_prob(actions).numpy() for params in (target, of_version)]
    expected = factor_mismatch(
        BOX,
        target.numpy(),
        of_version.numpy(),
        unroll["behaviour_params"],
        *(log_prob - unroll["behaviour_log_prob"] for log_prob in log_probs),
        valid=unroll["valid"][:T],
        ends=unroll["terminated"],
        horizon=effective_horizon(0.9, 0.8, T),
        clip_rho=1.2,
    )
    for factor in ("staleness", "compression", "total"):
        found, wanted = asdict(getattr(sample, factor)), asdict(getattr(expected, factor))
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5), factor
    assert sample.staleness.kl > 1e-4 and sample.compression.kl > 1e-4


def test_schemes_are_measured_apart() -> None:
    algorithm, sampler = _made()
    sampler.published(0)
    sampler.observe(_unroll(algorithm, version=0, scheme_ids=(0,) * B, error=0.0))
    mixed, whole = (_unroll(algorithm, version=0, scheme_ids=ids, error=0.0) for ids in ((1, 0, 1, 0), (1,) * B))
    whole["behaviour_params"][:, [0, 2]] += 0.3
    sampler.observe(mixed)
    assert not sampler.recent("int8"), "rows of two policies are of no level"
    sampler.observe(whole)
    assert sampler.recent("fp32")[0].compression.ess == pytest.approx(1.0, abs=1e-5)
    assert sampler.recent("int8")[0].compression.ess < 0.95
    metrics = sampler.metrics()
    assert metrics["mismatch_samples"] == 2 and metrics["mismatch_samples/int8"] == 1
    assert metrics["compression_ess/int8"] < metrics["compression_ess"] < metrics["compression_ess/fp32"]


def test_unrolls_of_other_versions_are_left_alone_and_each_scheme_is_measured_once_a_copy() -> None:
    algorithm, sampler = _made()
    sampler.published(4)
    other, mine = _unroll(algorithm, version=5), _unroll(algorithm, version=4)
    sampler.observe(other)
    assert not sampler.recent("int8")
    for _ in range(3):
        sampler.observe(other)
        sampler.observe(mine)
    assert len(sampler.recent("int8")) == 1


def test_memory_is_a_fixed_number_of_copies_of_what_was_then() -> None:
    network = build_network("mlp:16x2", VECTOR, normalise_observations=True)
    copies = PolicyCopies(network, COPIES)
    observations, first = torch.randn(T, B, 5), torch.zeros(T, B, dtype=torch.bool)
    outputs = {}
    for version in range(12):
        copies.keep(version)
        with torch.no_grad():
            outputs[version] = copies.act(None, observations, first, ())
            for parameter in network.parameters():
                parameter += 0.1
    assert list(copies.versions) == [8, 9, 10, 11] and len(copies.versions) == COPIES
    for version in copies.versions:
        torch.testing.assert_close(copies.act(version, observations, first, ()), outputs[version])


def _count(sampler: MismatchSampler) -> int:
    """How many samples there were since the last call."""
    return int(str(sampler.metrics().get("mismatch_samples/int8", 0)))


@pytest.mark.slow
def test_time_stays_within_its_share() -> None:
    """On a clock that moves by one millisecond at each look, so that a copy or a sample takes one."""
    shares, counts = [], []
    for share in (1e6, 0.02, 0.002):
        ticks = itertools.count()
        algorithm, sampler = _made(share=share, clock=lambda ticks=ticks: next(ticks) * 1e-3)
        unroll = _unroll(algorithm, version=0)
        for version in range(2000):
            sampler.published(version)
            unroll["policy_version"][...] = unroll["header"][1] = version
            sampler.observe(unroll)
        shares.append(sampler.time_share)
        counts.append(_count(sampler))
    assert shares[0] > 0.3 and counts[0] >= 1500
    assert 0.01 < shares[1] < 0.021 and 10 < counts[1] < 60
    assert 0.0005 < shares[2] < 0.0022 and 0 < counts[2] < 6


def test_a_process_that_is_stopped_meanwhile_goes_on_sampling() -> None:
    now, reads, counts = 0.0, 0, []

    def clock() -> float:
        nonlocal now, reads
        now, reads = now + 1e-3, reads + 1
        if len(counts) > 1000 and reads == 3 and now < 100.0:  # read: affordable, began, ended
            now += 100.0
        return now

    algorithm, sampler = _made(share=0.02, clock=clock)
    unroll = _unroll(algorithm, version=0)
    for version in range(3000):
        sampler.published(version)
        unroll["policy_version"][...] = unroll["header"][1] = version
        reads = 0
        sampler.observe(unroll)
        reads = -100
        counts.append(_count(sampler))
    assert now > 100.0 and sampler.time_share > 0.5, "it is told all the same"
    assert sum(counts[2000:]) >= 0.8 * sum(counts[:1000])


@pytest.mark.parametrize("lag", [3, 40])
def test_copies_wait_for_their_unrolls_however_late_these_come(lag: int) -> None:
    algorithm, sampler = _made()
    unroll = _unroll(algorithm, version=0)
    for version in range(600):
        sampler.published(version)
        unroll["policy_version"][...] = unroll["header"][1] = max(version - lag, 0)
        sampler.observe(unroll)
    assert _count(sampler) >= 600 // (2 * lag + 2 * COPIES) * COPIES - 2 * COPIES


def test_metrics_cover_the_time_since_the_last_record() -> None:
    algorithm, sampler = _made()
    assert set(sampler.metrics()) == {"mismatch_time_share", "mismatch_alarms"}
    unroll = _unroll(algorithm, version=0)
    sampler.published(0)
    sampler.observe(unroll)
    first = sampler.metrics()
    for name in ("staleness_kl", "compression_ess/int8", "total_retention", "compression_greedy_agreement/int8"):
        assert isinstance(first[name], float), name
    assert "staleness_kl" not in sampler.metrics()
    assert len(sampler.recent("int8")) == 1
    sampler.forget()
    assert not sampler.recent("int8")


def test_alarms_are_told_once_and_recorded_while_they_last(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, sampler = _made()
    texts = []
    with caplog.at_level(logging.INFO, "accel"):
        for turn, error in enumerate((3.0, None, 0.0, 3.0)):
            sampler.published(10 * turn)
            if error is not None:  # a record without a sample tells nothing
                sampler.observe(_unroll(algorithm, 10 * turn, error=error))
            texts.append(str(sampler.metrics()["mismatch_alarms"]))
    assert ["compression of int8: ess is" in text for text in texts] == [True, True, False, True] and texts[2] == ""
    begun = [r for r in caplog.records if "mismatch alarm: compression of int8: ess" in r.message]
    assert len(begun) == 1
    assert not any("staleness" in record.message for record in caplog.records)
