"""What every algorithm promises, on each of them; IMPACT's ratio and DQN's target against their definitions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accel.acting.rules import Seat, make_rule
from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import agree, make_algorithm, make_store
from accel.algorithms.impact import surrogate_log_ratio
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import CheckpointError, DivergenceError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample, Store, Transitions
from accel.experience.unroll import Unroll

CPU = torch.device("cpu")
SPEC = EnvSpec((2,), "float32", ActionSpec("categorical", (2,)))
ROWS, ENVS = 8, 4
DQN: dict[str, object] = {"algorithm": "dqn", "batch_size": 16, "exploration_env_steps": 4000}
ALGORITHMS: dict[str, dict[str, object]] = {
    "impala": {"algorithm": "impala"},
    "impala, retrace": {"algorithm": "impala", "corrector": "retrace"},
    "impala, lstm": {"algorithm": "impala", "network": "mlp:8x1+lstm:6"},
    "ppo": {"algorithm": "ppo", "passes": 2, "minibatches": 2},
    "impact": {"algorithm": "impact", "target_interval_updates": 3},
    "dqn": {**DQN, "target_interval_updates": 3},
    "dqn, plain": {**DQN, "double": False, "duelling": False, "n_step": 1},
    "the page's": {"algorithm": "tests.contracts.page_algorithm:factory"},
}
each = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def config(name: str, **changes: object) -> TrainConfig:
    plain: dict[str, object] = {"network": "mlp:8x1", "unroll_length": ROWS, "envs_per_actor": ENVS}
    return TrainConfig.create(**{**plain, "learning_rate": 0.01, **ALGORITHMS[name], **changes})


def ignore(_phase: str) -> None:
    """Nobody wants the time."""


class Chain:
    """Two states in turns, shown as a unit vector; whoever takes the action of the state's number gets ``pay``.

    Acts as an actor does, by the algorithm's rule on its acting module, and fills its store.
    """

    def __init__(self, options: TrainConfig, algorithm: Algorithm, seed: int = 0) -> None:
        self.algorithm = algorithm
        rewards = RewardTransform(options.rewards, options.algorithm.discount)
        self.store: Store = make_store(options, SPEC, CPU, Batcher(SPEC, CPU), rewards)
        _, self.layout = agree(options, algorithm)
        self.sampler = make_rule(algorithm.rule, SPEC.action).bind(Seat(ENVS, ROWS), np.random.default_rng(seed))
        self.acting = algorithm.network.acting_module()
        self.state = algorithm.network.initial_state(ENVS)
        self.sequence = self.env_steps = self.t = 0
        self.places = np.random.default_rng(seed).integers(2, size=ENVS)
        self.paid: list[float] = []

    def collect(self, pay: float = 1.0) -> Unroll:
        """One unroll, inserted."""
        unroll = self.layout.view(np.zeros(self.layout.nbytes, np.uint8))
        self.sampler.begin(self.env_steps)
        for i, part in enumerate(self.state):
            unroll[f"state_{i}"][...] = part.numpy()
        for t in range(ROWS):
            unroll["observations"][t] = np.eye(2)[self.places]
            unroll["first"][t] = self.t == 0
            with torch.no_grad():
                outputs, *state = self.acting(torch.from_numpy(unroll["observations"][t]), *self.state)
            self.state, self.t = tuple(state), self.t + 1
            params: Any = outputs.numpy()
            actions: Any = unroll["actions"][t]
            self.sampler.sample(params, t, actions)
            unroll["behaviour_params"][t] = params
            unroll["behaviour_log_prob"][t] = self.sampler.log_prob(params, actions)
            if self.algorithm.explores:
                unroll["exploration"][t] = self.sampler.exploration
            unroll["rewards"][t] = pay * (actions == self.places)
            self.places = 1 - self.places
        unroll["observations"][ROWS] = np.eye(2)[self.places]
        unroll["valid"][...] = True
        unroll["header"][:3] = self.sequence, 0, ROWS * ENVS
        self.sequence, self.env_steps = self.sequence + 1, self.env_steps + ROWS * ENVS
        self.paid.append(float((unroll["rewards"] != 0).mean()))
        self.algorithm.observe(unroll)
        self.store.insert(Experience(0, unroll, lambda: None))
        return unroll

    def sample(self) -> Sample:
        """The next sample, after as many unrolls as it needs."""
        while (sample := self.store.sample()) is None:
            self.collect()
        return sample

    def update(self) -> dict[str, float]:
        """Collect once and update once."""
        self.collect()
        sample = self.sample()
        update = self.algorithm.update(sample, 0.0, ignore)
        self.store.feedback(sample, update.priorities)
        return update.read()


def make(name: str, **changes: object) -> tuple[Algorithm, Chain]:
    options = config(name, **changes)
    algorithm = make_algorithm(options, SPEC, CPU)
    return algorithm, Chain(options, algorithm)


def parameters(algorithm: Algorithm) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in algorithm.networks.state_dict().items()}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


# --- every algorithm ---


@each
def test_actors_run_the_learners_policy(name: str) -> None:
    """Step by step on the acting module as over the whole unroll on the network, and as actors recorded it."""
    algorithm, chain = make(name)
    chain.collect()
    unroll = chain.collect()
    observations, first = (torch.from_numpy(unroll[field]) for field in ("observations", "first"))
    with torch.no_grad():
        output = algorithm.network(observations, first, tuple(torch.from_numpy(part) for part in unroll.states))
    params = output.params[:-1]
    assert params.shape[-1] == algorithm.output_size
    np.testing.assert_allclose(params.numpy(), unroll["behaviour_params"], atol=1e-5)
    exploration = torch.from_numpy(unroll["exploration"]) if algorithm.explores else None
    log_prob = algorithm.distribution(params, exploration).log_prob(torch.from_numpy(unroll["actions"]))
    np.testing.assert_allclose(log_prob.numpy(), unroll["behaviour_log_prob"], atol=1e-5)


@each
def test_an_update_changes_parameters_marks_its_phases_and_has_metrics(name: str) -> None:
    algorithm, chain = make(name)
    before, phases = parameters(algorithm), list[str]()
    metrics = algorithm.update(chain.sample(), 0.0, phases.append).read()
    assert not equal(before, parameters(algorithm)) and algorithm.is_finite()
    assert set(phases) == {"forward", "correct", "backward"}
    assert metrics["learning_rate"] == 0.01 and all(np.isfinite(value) for value in metrics.values())
    assert {"loss", "gradient_norm"} <= metrics.keys()


@each
def test_progress_ends_a_linear_learning_rate(name: str) -> None:
    algorithm, chain = make(name, learning_rate_schedule="linear")
    before = parameters(algorithm)
    assert algorithm.update(chain.sample(), 1.0, ignore).read()["learning_rate"] == 0.0
    assert equal(before, parameters(algorithm))


@each
def test_the_same_seed_is_the_same_algorithm(name: str) -> None:
    one, two, other = make(name)[0], make(name)[0], make(name, seed=1)[0]
    assert equal(parameters(one), parameters(two)) and not equal(parameters(one), parameters(other))


@each
def test_what_is_saved_goes_on_to_the_last_bit(name: str) -> None:
    algorithm, chain = make(name)
    for _ in range(4):
        chain.update()
    resumed = make_algorithm(config(name), SPEC, CPU)
    resumed.networks.load_state_dict(copy.deepcopy(algorithm.networks.state_dict()))
    forgetful = copy.deepcopy(resumed)
    resumed.load(copy.deepcopy(algorithm.save()))
    for _ in range(4):
        sample = chain.sample()
        chain.collect()
        for learner in (algorithm, resumed, forgetful):
            learner.update(sample, 0.5, ignore)
        chain.store.feedback(sample, None)
    assert equal(parameters(algorithm), parameters(resumed))
    assert not equal(parameters(algorithm), parameters(forgetful)), "the optimiser's state makes no difference"
    with pytest.raises(CheckpointError):
        resumed.load({})


@each
def test_a_parameter_that_is_no_number_is_noticed(name: str) -> None:
    for value in (float("nan"), float("inf")):
        algorithm, _ = make(name)
        assert algorithm.is_finite()
        with torch.no_grad():
            list(algorithm.networks.parameters())[-1].view(-1)[0] = value
        assert not algorithm.is_finite()


@each
def test_a_reward_that_is_no_number_changes_no_trained_parameter(name: str) -> None:
    algorithm, chain = make(name)
    sample = chain.sample()
    (sample.rewards if sample.transitions is None else sample.transitions.returns)[...] = float("nan")  # type: ignore[index]
    before = copy.deepcopy(algorithm.network.state_dict())
    with pytest.raises(DivergenceError):
        algorithm.update(sample, 0.0, ignore)
    assert equal(before, algorithm.network.state_dict()) and algorithm.is_finite()


@pytest.mark.learning
@each
def test_a_chain_of_two_states_is_learned(name: str) -> None:
    _, chain = make(name, seed=1, discount=0.5)
    for _ in range(300):
        chain.update()
    assert np.mean(chain.paid[:5]) < 0.75
    assert np.mean(chain.paid[-20:]) > 0.9


# --- IMPACT ---


@pytest.mark.parametrize("clip", [1.0, 2.0, 5.0])
def test_impacts_ratio_is_that_of_its_definition(clip: float) -> None:
    """r = π_θ / max(π_target, β π_worker), β = 1/ρ."""
    generator = torch.Generator().manual_seed(0)
    policy, target, worker = (2 * torch.randn(500, generator=generator).double() - 2 for _ in range(3))
    expected = policy.exp() / torch.maximum(target.exp(), worker.exp() / clip)
    ratio = surrogate_log_ratio(policy, target, worker, clip).exp()
    assert torch.allclose(ratio, expected, rtol=1e-6)
    for wrong in (policy.exp() / target.exp(), policy.exp() / worker.exp()):
        assert not torch.allclose(ratio, wrong, rtol=0.1)


def targets_of(algorithm: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in algorithm.target.state_dict().items()}


@pytest.mark.parametrize("name", ["impact", "dqn"])
@pytest.mark.parametrize("interval", [1, 3])
def test_the_target_is_the_trained_network_of_every_so_many_updates(name: str, interval: int) -> None:
    algorithm, chain = make(name, target_interval_updates=interval)
    expected = copy.deepcopy(algorithm.network.state_dict())
    for k in range(8):
        if k % interval == 0:
            expected = copy.deepcopy(algorithm.network.state_dict())
        chain.update()
        assert equal(targets_of(algorithm), expected), k
        assert not equal(targets_of(algorithm), algorithm.network.state_dict())


# --- DQN ---


def q_by_definition(outputs: Tensor, duelling: bool) -> Tensor:
    """Q = V + A − mean A, row by row."""
    if not duelling:
        return outputs
    rows = [[float(row[-1] + a - row[:-1].mean()) for a in row[:-1]] for row in outputs]
    return torch.tensor(rows)


def of(network: Callable[..., Any], observations: Tensor) -> Tensor:
    outputs: Tensor = network(observations.unsqueeze(0), torch.zeros(1, len(observations), dtype=torch.bool)).params[0]
    return outputs.detach()


@pytest.mark.parametrize("duelling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_dqns_loss_is_that_of_its_definition(double: bool, duelling: bool) -> None:
    """Huber(Q(o, a) − R − γ^m Q_target(o', a*)), a* the online network's with double, else the target's."""
    options = config("dqn", double=double, duelling=duelling, target_interval_updates=100, learning_rate=0.1)
    learner: Any = make_algorithm(options, SPEC, CPU)
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def transitions() -> Transitions:
        actions = torch.randint(2, (64,), generator=generator)
        return Transitions(noise(64, 2), actions, 3 * noise(64), 0.9 * (noise(64) > 0), noise(64, 2))

    for _ in range(12):  # Until the two networks choose differently.
        learner.update(Sample(64, transitions=transitions()), 0.0, ignore)
    steps = transitions()
    online, target = (q_by_definition(of(network, steps.next_observations), duelling)
                      for network in (learner.network, learner.target))  # fmt: skip
    losses = {}
    for which, chooser in (("double", online), ("single", target)):
        best = chooser.argmax(1, keepdim=True)
        y = steps.returns + steps.discounts * target.gather(1, best).squeeze(1)
        taken = q_by_definition(of(learner.network, steps.observations), duelling)
        error = (taken.gather(1, steps.actions.unsqueeze(1)).squeeze(1) - y).abs()
        losses[which] = float(torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean())
    update = learner.update(Sample(64, transitions=steps), 0.0, ignore)
    mine, other = ("double", "single") if double else ("single", "double")
    assert update.read()["loss"] == pytest.approx(losses[mine], rel=1e-5)
    assert update.read()["loss"] != pytest.approx(losses[other], rel=1e-3)
    assert update.priorities.shape == (64,) and bool((update.priorities >= 0).all())


def test_weights_of_a_prioritised_sample_scale_its_losses() -> None:
    learner, chain = make("dqn")
    sample = chain.sample()
    assert sample.transitions is not None
    nothing = Sample(sample.valid_steps, transitions=sample.transitions, weights=torch.zeros(16))
    assert learner.update(nothing, 0.0, ignore).read()["loss"] == 0.0
