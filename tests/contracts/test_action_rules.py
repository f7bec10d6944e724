"""What every action rule promises: actors in numpy and the learner in torch act by, and record, the same policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from accel.acting.rules import ActionRule, ActorPlace, EpsilonGreedyRule, RuleSpec, Sampler, make_rule
from accel.algorithms.base import Algorithm, make_divergence
from accel.algorithms.catalogue import make_algorithm
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError

CATEGORICAL = ActionSpec("categorical", (4,))
MULTI = ActionSpec("multi_categorical", (2, 4, 3))
GAUSSIAN = ActionSpec("gaussian", (3,), (-1.0, 0.0, -2.0), (1.0, 4.0, 2.0))
SQUASHED = ActionSpec("gaussian", (3,), (-1.0, 0.0, -2.0), (1.0, 4.0, 2.0), squash=True)
ENVS, ROWS = 200, 200


@dataclass(frozen=True)
class Case:
    """An algorithm's options and the action space that its rule is for."""

    action: ActionSpec
    options: dict[str, object]

    def algorithm(self) -> Algorithm:
        config = TrainConfig.create(**{**self.options, "network": "mlp:8x1"})
        return make_algorithm(config, EnvSpec((3,), "float32", self.action), torch.device("cpu"))

    def rule(self) -> ActionRule:
        return make_rule(self.algorithm().rule, self.action)


DQN: dict[str, object] = {
    "algorithm": "dqn", "initial_epsilon": 0.8, "final_epsilon": 0.2, "exploration_env_steps": 20_000,
}  # fmt: skip
CASES = {
    "stochastic, categorical": Case(CATEGORICAL, {}),
    "stochastic, several discrete": Case(MULTI, {}),
    "stochastic, box": Case(GAUSSIAN, {}),
    "squashed Gaussian": Case(SQUASHED, {"algorithm": "sac"}),
    "Gaussian noise": Case(SQUASHED, {"algorithm": "d4pg", "noise": 0.4}),
    "ε-greedy": Case(CATEGORICAL, {**DQN, "duelling": False}),
    "ε-greedy, duelling": Case(CATEGORICAL, {**DQN, "duelling": True}),
    "ε-greedy, an ε for each environment": Case(CATEGORICAL, {"algorithm": "apex", "base_epsilon": 0.8}),
}
DISCRETE = [name for name, case in CASES.items() if case.action.kind == "categorical" and "each" not in name]
each = pytest.mark.parametrize("name", CASES)
discrete = pytest.mark.parametrize("name", DISCRETE)


def outputs_of(rule: ActionRule, *shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=(*shape, rule.output_size)).astype(np.float32)


def play(
    rule: ActionRule, action: ActionSpec, row: Any, env_steps: int = 5000, rows: int = ROWS
) -> tuple[Any, Sampler]:
    """``rows`` · ENVS actions on the same outputs."""
    sampler = rule.bind(ActorPlace(ENVS, rows), np.random.default_rng(11))
    sampler.begin(env_steps)
    outputs, actions = np.repeat(row[None], ENVS, 0), np.zeros((rows, ENVS, *action.shape), action.dtype)
    for t in range(rows):
        sampler.sample(outputs, t, actions[t])
    return actions.reshape(-1, *action.shape), sampler


def empty(name: str) -> Any:
    action = CASES[name].action
    return np.zeros((ENVS, *action.shape), action.dtype)


@each
def test_the_rule_is_the_learners_and_fits_its_outputs(name: str) -> None:
    algorithm, rule = CASES[name].algorithm(), CASES[name].rule()
    assert rule.output_size == algorithm.output_size and rule.explores == algorithm.explores


@each
def test_recorded_log_probabilities_are_those_of_the_learners_distribution(name: str) -> None:
    algorithm, rule = CASES[name].algorithm(), CASES[name].rule()
    for env_steps in (0, 5000, 10**9):
        for seed in range(20):
            row = outputs_of(rule, seed=seed)
            actions, sampler = play(rule, CASES[name].action, row, env_steps, 1)
            outputs = np.repeat(row[None], ENVS, 0)
            recorded = sampler.log_prob(outputs, actions)
            exploration = None
            if algorithm.explores:
                exploration = torch.from_numpy(np.broadcast_to(np.float32(sampler.exploration), ENVS).copy())
            twin = algorithm.distribution(torch.from_numpy(outputs), exploration)
            expected = twin.log_prob(torch.from_numpy(actions)).numpy()
            assert recorded.dtype == np.float32
            np.testing.assert_allclose(recorded, expected, atol=1e-5, rtol=1e-5)
            other = algorithm.distribution(torch.from_numpy(outputs + outputs[:, ::-1]), exploration)
            if not algorithm.explores:
                assert np.abs(recorded - other.log_prob(torch.from_numpy(actions)).numpy()).max() > 1e-3


