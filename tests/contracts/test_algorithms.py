"""What every algorithm promises, on each of them; IMPACT's ratio and DQN's target against their definitions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accel.acting.priorities import TemporalDifferences
from accel.acting.rules import ActorPlace, make_rule
from accel.algorithms.actor_critic import Targets
from accel.algorithms.base import Algorithm, GradientAlgorithm
from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.continuous import bounded
from accel.algorithms.d4pg import project
from accel.algorithms.impact import surrogate_log_ratio
from accel.compressors.pipeline import make_compressor
from accel.compressors.qat.fake_quantiser import FakeQuantiser
from accel.config import TrainConfig
from accel.envs.spaces import MASKED, ActionSpec, EnvSpec
from accel.errors import CheckpointError, ConfigError, DivergenceError
from accel.experience.batch import Batch, Batcher
from accel.experience.faults import remove_faults
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample, Steps, Store, Transitions
from accel.experience.stores.catalogue import make_store
from accel.experience.unroll import Unroll
from accel.networks import compiled_towers
from accel.networks.dense import torch_alone

CPU = torch.device("cpu")
SPEC = EnvSpec((2,), "float32", ActionSpec("categorical", (2,)))
BOX = EnvSpec((2,), "float32", ActionSpec("gaussian", (1,), (-2.0,), (6.0,), squash=True))
ROWS, ENVS = 8, 4
DQN: dict[str, object] = {"algorithm": "dqn", "batch_size": 16, "exploration_env_steps": 4000, "final_epsilon": 0.05}
ALGORITHMS: dict[str, dict[str, object]] = {
    "impala": {"algorithm": "impala"},
    "impala, retrace": {"algorithm": "impala", "corrector": "retrace"},
    "impala, lstm": {"algorithm": "impala", "network": "mlp:8x1+lstm:6"},
    "ppo": {"algorithm": "ppo", "passes": 2, "minibatches": 2, "normalise_rewards": False},
    "a2c": {"algorithm": "a2c"},
    "a3c": {"algorithm": "a3c"},
    "dppo": {"algorithm": "dppo", "passes": 4, "minibatches": 4, "normalise_rewards": False},
    "ptr-ppo": {"algorithm": "ptr-ppo", "passes": 2, "minibatches": 2, "normalise_rewards": False},
    "ptr-ppo, lstm": {
        "algorithm": "ptr-ppo", "network": "mlp:8x1+lstm:6", "passes": 2, "minibatches": 2, "normalise_rewards": False,
    },
    "impact": {"algorithm": "impact", "target_interval_updates": 3},
    "dqn": {**DQN, "target_interval_updates": 3},
    "apex": {"algorithm": "apex", "batch_size": 16, "target_interval_updates": 3, "base_epsilon": 0.1},
    "r2d2": {
        "algorithm": "r2d2",
        "batch_size": 8,
        "target_interval_updates": 3,
        "network": "mlp:8x1+lstm:6",
        "base_epsilon": 0.1,
    },
    "dqn, prioritised": {**DQN, "store": "prioritised"},
    "dqn, retrace": {**DQN, "corrector": "retrace"},
    "apex, retrace": {"algorithm": "apex", "batch_size": 16, "base_epsilon": 0.1, "corrector": "retrace"},
    "sac": {"algorithm": "sac", "batch_size": 16},
    "sac, retrace": {"algorithm": "sac", "batch_size": 16, "n_step": 3, "corrector": "retrace"},
    "sac, n-step": {"algorithm": "sac", "batch_size": 16, "n_step": 3},
    "d4pg": {
        "algorithm": "d4pg",
        "batch_size": 16,
        "n_step": 1,
        "target_interval_updates": 3,
        "least_value": -1.0,
        "greatest_value": 3.0,
        "normalise_rewards": False,
    },
    "td3": {"algorithm": "td3", "batch_size": 16, "target_rate": 0.05},
    "dqn, plain": {**DQN, "double": False, "duelling": False, "n_step": 1},
    "the page's": {"algorithm": "tests.contracts.page_algorithm:factory"},
}  # fmt: skip
each = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def config(name: str, **changes: object) -> TrainConfig:
    plain: dict[str, object] = {
        "network": "mlp:8x1", "normalise_observations": False, "unroll_length": ROWS, "envs_per_actor": ENVS,
    }  # fmt: skip
    plain = {option: value for option, value in plain.items() if option not in ALGORITHMS[name]}
    return TrainConfig.create(**{"learning_rate": 0.01, **ALGORITHMS[name], **plain, **changes})


def spec_of(name: str) -> EnvSpec:
    return BOX if name.startswith(("sac", "d4pg", "td3")) else SPEC


def ignore(_phase: str) -> None:
    """Times are not looked at."""


class Chain:
    """Two states in turns, shown as a unit vector; whoever takes the action of the state's number gets ``pay``;
    where actions are continuous, one above the middle of their range in the second state and one below it in the first.

    Acts as an actor does, by the algorithm's rule on its acting module, and fills its store.
    """

    def __init__(self, options: TrainConfig, algorithm: Algorithm, seed: int = 0) -> None:
        self.algorithm = algorithm
        spec = algorithm.network.spec
        rewards = RewardTransform(options.rewards, options.algorithm.discount)
        agreement, self.layout = agree(options, algorithm)
        self.store: Store = make_store(options, self.layout, Batcher(spec, CPU), rewards)
        self.sampler = make_rule(algorithm.rule, spec.action).bind(ActorPlace(ENVS, ROWS), np.random.default_rng(seed))
        self.priorities = None
        if agreement.priorities is not None:
            self.priorities = TemporalDifferences(self.layout, agreement.priorities)
        self.acting = algorithm.network.acting_module()
        self.state = tuple(torch.zeros(ENVS, *s) for s in algorithm.network.state_shapes)
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
            taken = self.sampler.to_env(actions)
            chosen = taken[:, 0] > 2.0 if taken.ndim == 2 else taken
            unroll["rewards"][t] = pay * (chosen == self.places)
            self.places = 1 - self.places
        unroll["observations"][ROWS] = np.eye(2)[self.places]
        unroll["valid"][...] = True
        unroll["header"][:3] = self.sequence, 0, ROWS * ENVS
        if self.priorities is not None:
            unroll["priority"][...] = self.priorities.of(unroll)
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
        """Collect once, where the store takes it, and update once."""
        if self.store.accepts:
            self.collect()
        sample = self.sample()
        update = self.algorithm.update(sample, 0.0, ignore)
        self.store.feedback(sample, update.priorities)
        return update.read()


def make(name: str, **changes: object) -> tuple[Algorithm, Chain]:
    options = config(name, **changes)
    algorithm = make_algorithm(options, spec_of(name), CPU)
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


@pytest.mark.few(24)
@each
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_reading_nothing_in_an_update_learns_and_refuses_the_same(name: str, optimizer: str) -> None:
    """As on a CUDA device: what is not finite is reported by the next update."""
    (one, chain), (two, other) = (make(name, optimizer=optimizer, max_gradient_norm=0.05) for _ in range(2))
    assert isinstance(two, GradientAlgorithm) and not two.defers
    two.defers = True
    for _ in range(4):
        chain.update()
        other.update()
    ours, theirs = parameters(one), parameters(two)
    assert all(torch.allclose(value, theirs[key], atol=1e-4) for key, value in ours.items())
    other.collect(pay=float("nan"))
    with pytest.raises(DivergenceError, match="nan"):
        for _ in range(32):
            before = copy.deepcopy(two.network.state_dict())
            two.update(other.sample(), 0.0, ignore)
            other.collect(pay=float("nan"))
    assert equal(before, two.network.state_dict())


@each
def test_the_same_seed_is_the_same_algorithm(name: str) -> None:
    one, two, other = make(name)[0], make(name)[0], make(name, seed=1)[0]
    assert equal(parameters(one), parameters(two)) and not equal(parameters(one), parameters(other))


@each
def test_what_is_saved_goes_on_to_the_last_bit(name: str) -> None:
    algorithm, chain = make(name)
    for _ in range(4):
        chain.update()
    resumed, forgetful = (make_algorithm(config(name), spec_of(name), CPU) for _ in range(2))
    for learner in (resumed, forgetful):
        learner.networks.load_state_dict(copy.deepcopy(algorithm.networks.state_dict()))
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
    for rewards in (
        sample.rewards,
        getattr(sample.transitions, "returns", None),
        getattr(sample.steps, "rewards", None),
    ):
        if rewards is not None:
            rewards[...] = float("nan")
    before = copy.deepcopy(algorithm.network.state_dict())
    with pytest.raises(DivergenceError):
        algorithm.update(sample, 0.0, ignore)
    assert equal(before, algorithm.network.state_dict()) and algorithm.is_finite()


@pytest.mark.parametrize("name", ["impala", "a3c", "ppo", "impact"])
def test_what_stands_in_the_row_of_a_reset_is_not_learned_from(name: str) -> None:
    """Whatever the environment shows when an episode has ended, and so what the policy does then."""
    results = []
    for junk in (0.0, float("nan")):
        options = config(name)
        algorithm = make_algorithm(options, BOX, CPU)
        unroll = Chain(options, algorithm).collect()
        unroll["terminated"][2, 1], unroll["valid"][3, 1], unroll["header"][2] = True, False, ROWS * ENVS - 1
        for field in ("observations", "actions", "rewards", "behaviour_params", "behaviour_log_prob"):
            unroll[field][3, 1] = junk
        assert remove_faults(unroll) == []
        batch = Batcher(BOX, CPU).build([unroll])
        metrics = algorithm.update(Sample(unroll.valid_steps, batch, batch.rewards), 0.0, ignore).read()
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        results.append(parameters(algorithm))
    assert equal(*results)


@each
def test_the_first_update_normalises_observations(name: str) -> None:
    """For targets as for what is trained: until then the statistics are nobody's."""
    algorithm, chain = make(name, normalise_observations=True)
    seen: list[float] = []

    def note(_phase: str) -> None:
        networks = [algorithm.network, getattr(algorithm, "target", algorithm.network)]
        seen.extend(float(network.normaliser.count) for network in networks)  # type: ignore[union-attr]

    sample = chain.sample()
    algorithm.update(sample, 0.0, note)
    assert set(seen) == {float(chain.env_steps)}


