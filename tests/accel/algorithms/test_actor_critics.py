"""IMPALA's and PPO's gradients against the loss written from its definition, and what they do with the optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.distributions import ActionDistribution, make_distribution
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError, DivergenceError
from accel.experience.batch import Batch
from accel.experience.stores.base import Sample
from accel.experience.unroll import UnrollLayout
from tests.accel.algorithms.learner_oracle import (
    CATEGORICAL,
    GAUSSIAN,
    MULTI,
    Oracle,
    junk_changed,
    make_batch,
    make_config,
)
from tests.contracts.test_algorithms import ignore

CPU = torch.device("cpu")
SPEC = EnvSpec((5,), "float32", CATEGORICAL)
SAME_STEP = EnvSpec((5,), "float32", CATEGORICAL, "same_step")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make(config: TrainConfig, spec: EnvSpec, seed: int = 0) -> tuple[GradientAlgorithm, Batch, torch.Tensor]:
    """A learner whose policy is far from uniform, and a batch for it."""
    learner = make_algorithm(config, spec, CPU)
    with torch.no_grad():
        for name, parameter in learner.network.policy_head.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(60.0)
    return (learner, *make_batch(spec, learner.network, seed))


def update(
    learner: GradientAlgorithm, batch: Batch, rewards: torch.Tensor, mark: Callable[[str], None] = ignore
) -> dict[str, float]:
    return learner.update(Sample(int(batch.valid.sum()), batch, rewards), 0.0, mark).read()


def gradients(learner: GradientAlgorithm) -> dict[str, torch.Tensor]:
    return {name: p.grad.double() for name, p in learner.network.named_parameters() if p.grad is not None}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp_min(1e-3)
        assert torch.allclose(actual[name] / scale, gradient / scale, atol=2e-4), name


def differ(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return any(not torch.allclose(actual[name], expected[name], rtol=1e-2, atol=1e-4) for name in expected)


CASES = {
    "vtrace": ({}, SPEC),
    "vtrace, clips": ({"clip_rho": 2.0, "clip_c": 1.5, "clip_pg_rho": 0.7}, SPEC),
    "vtrace, no clips": ({"clip_rho": None, "clip_c": None, "clip_pg_rho": None}, SPEC),
    "vtrace, resets within a step": ({"lambda_": 1.0}, SAME_STEP),
    "vtrace, normalised advantages": ({"normalise_advantages": True}, SPEC),
    "vtrace, normalised advantages, clips": (
        {"normalise_advantages": True, "clip_rho": 2.0, "clip_c": 1.5, "clip_pg_rho": 3.0},
        SPEC,
    ),
    "retrace, normalised advantages": ({"corrector": "retrace", "normalise_advantages": True}, SPEC),
    "vtrace, shared torso": ({"separate_value_torso": False, "activation": "relu"}, SPEC),
    "vtrace, several discrete actions": ({}, replace(SPEC, action=MULTI)),
    "vtrace, box": ({"entropy_cost": 0.1}, replace(SPEC, action=GAUSSIAN)),
    "vtrace, lstm": ({"network": "mlp:8x1+lstm:6"}, SPEC),
    "vtrace, gru": ({"network": "mlp:8x1+gru:6"}, SPEC),
    "retrace": ({"corrector": "retrace"}, SPEC),
    "retrace, clips": ({"corrector": "retrace", "clip_c": 0.6, "clip_pg_rho": 2.0, "lambda_": 1.0}, SPEC),
    "retrace, resets within a step": ({"corrector": "retrace", "separate_value_torso": False}, SAME_STEP),
    "retrace, lstm": ({"corrector": "retrace", "network": "mlp:8x1+lstm:6"}, SPEC),
    "none": ({"corrector": "none"}, SPEC),
    "none, resets within a step": ({"corrector": "none"}, SAME_STEP),
    "clipped surrogate": ({"algorithm": "ppo"}, SPEC),
}


@pytest.mark.few(len(CASES))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_those_of_the_definition(case: str, seed: int) -> None:
    changes, spec = CASES[case]
    config = make_config(**changes)
    learner, batch, rewards = make(config, spec, seed)
    oracle = Oracle(config, spec, learner.network)
    expected = oracle.gradients(batch, rewards)
    loss = oracle.loss(batch, rewards).item()
    statistics = update(learner, batch, rewards)
    assert_same(gradients(learner), expected)
    assert statistics["loss"] == pytest.approx(loss, rel=1e-3, abs=1e-4)
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in expected.values()])).item()
    assert statistics["gradient_norm"] == pytest.approx(norm, rel=1e-3)


@pytest.mark.parametrize("case", ["vtrace", "retrace", "clipped surrogate"])
def test_junk_leaves_sums_and_denominators(case: str) -> None:
    changes, spec = CASES[case]
    config = make_config(**changes)
    learner, batch, rewards = make(config, spec)
    assert not batch.valid.all()
    oracle = Oracle(config, spec, learner.network)
    update(learner, batch, rewards)
    clean, cleaned_batch, _ = make(config, spec)
    update(clean, junk_changed(cleaned_batch), rewards.masked_fill(~batch.valid, 0.0))
    for name, gradient in gradients(learner).items():
        assert torch.equal(gradient, gradients(clean)[name]), name
    oracle.batch_rows = batch.valid.numel()
    assert differ(gradients(learner), oracle.gradients(batch, rewards)), "all rows counted as steps"


def test_the_oracle_tells_broken_variants_apart() -> None:
    """What each mistake would change is visible on this batch: otherwise the comparisons above would prove nothing."""
    config = make_config(network="mlp:8x1+lstm:6")
    learner, batch, rewards = make(config, SPEC)
    expected = Oracle(config, SPEC, learner.network).gradients(batch, rewards)
    never_reset = replace(batch, first=torch.zeros_like(batch.first))
    all_valid = replace(batch, valid=torch.ones_like(batch.valid))
    all_bootstrapped = replace(batch, terminated=torch.zeros_like(batch.terminated))
    for broken in (never_reset, all_valid, all_bootstrapped):
        assert differ(Oracle(config, SPEC, learner.network).gradients(broken, rewards), expected)
    learner, batch, rewards = make(make_config(), SAME_STEP)
    expected = Oracle(make_config(), SAME_STEP, learner.network).gradients(batch, rewards)
    assert batch.final_observations is not None
    next_episodes = replace(batch, final_observations=batch.observations[1:])
    assert differ(Oracle(make_config(), SAME_STEP, learner.network).gradients(next_episodes, rewards), expected)


@pytest.mark.parametrize("network", ["mlp:8x1", "mlp:8x1+lstm:6"])
def test_later_passes_clip_around_the_policy_of_the_batch(network: str) -> None:
    config = make_config(
        network=network, algorithm="ppo", passes=3, clip_ratio=0.05, learning_rate=0.02, entropy_cost=0.0
    )
    learner, batch, rewards = make(config, SPEC)
    before = [copy.deepcopy(learner.network)]
    taken: list[dict[str, torch.Tensor]] = []

    def mark(phase: str) -> None:
        if phase == "backward":
            taken.append({name: g.clone() for name, g in gradients(learner).items()})
            before.append(copy.deepcopy(learner.network))

    update(learner, batch, rewards, mark)
    assert len(taken) == 3
    for network_then, actual in zip(before, taken, strict=False):
        assert_same(actual, Oracle(config, SPEC, network_then).gradients(batch, rewards, proximal=before[0]))
    unclipped = config.replace(clip_ratio=0.9)
    assert differ(taken[2], Oracle(unclipped, SPEC, before[2]).gradients(batch, rewards, proximal=before[0]))


def test_the_gradient_is_clipped_to_its_limit_and_reported_as_it_was() -> None:
    learner, batch, rewards = make(make_config(), SPEC)
    norm = update(learner, batch, rewards)["gradient_norm"]
    for limit in (norm / 10, norm * 10):
        clipped, batch, rewards = make(make_config(max_gradient_norm=limit), SPEC)
        assert update(clipped, batch, rewards)["gradient_norm"] == pytest.approx(norm)
        left = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients(clipped).values()])).item()
        assert left == pytest.approx(min(norm, limit), rel=1e-5)


@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
@pytest.mark.parametrize("what", ["reward", "infinite reward", "observation", "log-probability"])
def test_a_batch_that_is_no_number_changes_nothing(algorithm: str, what: str) -> None:
    learner, batch, rewards = make(make_config(algorithm=algorithm), SPEC)
    update(learner, batch, rewards)
    before = copy.deepcopy(learner.network.state_dict())
    if what == "observation":
        batch.observations[5, 1, 2] = float("nan")
    elif what == "log-probability":
        batch.behaviour_log_prob[1, 0] = float("nan")
    else:
        rewards[5, 1] = float("nan" if what == "reward" else "inf")
    with pytest.raises(DivergenceError):
        update(learner, batch, rewards)
    assert learner.is_finite()
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())


def test_a_normaliser_sees_each_valid_observation_once() -> None:
    learner, batch, rewards = make(make_config(normalise_observations=True), SPEC)
    layout = UnrollLayout(SPEC, *batch.valid.shape)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    unroll["observations"][...] = batch.observations.numpy()
    unroll["valid"][:-1] = batch.valid.numpy()
    learner.observe(unroll)
    update(learner, batch, rewards)
    update(learner, batch, rewards)
    seen = batch.observations[:-1][batch.valid]
    normaliser = learner.network.normaliser
    assert normaliser is not None and normaliser.count.item() == len(seen)
    assert torch.allclose(normaliser.mean, seen.mean(0), atol=1e-5)


def test_statistics_are_means_over_valid_steps() -> None:
    config = make_config(clip_rho=1.2, clip_c=1.0)
    learner, batch, rewards = make(config, SPEC)
    with torch.no_grad():
        params = learner.network(batch.observations, batch.first, batch.states).params[:-1]
    chosen = torch.log_softmax(params, -1).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
    log_rhos = (chosen - batch.behaviour_log_prob)[batch.valid]
    statistics = update(learner, batch, rewards)
    assert statistics["rho_mean"] == pytest.approx(log_rhos.exp().mean().item(), rel=1e-4)
    assert statistics["rho_clipped"] == pytest.approx((log_rhos.exp() > 1.2).float().mean().item(), rel=1e-4)
    assert statistics["behaviour_kl"] == pytest.approx(-log_rhos.mean().item(), rel=1e-3, abs=1e-5)
    probabilities = torch.softmax(params[batch.valid], -1)
    assert statistics["entropy"] == pytest.approx(
        -(probabilities * probabilities.log()).sum(-1).mean().item(), rel=1e-4
    )


def test_a_recurrent_network_needs_final_observations_in_its_rows() -> None:
    with pytest.raises(ConfigError, match=r"recurrent.*without \+lstm or \+gru"):
        make_algorithm(make_config(network="mlp:8x1+lstm:6"), SAME_STEP, CPU)


@pytest.mark.few(5)
@pytest.mark.parametrize("network", ["nature-cnn:0.25", "impala-resnet:0.25", "mlp:8x1", "nature-cnn:0.25+lstm:8"])
@pytest.mark.parametrize("changes", [{}, {"algorithm": "ppo", "passes": 2, "minibatches": 3}])
def test_images_in_another_memory_order_teach_the_same(network: str, changes: dict[str, object]) -> None:
    spec = EnvSpec((4, 36, 36), "uint8", CATEGORICAL)
    learned = []
    for layout in (torch.contiguous_format, torch.channels_last):
        learner = make_algorithm(make_config(network=network, activation="relu", **changes), spec, CPU)
        batch, rewards = make_batch(replace(spec, observation_shape=(1,)), learner.network)
        generator = torch.Generator().manual_seed(1)
        images = torch.randint(0, 256, (batch.first.numel(), 4, 36, 36), dtype=torch.uint8, generator=generator)
        images = images.contiguous(memory_format=layout).unflatten(0, batch.first.shape)
        update(learner, replace(batch, observations=images), rewards)
        learned.append(gradients(learner))
    assert_same(*learned)


def test_target_kl_is_held_against_the_mean_over_the_batch_and_not_the_last_minibatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a first pass the first minibatch is at the policy of the batch: the last is twice as far as the mean."""
    config = make_config(algorithm="ppo", passes=1, minibatches=2, learning_rate=0.05)
    learner, batch, rewards = make(config, SPEC)
    rows: list[torch.Tensor] = []

    def distribution(outputs: torch.Tensor, exploration: torch.Tensor | None) -> ActionDistribution:
        made = make_distribution(SPEC.action, outputs)
        kl = made.kl
        monkeypatch.setattr(made, "kl", lambda other: rows.append(kl(other).flatten()) or rows[-1].view(1, -1))
        return made

    monkeypatch.setattr(learner, "distribution", distribution)
    reported = update(learner, batch, rewards)["kl_from_batch"]
    first, last = rows
    mean = torch.cat((first, last)).mean().item()
    assert len(first) + len(last) == int(batch.valid.sum()) and first.max() < 1e-6
    assert reported == pytest.approx(mean, rel=1e-4) and last.mean().item() > 1.5 * mean > 0.0
    for target_kl, passes in ((0.9 * mean, 1), (1.2 * mean, 2)):
        phases: list[str] = []
        learner, batch, rewards = make(config.replace(passes=2, target_kl=target_kl), SPEC)
        update(learner, batch, rewards, phases.append)
        assert phases.count("backward") == 2 * passes
