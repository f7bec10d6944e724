"""What every action rule promises: actors in numpy and the learner in torch act by, and record, the same policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from accel.acting.rules import ActionRule, EpsilonGreedyRule, Sampler, Seat, make_rule
from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import make_algorithm
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError

CATEGORICAL = ActionSpec("categorical", (4,))
MULTI = ActionSpec("multi_categorical", (2, 4, 3))
GAUSSIAN = ActionSpec("gaussian", (3,), (-1.0, 0.0, -2.0), (1.0, 4.0, 2.0))
ENVS, ROWS = 200, 200


@dataclass(frozen=True)
class Case:
    """An algorithm's options and the action space that its rule is for."""

    action: ActionSpec
    options: dict[str, object]

    def algorithm(self) -> Algorithm:
        config = TrainConfig.create(network="mlp:8x1", **self.options)
        return make_algorithm(config, EnvSpec((3,), "float32", self.action), torch.device("cpu"))

    def rule(self) -> ActionRule:
        return make_rule(self.algorithm().rule, self.action)


DQN: dict[str, object] = {"algorithm": "dqn", "initial_epsilon": 0.8, "final_epsilon": 0.2}
CASES = {
    "stochastic, categorical": Case(CATEGORICAL, {}),
    "stochastic, several discrete": Case(MULTI, {}),
    "stochastic, box": Case(GAUSSIAN, {}),
    "ε-greedy": Case(CATEGORICAL, {**DQN, "duelling": False}),
    "ε-greedy, duelling": Case(CATEGORICAL, {**DQN, "duelling": True}),
}
DISCRETE = [name for name, case in CASES.items() if case.action.kind == "categorical"]
each = pytest.mark.parametrize("name", CASES)
discrete = pytest.mark.parametrize("name", DISCRETE)


def outputs_of(rule: ActionRule, *shape: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=(*shape, rule.output_size)).astype(np.float32)


def play(
    rule: ActionRule, action: ActionSpec, row: Any, env_steps: int = 5000, rows: int = ROWS
) -> tuple[Any, Sampler]:
    """``rows`` · ENVS actions on the same outputs."""
    sampler = rule.bind(Seat(ENVS, rows), np.random.default_rng(11))
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
                assert sampler.exploration is not None
                exploration = torch.full((ENVS,), sampler.exploration)
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
    recorded = stochastic.bind(Seat(ENVS, 1), np.random.default_rng(0)).log_prob(params, actions)
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
    sampler, out = rule.bind(Seat(ENVS, 1), np.random.default_rng(0)), empty(name)
    sampler.greedy(outputs, out)
    exploration = torch.zeros(ENVS) if algorithm.explores else None
    mode = algorithm.distribution(torch.from_numpy(outputs), exploration).mode()
    np.testing.assert_array_equal(out, mode.numpy())
    if CASES[name].action is CATEGORICAL:
        np.testing.assert_array_equal(out, outputs[:, :4].argmax(1))


@each
def test_the_same_generator_gives_the_same_actions(name: str) -> None:
    rule = CASES[name].rule()
    row = outputs_of(rule)
    one, two = play(rule, CASES[name].action, row)[0], play(rule, CASES[name].action, row)[0]
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one, axis=0)) > 1


# --- ε-greedy ---


@pytest.mark.parametrize("duelling", [False, True])
def test_epsilon_greedy_records_its_own_probabilities(duelling: bool) -> None:
    """1 − ε + ε/n of the greatest and ε/n of any other action, at the ε of the unroll."""
    rule = EpsilonGreedyRule(
        CATEGORICAL, duelling=duelling, initial_epsilon=0.9, final_epsilon=0.1, exploration_env_steps=100
    )
    sampler = rule.bind(Seat(3, 1), np.random.default_rng(0))
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


def test_epsilon_greedy_needs_one_discrete_action() -> None:
    for action in (MULTI, GAUSSIAN):
        with pytest.raises(ConfigError, match="discrete"):
            EpsilonGreedyRule(action)


# --- softmax ---


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
            Seat(ENVS, 1),
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