@pytest.mark.parametrize("name", ["d4pg", "td3"])
def test_target_policies_and_target_critics_see_the_newest_statistics(name: str) -> None:
    """In updates that copy no weights to the targets too."""
    made, chain = make(name, normalise_observations=True)
    algorithm: Any = made
    seen, rate = list[Tensor](), algorithm.rate_by_target
    algorithm.rate_by_target = lambda rows, actions: (seen.append(rows), rate(rows, actions))[1]
    for _ in range(5):
        chain.collect()
        sample = chain.sample()
        assert sample.transitions is not None
        algorithm.update(sample, 0.0, ignore)
        networks = [algorithm.network, algorithm.target]
        assert [float(network.normaliser.count) for network in networks] == [float(chain.env_steps)] * 2
        assert torch.equal(seen[-1], networks[1].normaliser(sample.transitions.next_observations))


@pytest.mark.few(8)
@pytest.mark.learning
@each
def test_a_chain_of_two_states_is_learned(name: str) -> None:
    _, chain = make(name, seed=1, discount=0.5)
    for _ in range(600):
        chain.update()
        if len(chain.paid) > 40 and np.mean(chain.paid[-20:]) > 0.9:
            break
    assert np.mean(chain.paid[:5]) < 0.75
    assert np.mean(chain.paid[-20:]) > 0.9, chain.paid


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