@each
def test_action_parameters_describe_the_same_policy(name: str) -> None:
    """What the monitor compares: parameters of the action space's own distribution."""
    algorithm, rule = CASES[name].algorithm(), CASES[name].rule()
    stochastic = make_rule(CASES["stochastic, categorical"].algorithm().rule, CASES[name].action)
    outputs = outputs_of(rule, ENVS)
    exploration = np.full(ENVS, 0.37, np.float32) if rule.explores else None
    params = rule.action_params(outputs, exploration)
    actions, _ = play(rule, CASES[name].action, outputs_of(rule), rows=1)
    recorded = stochastic.bind(ActorPlace(ENVS, 1), np.random.default_rng(0)).log_prob(params, actions)
    given = None if exploration is None else torch.from_numpy(exploration)
    expected = algorithm.distribution(torch.from_numpy(outputs), given).log_prob(torch.from_numpy(actions))
    np.testing.assert_allclose(recorded, expected.numpy(), atol=1e-5, rtol=1e-5)


def misfit(counts: Any, probabilities: Any) -> float:
    """χ² over its 1-in-100,000 limit, by Wilson and Hilferty; above 1 the frequencies are others."""
    degrees = len(probabilities) - 1
    expected = counts.sum() * probabilities
    limit = degrees * (1 - 2 / (9 * degrees) + 4.27 * np.sqrt(2 / (9 * degrees))) ** 3
    return float(((counts - expected) ** 2 / expected).sum() / limit)


@discrete
def test_frequencies_are_the_recorded_probabilities(name: str) -> None:
    rule = CASES[name].rule()
    row = outputs_of(rule)
    actions, sampler = play(rule, CASES[name].action, row)
    n = CATEGORICAL.sizes[0]
    probabilities = np.exp(sampler.log_prob(np.repeat(row[None], n, 0), np.arange(n)).astype(np.float64))
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-5)
    counts = np.bincount(actions, minlength=n)
    assert misfit(counts, probabilities) < 1 < misfit(counts, np.roll(probabilities, 1))
    assert misfit(counts, 0.95 * probabilities + 0.05 / n) > 1


@each
def test_greedy_actions_are_the_most_likely(name: str) -> None:
    algorithm, rule = CASES[name].algorithm(), CASES[name].rule()
    outputs = outputs_of(rule, ENVS)
    sampler, out = rule.bind(ActorPlace(ENVS, 1), np.random.default_rng(0)), empty(name)
    sampler.greedy(outputs, out)
    exploration = torch.zeros(ENVS) if algorithm.explores else None
    mode = algorithm.distribution(torch.from_numpy(outputs), exploration).mode()
    np.testing.assert_allclose(out, mode.numpy(), rtol=1e-6)
    if CASES[name].action is CATEGORICAL:
        np.testing.assert_array_equal(out, outputs[:, :4].argmax(1))


# --- continuous actions ---


@pytest.mark.parametrize("name", ["squashed Gaussian", "Gaussian noise"])
def test_actions_of_a_continuous_rule_stay_within_their_bounds(name: str) -> None:
    rule = CASES[name].rule()
    actions, sampler = play(rule, SQUASHED, outputs_of(rule))
    before = actions.copy()
    found = sampler.to_env(actions)
    low, high = np.array(SQUASHED.low, np.float32), np.array(SQUASHED.high, np.float32)
    assert ((low <= found) & (found <= high)).all() and np.array_equal(actions, before)
    assert found.std(0).min() > 0.01


def test_noise_is_that_of_its_definition() -> None:
    """tanh of the output in the middle of a Gaussian of σ in halves of the range; clipped, not reflected."""
    rule = CASES["Gaussian noise"].rule()
    row = np.array([0.0, 0.5, -3.0], np.float32)
    actions, sampler = play(rule, SQUASHED, row)
    np.testing.assert_allclose(actions.mean(0), np.tanh(row), atol=0.02)
    np.testing.assert_allclose(actions.std(0), 0.4, atol=0.02)
    np.testing.assert_allclose(sampler.to_env(actions[:1])[0, 1], 2 + 2 * np.clip(actions[0, 1], -1, 1), rtol=1e-5)


def test_the_divergence_of_deterministic_policies_is_the_squared_action_error_over_the_noise() -> None:
    algorithm = CASES["Gaussian noise"].algorithm()
    one, two = outputs_of(CASES["Gaussian noise"].rule(), 50), outputs_of(CASES["Gaussian noise"].rule(), 50, seed=9)
    found = make_divergence(algorithm).of_rows(one, two)
    np.testing.assert_allclose(found, ((np.tanh(one) - np.tanh(two)) ** 2).sum(-1) / (2 * 0.4**2), rtol=1e-4)


def test_the_divergence_of_squashed_gaussians_is_that_of_the_bounded_ones() -> None:
    """Deviations beyond the bounds act alike."""
    algorithm = CASES["squashed Gaussian"].algorithm()
    one = outputs_of(CASES["squashed Gaussian"].rule(), 50)
    one[:, 3:] = 2.5
    two = one.copy()
    two[:, 3:] = 9.0
    assert np.abs(make_divergence(algorithm).of_rows(one, two)).max() < 1e-6
    two[:, 3:] = 1.0
    assert make_divergence(algorithm).of_rows(one, two).min() > 0.1