@pytest.mark.parametrize("name", ["impact", "dqn", "r2d2", "d4pg"])
def test_the_target_of_a_network_trained_with_rounding_rounds_as_well(name: str) -> None:
    algorithm, chain = make(name)
    sample, network, target = chain.sample(), algorithm.network, algorithm.networks["target"]
    module = network.acting_module()
    rows = {"observations": np.tile(np.eye(2, dtype=np.float32), (8, 1))}
    rows |= {f"state_{i}": np.zeros((16, *shape), np.float32) for i, shape in enumerate(network.state_shapes)}
    inputs = {key: torch.from_numpy(array[:1]) for key, array in rows.items()}
    plan = make_compressor("qat(w2)").bind(module, inputs, rows, output_names=module.output_names)

    state = tuple(torch.zeros(2, *s) for s in network.state_shapes)

    def params(policy: torch.nn.Module) -> Tensor:
        observations, first = torch.eye(2).unsqueeze(0), torch.zeros(1, 2, dtype=torch.bool)
        with torch.no_grad():
            return policy(observations, first, state).params  # type: ignore[no-any-return]

    whole = params(network)
    network.fake_quantisation = FakeQuantiser(plan, module)
    rounded = params(network)
    algorithm.update(sample, 0.0, ignore)
    assert torch.equal(params(target), rounded) and not torch.allclose(rounded, whole, rtol=0.01, atol=0.0)


# --- PTR-PPO ---


@pytest.mark.parametrize("priority", ["max", "mean", "return"])
def test_a_trajectorys_priority_is_that_of_its_definition(priority: str) -> None:
    """Of rows that count alone; returns in the range of all that were seen, which is saved."""
    algorithm: Any = make_algorithm(config("ptr-ppo", trajectory_priority=priority), SPEC, CPU)
    batch: Any = replace(chains_batch(ROWS, 0), rewards=None).batch
    valid = torch.rand(ROWS, 2, generator=torch.Generator().manual_seed(3)) < 0.5
    batch = replace(batch, valid=valid)
    values, predictions = torch.randn(2, ROWS, 2, generator=torch.Generator().manual_seed(4))
    targets = Targets(values, values, values, values, predictions)
    expected = []
    for env in range(2):
        rows = [t for t in range(ROWS) if valid[t, env]]
        errors = [abs(float(values[t, env] - predictions[t, env])) for t in rows]
        total = sum(float(batch.rewards[t, env]) for t in rows)
        expected.append({"max": max(errors), "mean": sum(errors) / len(rows), "return": total}[priority])
    if priority == "return":
        least, greatest = min(expected), max(expected)
        expected = [(total - least) / (greatest - least) for total in expected]
    assert algorithm.priorities(batch, targets).tolist() == pytest.approx(expected, abs=1e-6)
    if priority == "return":
        resumed: Any = make_algorithm(config("ptr-ppo", trajectory_priority=priority), SPEC, CPU)
        resumed.load(algorithm.save())
        half = torch.where(valid, batch.rewards / 2, 0.0).sum(0)
        least, greatest = min(least, float(half.min())), max(greatest, float(half.max()))
        found = resumed.priorities(replace(batch, rewards=batch.rewards / 2), targets)
        assert found.tolist() == pytest.approx(((half - least) / (greatest - least)).tolist(), abs=1e-6)


def test_a_trajectory_that_the_policy_itself_made_has_the_priority_of_its_generalised_advantages() -> None:
    """Â_t = Σ (γλ)^l δ_{t+l}, as there is nothing to truncate."""
    algorithm, chain = make("ptr-ppo", replays=0)
    sample = chain.sample()
    batch: Any = sample.batch
    with torch.no_grad():
        values = algorithm.network(batch.observations, batch.first, ()).values
    expected = []
    for env in range(ENVS):
        advantage, found = 0.0, []
        for t in reversed(range(ROWS)):
            delta = float(batch.rewards[t, env] + 0.99 * values[t + 1, env] - values[t, env])
            advantage = delta + 0.99 * 0.95 * advantage
            found.append(abs(advantage))
        expected.append(max(found))
    priorities = algorithm.update(sample, 0.0, ignore).priorities
    assert priorities is not None and priorities.tolist() == pytest.approx(expected, rel=1e-4)


def test_weights_of_replayed_trajectories_scale_their_losses() -> None:
    """A trajectory of weight zero changes nothing, whatever is in it."""
    results = []
    for pay in (1.0, -50.0):
        algorithm, chain = make("ptr-ppo", minibatches=1)
        sample = chain.sample()
        assert sample.batch is not None and sample.rewards is not None
        sample.rewards[:, 1] *= pay
        weights = torch.ones(ENVS)
        weights[1] = 0.0
        algorithm.update(replace(sample, weights=weights), 0.0, ignore)
        results.append(parameters(algorithm))
    assert equal(*results)


# --- continuous actions ---


@pytest.mark.parametrize("name", ["sac", "d4pg", "td3"])
def test_an_algorithm_of_continuous_actions_refuses_others(name: str) -> None:
    unbounded = EnvSpec((2,), "float32", ActionSpec("gaussian", (1,), (-2.0,), (6.0,)))
    for spec, told in ((SPEC, "continuous"), (unbounded, "squash"), (replace(BOX, observation_shape=(3, 8, 8)), "mlp")):
        with pytest.raises(ConfigError, match=told):
            make_algorithm(config(name), spec, CPU)


def transitions_of(rows: int, generator: torch.Generator) -> Transitions:
    """Random ones, half of them terminated."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return Transitions(noise(rows, 2), noise(rows, 1), noise(rows), 0.9 * (noise(rows) > 0), noise(rows, 2))


def test_sacs_log_density_is_that_of_the_squashed_gaussian() -> None:
    """By change of variables from torch's own distributions."""
    algorithm: Any = make_algorithm(config("sac"), BOX, CPU)
    observations = 3 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        algorithm.network.policy_head.weight.mul_(100)
        (actions, log_prob, _), _ = algorithm.sample_actions(observations, algorithm.noise(200))
        mean, log_std = algorithm.outputs(algorithm.network, observations)[0].chunk(2, -1)
    normal = torch.distributions.Normal(mean.double(), log_std.double().clamp(-5, 2).exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])  # type: ignore[no-untyped-call]
    inside = actions.abs().squeeze(-1) < 0.99  # beyond, float32 does not say which sample it was
    expected = squashed.log_prob(actions.double()).sum(-1)  # type: ignore[no-untyped-call]
    assert 50 < int(inside.sum())
    assert torch.allclose(log_prob[inside].double(), expected[inside], atol=1e-3)