@pytest.mark.parametrize("name", ["squashed-gaussian", "gaussian-noise"])
def test_a_rule_of_bounded_actions_refuses_others(name: str) -> None:
    for action in (CATEGORICAL, GAUSSIAN):
        with pytest.raises(ConfigError, match="squash"):
            make_rule(RuleSpec(name, {"noise": 0.1} if name == "gaussian-noise" else {}), action)


# --- ε-greedy ---


@pytest.mark.parametrize("duelling", [False, True])
def test_epsilon_greedy_records_its_own_probabilities(duelling: bool) -> None:
    """1 − ε + ε/n of the greatest and ε/n of any other action, at the ε of the unroll."""
    rule = EpsilonGreedyRule(
        CATEGORICAL, duelling=duelling, initial_epsilon=0.9, final_epsilon=0.1, exploration_env_steps=100
    )
    sampler = rule.bind(ActorPlace(3, 1), np.random.default_rng(0))
    outputs = np.array([[5, 1, 0, 0], [0, 0, 3, 2], [1, 2, 0, 9]], np.float32)
    if duelling:
        outputs = np.concatenate([outputs, [[99], [0], [-99]]], 1).astype(np.float32)
    for env_steps, epsilon in ((0, 0.9), (50, 0.5), (100, 0.1), (10**6, 0.1)):
        sampler.begin(env_steps)
        assert sampler.exploration == pytest.approx(epsilon)
        best, rest = 1 - epsilon + epsilon / 4, epsilon / 4
        taken = np.array([0, 3, 3])
        expected = np.log([best, rest, best])
        np.testing.assert_allclose(sampler.log_prob(outputs, taken), expected, atol=1e-5)


@pytest.mark.parametrize(("actors", "envs"), [(1, 1), (1, 8), (3, 4)])
def test_the_environments_of_all_actors_share_one_ladder_of_epsilon(actors: int, envs: int) -> None:
    """ε^(1 + α i / (M − 1)) of environment i of M, and it is what they explore with."""
    rule = EpsilonGreedyRule(CATEGORICAL, initial_epsilon=0.5, final_epsilon=0.1, exponent=3.0)
    found: list[float] = []
    for actor in range(actors):
        sampler = rule.bind(ActorPlace(envs, 4000, actor, actors), np.random.default_rng(actor))
        sampler.begin(10**6)
        epsilon = np.broadcast_to(np.asarray(sampler.exploration), envs)
        found += epsilon.tolist()
        outputs, actions = np.zeros((envs, 4), np.float32), np.zeros((4000, envs), np.int64)
        for t in range(4000):
            sampler.sample(outputs, t, actions[t])
        np.testing.assert_allclose((actions != 0).mean(0), 0.75 * epsilon, atol=0.035)
        expected = np.log(np.maximum(epsilon / 4, 1e-8))
        np.testing.assert_allclose(sampler.log_prob(outputs, np.ones(envs, np.int64)), expected, rtol=1e-4)
    number = actors * envs
    np.testing.assert_allclose(found, [0.5 ** (1 + 3 * i / max(number - 1, 1)) for i in range(number)], rtol=1e-5)


def test_epsilon_greedy_needs_one_discrete_action() -> None:
    for action in (MULTI, GAUSSIAN):
        with pytest.raises(ConfigError, match="discrete"):
            EpsilonGreedyRule(action)


class ExtremeGenerator:
    """Draws the exponentials that float32 gives once in a long run: exact zeros for one action, usual ones else."""

    def __init__(self, action: int) -> None:
        self.action = action

    def standard_exponential(self, *, dtype: Any, out: Any) -> None:
        out[...] = 1.0
        out[..., self.action] = 0.0


@pytest.mark.parametrize("action", [ActionSpec("categorical", (2,)), ActionSpec("multi_categorical", (2, 2))])
def test_an_action_of_no_probability_is_never_drawn(action: ActionSpec) -> None:
    """Its probability is zero in single precision; its noise is as large as can be."""
    for unlikely in (0, 1):
        logits = np.zeros((ENVS, 2), np.float32)
        logits[:, unlikely] = -200.0
        params = np.tile(logits, (1, len(action.sizes)))
        sampler = make_rule(CASES["stochastic, categorical"].algorithm().rule, action).bind(
            ActorPlace(ENVS, 1),
            ExtremeGenerator(unlikely),  # type: ignore[arg-type]
        )
        sampler.begin()
        out = np.zeros((ENVS, *action.shape), np.int64)
        sampler.sample(params, 0, out)
        assert (out == 1 - unlikely).all()


def test_that_draw_would_be_another_without_the_bound() -> None:
    exponentials, logits = np.array([1.0, 0.0], np.float32), np.array([0.0, -200.0], np.float32)
    with np.errstate(divide="ignore"):
        assert (logits - np.log(exponentials)).argmax() == 1