def test_sacs_targets_are_those_of_the_definition() -> None:
    """R + γ (min of both targets' Q − α log π), where the episode goes on; R where it does not."""
    algorithm: Any = make_algorithm(config("sac", initial_temperature=0.3), BOX, CPU)
    steps = transitions_of(64, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for critic in algorithm.target_critics.weights:
            critic[0] *= 1.5
    noise = algorithm.noise(64)
    found = algorithm.soft_targets(steps, torch.tensor(0.3), noise)
    with torch.no_grad():
        (actions, log_prob, _), _ = algorithm.sample_actions(steps.next_observations, noise)
        one, two = algorithm.target_critics(steps.next_observations, actions).squeeze(-1)
    expected = steps.returns + steps.discounts * (torch.minimum(one, two) - 0.3 * log_prob)
    assert torch.allclose(found, expected) and not torch.allclose(one, two, atol=1e-2)
    over = steps.discounts == 0
    assert torch.equal(found[over], steps.returns[over]) and not torch.equal(found[~over], steps.returns[~over])


# --- gradients of replay algorithms, against autograd on losses written as in their papers ---


def critic_losses(algorithm: Any, steps: Transitions, targets: Tensor, weights: Tensor, noise: Tensor) -> Tensor:
    """SAC's, D4PG's or TD3's whole loss, differentiable, from the networks' modules alone."""
    first = torch.zeros(1, len(steps.returns), dtype=torch.bool)
    outputs = algorithm.network(steps.observations.unsqueeze(0), first).params[0]
    observations = algorithm.network.normaliser(steps.observations)
    frozen = copy.deepcopy(algorithm.critics)
    if algorithm.config.algorithm.algorithm in {"d4pg", "td3"}:
        rated = algorithm.critics(observations, steps.actions.clamp(-1, 1))
        tanh = torch.tanh(outputs)
        o, of_policy = algorithm.options, frozen(observations, tanh)[0]
        if algorithm.config.algorithm.algorithm == "d4pg":
            atoms = torch.linspace(o.least_value, o.greatest_value, o.atoms)
            errors, of_policy = -(targets * rated[0].log_softmax(-1)).sum(-1), of_policy.softmax(-1) @ atoms
        else:
            errors = 0.5 * (rated.squeeze(-1) - targets).square().sum(0)
        (g,) = torch.autograd.grad(-of_policy.mean(), tanh, retain_graph=True)
        inverted = (g * torch.where(g < 0, 1 - tanh, 1 + tanh)).detach()
        return (errors * weights).mean() + (outputs * inverted).sum()
    values = algorithm.critics(observations, torch.tanh(steps.actions)).squeeze(-1)
    mean, log_std = outputs.chunk(2, -1)
    samples = mean + log_std.clamp(-5, 2).exp() * noise
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    log_prob = (normal.log_prob(samples) - torch.log(1 - torch.tanh(samples) ** 2)).sum(-1)
    alpha = dict(algorithm.networks.named_parameters())["temperature.log"]
    q = frozen(observations, torch.tanh(samples)).squeeze(-1).amin(0)
    critic = (0.5 * (values - targets).square().sum(0) * weights).mean()
    surplus = log_prob.detach() - algorithm.spec.action.action_size
    return critic + (alpha.detach().exp() * log_prob - q).mean() - alpha * surplus.mean()


@pytest.mark.parametrize("way", ["by a kernel", "by torch", "autograd"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", ["sac", "d4pg", "td3"])
def test_gradients_of_continuous_control_are_those_of_the_losses(
    name: str, activation: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "by torch":
        monkeypatch.setattr(compiled_towers, "kernels_here", tuple)
    chosen = config(name, activation=activation, network="mlp:8x2", normalise_observations=True)
    algorithm: Any = make_algorithm(chosen, BOX, CPU)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        algorithm.network.policy_head.weight.mul_(150.0)  # some log deviations are beyond their bounds
    algorithm.network.normaliser.update(3.0 * torch.randn(50, 2, generator=generator) + 1.0)
    steps, weights = transitions_of(64, generator), torch.rand(64, generator=generator)
    arguments: tuple[Any, ...] = (weights,)
    noise = algorithm.noise(64)
    if name == "sac":
        arguments = None, weights, (algorithm.noise(64), noise)
    elif name == "td3":
        arguments = weights, noise, True
    with torch_alone() if way == "autograd" else nullcontext():
        before = {n: p.detach().clone() for n, p in algorithm.networks.named_parameters()}
        step = algorithm.descend(ignore, steps, *arguments)
        critics = step.critics if name == "sac" else step
        found = {n: p.grad.clone() for n, p in algorithm.networks.named_parameters() if p.grad is not None}
    assert float(critics.gradient_norm) == pytest.approx(float(algorithm.parameters.gradient.norm()), rel=1e-4)
    with torch.no_grad():
        for n, parameter in algorithm.networks.named_parameters():
            parameter.copy_(before[n])
    algorithm.parameters.gradient.zero_()
    loss = critic_losses(algorithm, steps, critics.targets, weights, noise)
    loss.backward()
    assert found.keys() >= {"critics.weights.0", "online.policy_head.weight"}
    for n, parameter in algorithm.networks.named_parameters():
        if n in found:
            assert float(parameter.grad.abs().max()) > 0, n
            torch.testing.assert_close(
                found[n], parameter.grad, rtol=2e-3, atol=2e-5, msg=lambda text, n=n: f"{n}: {text}"
            )


def test_td3_delays_policy_and_targets_and_smooths_the_targets_actions() -> None:
    algorithm, chain = make("td3", policy_interval_updates=3, target_noise=0.4, target_noise_clip=0.5)
    learner: Any = algorithm
    sample = chain.sample()
    for update in range(7):
        before = parameters(algorithm)
        algorithm.update(sample, 0.0, ignore)
        changed = {name.split(".")[0] for name, value in parameters(algorithm).items() if not value.equal(before[name])}
        assert changed == {"critics"} | ({"online", "target", "target_critics"} if update % 3 == 0 else set())
    steps, noise = sample.transitions, torch.tensor([[-3.0], [-1.0], [0.0], [0.5]]).repeat(4, 1)
    step = learner.descend(ignore, steps, None, noise, False)
    with torch.no_grad():
        actions = torch.tanh(of(learner.target, steps.next_observations))
        smoothed = (actions + torch.tensor([[-0.5], [-0.4], [0.0], [0.2]]).repeat(4, 1)).clamp(-1.0, 1.0)
        values = learner.target_critics(steps.next_observations, smoothed).squeeze(-1).amin(0)
    assert torch.allclose(step.targets, steps.returns + steps.discounts * values, atol=1e-5)


@pytest.mark.parametrize("duelling", [False, True])
def test_dqns_gradients_are_those_of_the_loss(duelling: bool) -> None:
    learner: Any = make_algorithm(
        config("dqn", duelling=duelling, network="mlp:8x2", max_gradient_norm=None), SPEC, CPU
    )
    generator = torch.Generator().manual_seed(4)
    steps = transitions_of(64, generator)
    steps = replace(steps, actions=torch.randint(2, (64,), generator=generator), returns=3 * steps.returns)
    weights, before = torch.rand(64, generator=generator), {n: p.clone() for n, p in learner.network.named_parameters()}
    step = learner.descend(ignore, steps, None, weights)
    found = learner.parameters.gradient.clone()
    with torch.no_grad():
        for n, parameter in learner.network.named_parameters():
            parameter.copy_(before[n])
    learner.parameters.gradient.zero_()
    outputs = learner.network(steps.observations.unsqueeze(0), torch.zeros(1, 64, dtype=torch.bool)).params[0]
    q = outputs if not duelling else outputs[:, 2:] + outputs[:, :2] - outputs[:, :2].mean(1, keepdim=True)
    taken = q.gather(1, steps.actions.unsqueeze(1)).squeeze(1)
    (0.5 * (taken - step.targets).square() * weights).mean().backward()
    torch.testing.assert_close(found, learner.parameters.gradient, rtol=1e-3, atol=1e-6)
    assert float(found.abs().max()) > 1e-3


def test_the_way_back_from_q_values_of_allowed_actions_is_autograds() -> None:
    spec = replace(SPEC, action=ActionSpec("categorical", (4,), masked=True))
    learner: Any = make_algorithm(config("dqn"), spec, CPU)
    generator = torch.Generator().manual_seed(4)
    outputs, of_q = torch.randn(64, 5, generator=generator), torch.randn(64, 4, generator=generator)
    forbidden = torch.rand(64, 4, generator=generator) < 0.4
    forbidden[:, 2] = False
    outputs[:, :4][forbidden] = MASKED
    of_q[forbidden] = 0.0
    outputs.requires_grad_()
    learner.q_values(outputs).backward(of_q)
    torch.testing.assert_close(learner.of_outputs(outputs.detach(), of_q), outputs.grad)


@pytest.mark.parametrize("atoms", [2, 11])
def test_a_projected_distribution_keeps_its_sum_and_its_mean(atoms: int) -> None:
    generator = torch.Generator().manual_seed(2)
    support = torch.linspace(-3.0, 5.0, atoms)
    probabilities = torch.rand(40, atoms, generator=generator).softmax(-1)
    inside = torch.rand(40, atoms, generator=generator) * 8 - 3
    found = project(probabilities, inside, support)
    assert torch.allclose(found.sum(-1), torch.ones(40)) and bool((found >= 0).all())
    assert torch.allclose(found @ support, (probabilities * inside).sum(-1), atol=1e-4)
    assert torch.allclose(project(probabilities, support.expand(40, -1), support), probabilities, atol=1e-5)
    outside = project(probabilities, inside + 100, support)
    assert torch.allclose(outside[:, -1], torch.ones(40))


def test_an_action_at_its_bound_is_left_again() -> None:
    """Descent on the distance to a target inside, from outputs whose tanh is ±1 to the last bit."""
    outputs = torch.tensor([[12.0, -12.0]])
    assert torch.equal(torch.tanh(outputs).abs(), torch.ones(1, 2))
    target = torch.tensor([[-0.5, 0.25]])
    for _ in range(500):
        actions, pull = bounded(outputs)
        outputs = outputs - 0.1 * pull(2 * (actions - target))
    assert torch.allclose(torch.tanh(outputs), target, atol=1e-3)


def test_an_action_is_not_driven_beyond_its_bound() -> None:
    wanted = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    _, pull = bounded(torch.tensor([[0.0, 0.0, 12.0, -12.0]]))
    assert torch.equal(pull(-wanted), torch.tensor([[-1.0, 1.0, 0.0, 0.0]]))


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
    """½ (Q(o, a) − R − γ^m Q_target(o', a*))², a* the online network's with double, else the target's."""
    options = config("dqn", double=double, duelling=duelling, target_interval_updates=100, learning_rate=0.1)
    learner: Any = make_algorithm(options, SPEC, CPU)
    generator = torch.Generator().manual_seed(1)

    def transitions() -> Transitions:
        steps, actions = transitions_of(64, generator), torch.randint(2, (64,), generator=generator)
        return replace(steps, actions=actions, returns=3 * steps.returns)

    for _ in range(12):  # Until the two networks choose differently.
        learner.update(Sample(64, transitions=transitions()), 0.0, ignore)
    steps = transitions()
    online, target = (q_by_definition(of(network, steps.next_observations), duelling)
                      for network in (learner.network, learner.target))  # fmt: skip
    losses = {}
    for which, chooser in (("double", online), ("single", target)):
        best = chooser.argmax(1, keepdim=True)
        value = target.gather(1, best).squeeze(1)
        y = steps.returns + steps.discounts * value
        taken = q_by_definition(of(learner.network, steps.observations), duelling)
        error = taken.gather(1, steps.actions.unsqueeze(1)).squeeze(1) - y
        losses[which] = float(0.5 * error.square().mean())
    update = learner.update(Sample(64, transitions=steps), 0.0, ignore)
    mine, other = ("double", "single") if double else ("single", "double")
    assert update.read()["loss"] == pytest.approx(losses[mine], rel=1e-5)
    assert update.read()["loss"] != pytest.approx(losses[other], rel=1e-4)
    assert update.priorities.shape == (64,) and bool((update.priorities >= 0).all())


@pytest.mark.parametrize("normalise", [False, True])
def test_actors_priorities_are_errors_of_the_values_that_they_acted_by(normalise: bool) -> None:
    """|r + γ r' + γ² max Q'' − Q(a)|, a reward over the deviation of all returns up to its unroll's end."""
    _, chain = make("apex", n_step=2, discount=0.9, normalise_rewards=normalise)
    unrolls = [chain.collect(pay=5.0) for _ in range(3)]
    rewards, actions, outputs, found = (
        np.concatenate([unroll[name] for unroll in unrolls])
        for name in ("rewards", "actions", "behaviour_params", "priority")
    )
    q = np.stack([q_by_definition(torch.from_numpy(row), duelling=True).numpy() for row in outputs])
    returns = np.zeros_like(rewards)
    for t in range(len(rewards)):
        returns[t] = rewards[t] + (0.9 * returns[t - 1] if t else 0.0)
    if normalise:
        for start in range(0, len(rewards), ROWS):
            rewards[start : start + ROWS] /= np.sqrt(returns[: start + ROWS].var() + 1e-8)
    for t in range(2, len(rewards)):
        taken = np.take_along_axis(q[t - 2], actions[t - 2, :, None], -1)[:, 0]
        error = rewards[t - 2] + 0.9 * rewards[t - 1] + 0.81 * q[t].max(-1) - taken
        np.testing.assert_allclose(found[t], np.abs(error), rtol=1e-3, atol=1e-3)


# --- Retrace on critics of actions ---


def steps_of(n: int, rows: int, actions: Tensor, generator: torch.Generator) -> Steps:
    """Random ones; an episode that is over terminated or was truncated."""
    over = torch.rand(n, rows, generator=generator) < 0.2
    terminated = over & (torch.rand(n, rows, generator=generator) < 0.5)
    valid = torch.cat((torch.ones(1, rows, dtype=torch.bool), ~over[:-1])).cumprod(0).bool()
    return Steps(
        observations=3 * torch.randn(n + 1, rows, 2, generator=generator),
        actions=actions,
        rewards=torch.randn(n, rows, generator=generator),
        discounts=torch.where(terminated, 0.0, 0.9),
        behaviour_log_prob=-2 * torch.rand(n, rows, generator=generator),
        valid=valid,
    )


def retrace_by_definition(steps: Steps, values: Tensor, taken: Tensor, traces: Tensor, row: int) -> float:
    """Σ_k (Π_{0<i≤k} γ_{i−1} c_i) (r_k + γ_k V(o_{k+1}) − [k > 0] Q(o_k, a_k)), over the episode's steps."""
    total, product = 0.0, 1.0
    for k in range(len(steps.rewards)):
        if k:
            product *= float(steps.discounts[k - 1, row] * traces[k, row])
        if not steps.valid[k, row]:
            break
        error = float(steps.rewards[k, row]) + float(steps.discounts[k, row]) * float(values[k + 1, row])
        total += product * (error - (float(taken[k, row]) if k else 0.0))
    return total


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_dqns_retrace_targets_are_those_of_the_definition(n: int, double: bool) -> None:
    """With the greedy policy of the network that chooses: c = λ where the action is its own, else 0."""
    options = config("dqn, retrace", n_step=n, double=double, lambda_=0.8, duelling=False)
    learner: Any = make_algorithm(options, SPEC, CPU)
    other: Any = make_algorithm(options.replace(seed=1), SPEC, CPU)
    learner.target.load_state_dict(other.network.state_dict())
    generator = torch.Generator().manual_seed(n)
    steps = steps_of(n, 64, torch.randint(2, (n, 64), generator=generator), generator)
    target, online = (torch.stack([of(network, o) for o in steps.observations])
                      for network in (learner.target, learner.network))  # fmt: skip
    best = (online if double else target).argmax(-1)
    values = target.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    taken = target[:-1].gather(-1, steps.actions.unsqueeze(-1)).squeeze(-1)
    traces = 0.8 * (best[:-1] == steps.actions)
    found = learner.retrace_targets(steps)

    for row in range(64):
        expected = retrace_by_definition(steps, values, taken, traces, row)
        assert float(found[row]) == pytest.approx(expected, rel=2e-3, abs=2e-3), row
    if n > 1:
        whole = [retrace_by_definition(steps, values, taken, torch.full_like(traces, 0.8), row) for row in range(64)]
        assert sum(abs(a - b) > 0.1 for a, b in zip(whole, found.tolist(), strict=True)) > 10


@pytest.mark.parametrize("n", [1, 4])
def test_sacs_retrace_targets_are_those_of_the_definition(n: int) -> None:
    """c = λ min(1, π/μ), on the soft values of sampled actions and the least of the target critics."""
    algorithm: Any = make_algorithm(config("sac, retrace", n_step=n, lambda_=0.9), BOX, CPU)
    generator = torch.Generator().manual_seed(n)
    steps = steps_of(n, 64, torch.randn(n, 64, 1, generator=generator), generator)
    noise = algorithm.noise(n * 64)
    found = algorithm.retrace_targets(steps, torch.tensor(0.3), noise)
    with torch.no_grad():
        following = steps.observations[1:].flatten(0, 1)
        (actions, log_prob, _), _ = algorithm.sample_actions(following, noise)
        soft = algorithm.target_critics(following, actions).squeeze(-1).amin(0) - 0.3 * log_prob
        values = torch.cat((torch.zeros(1, 64), soft.view(n, 64)))
        flat = steps.observations[:-1].flatten(0, 1)
        acted = steps.actions.flatten(0, 1)
        taken = algorithm.target_critics(flat, torch.tanh(acted)).squeeze(-1).amin(0).view(n, 64)
        policy = algorithm.distribution(algorithm.outputs(algorithm.network, flat)[0], None).log_prob(acted).view(n, 64)
    traces = 0.9 * (policy - steps.behaviour_log_prob).exp().clamp(max=1.0)
    expected = [retrace_by_definition(steps, values, taken, traces, row) for row in range(64)]
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert 0.1 < float((traces < 0.89).float().mean()) < 0.9


# --- R2D2 ---


def chains_batch(rows: int, seed: int) -> Sample:
    """Two sequences of random numbers with ends of both kinds in them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, 2)
    terminated, truncated = (torch.rand(shape, generator=generator) < 0.15 for _ in range(2))
    truncated &= ~terminated
    first = torch.zeros(rows + 1, 2, dtype=torch.bool)
    first[1:] = terminated
    batch = Batch(
        observations=torch.randn(rows + 1, 2, 2, generator=generator), final_observations=None, first=first,
        valid=torch.ones(shape, dtype=torch.bool), actions=torch.randint(2, shape, generator=generator),
        rewards=torch.randn(shape, generator=generator), terminated=terminated, truncated=truncated,
        behaviour_log_prob=torch.zeros(shape), behaviour_params=torch.zeros(*shape, 3),
        states=(torch.randn(2, 6, generator=generator), torch.randn(2, 6, generator=generator)),
    )  # fmt: skip
    return Sample(2 * rows, batch=batch, rewards=batch.rewards)


@pytest.mark.parametrize("n", [1, 3, 12])
def test_r2d2s_targets_are_those_of_the_definition(n: int) -> None:
    """Step by step, until n rewards, the episode or the sequence end; bootstrapped unless it terminated."""
    algorithm: Any = make_algorithm(config("r2d2", n_step=n, discount=0.9), SPEC, CPU)
    for seed in range(4):
        sample = chains_batch(2 * ROWS, seed)
        batch: Any = sample.batch
        values = torch.randn(ROWS + 1, 2, generator=torch.Generator().manual_seed(seed))
        rewards = batch.rewards[-ROWS:]
        found = algorithm.n_step_targets(batch, rewards, values)
        for env in range(2):
            for t in range(ROWS):
                total, power, k = 0.0, 1.0, t
                while True:
                    total += power * float(rewards[k, env])
                    power *= 0.9
                    if batch.terminated[ROWS + k, env]:
                        break
                    k += 1
                    if batch.truncated[ROWS + k - 1, env] or k == t + n or k == ROWS:
                        total += power * float(values[k, env])
                        break
                assert float(found[t, env]) == pytest.approx(total, rel=1e-5, abs=1e-5), (t, env)


def test_r2d2s_loss_is_half_the_squared_error_of_its_valid_steps() -> None:
    algorithm: Any = make_algorithm(config("r2d2", double=False), SPEC, CPU)
    sample = chains_batch(2 * ROWS, 0)
    batch: Any = sample.batch
    weights = torch.tensor([0.5, 2.0])
    valid = torch.ones(ROWS, 2)
    valid[3] = 0.0
    batch.valid[ROWS + 3] = False
    q = algorithm.sequence_q(algorithm.network, batch).detach()
    targets = algorithm.n_step_targets(batch, batch.rewards[-ROWS:], q.amax(-1))
    taken = q[:-1].gather(-1, batch.actions[-ROWS:].unsqueeze(-1)).squeeze(-1)
    expected = float((0.5 * (taken - targets).square() * valid * weights).sum() / valid.sum())
    found = algorithm.update(replace(sample, weights=weights), 0.0, ignore).read()["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_r2d2_learns_from_the_last_unroll_after_a_burn_in_from_the_stored_state() -> None:
    algorithm: Any = make_algorithm(config("r2d2"), SPEC, CPU)
    batch: Any = chains_batch(2 * ROWS, 0).batch
    whole = algorithm.q_values(algorithm.network(batch.observations, batch.first, batch.states).params)[ROWS:]
    assert torch.allclose(algorithm.sequence_q(algorithm.network, batch), whole, atol=1e-5)
    batch = replace(batch, first=torch.zeros_like(batch.first))
    other = replace(batch, states=tuple(torch.zeros_like(part) for part in batch.states))
    found = [algorithm.sequence_q(algorithm.network, each)[0] for each in (batch, other)]
    assert not torch.equal(*found)
    observed = batch.observations.clone().requires_grad_()
    total = algorithm.sequence_q(algorithm.network, replace(batch, observations=observed)).sum()
    (early,) = torch.autograd.grad(total, observed)
    assert float(early[:ROWS].abs().sum()) == 0.0 < float(early[ROWS:].abs().sum())
