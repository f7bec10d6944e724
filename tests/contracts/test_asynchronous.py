"""Asynchronous learners against the definition: one set of parameters and moments, every gradient applied once."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from accel.algorithms.catalogue import make_algorithm
from accel.config import TrainConfig
from accel.errors import ConfigError, TransportError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample
from accel.experience.stores.catalogue import make_store
from accel.experience.unroll import Unroll, UnrollLayout
from accel.learning.asynchronous import AsynchronousGradients
from accel.learning.coordination import Iteration
from accel.learning.counters import Counters
from accel.transport.learners import LearnerLink
from tests.contracts.test_algorithms import CPU, ROWS, SPEC, Chain, ignore


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Letters(LearnerLink):
    """Messages within a process: one queue for each two learners and direction."""

    def __init__(self, learner: int, queues: dict[tuple[int, int], deque[bytes]], learners: int) -> None:
        self.learner, self.learners = learner, learners
        self._queues = queues
        self.largest_bytes = 1 << 20

    def post(self, learner: int, content: bytes) -> None:
        """Into the other's queue."""
        self._queues[self.learner, learner].append(content)

    def poll(self, learner: int) -> bytes | None:
        """From this one's."""
        queue = self._queues[learner, self.learner]
        return queue.popleft() if queue else None


class Learner:
    """One of several, without actors: its algorithm, and its turns."""

    def __init__(self, options: TrainConfig, post: Letters) -> None:
        self.exchange = AsynchronousGradients(post)
        algorithm = make_algorithm(options, SPEC, CPU, self.exchange)
        self.algorithm, self.counters = algorithm, Counters(8)
        self.rewards = RewardTransform(options.rewards, options.algorithm.discount)
        self.coordination = self.exchange.coordination(options, algorithm, self.counters, self.rewards)

    def turn(self, *, due: bool = False, reason: str | None = None) -> Iteration:
        """One."""
        return self.coordination.agree(reason, due=due, publishes=False, actors_alive=2)

    def update(self, sample: Sample) -> None:
        """As the loop does it."""
        self.algorithm.update(sample, 0.0, ignore)
        self.counters.updates += 1

    @property
    def parameters(self) -> Tensor:
        """A copy."""
        return self.algorithm.parameters.values.detach().clone()


def options(**changes: object) -> TrainConfig:
    plain: dict[str, object] = {
        "algorithm": "a3c", "network": "mlp:8x1", "unroll_length": ROWS, "envs_per_actor": 4, "learning_rate": 0.01,
        "learners": 2, "actors": 2, "normalise_observations": False, "optimizer": "rmsprop", "compressor": "fp32",
    }  # fmt: skip
    return TrainConfig.create(**{**plain, **changes})


def learners(config: TrainConfig, number: int = 2) -> list[Learner]:
    queues: dict[tuple[int, int], deque[bytes]] = {(i, j): deque() for i in range(number) for j in range(number)}
    return [Learner(config, Letters(learner, queues, number)) for learner in range(number)]


def experience(number: int) -> list[Unroll]:
    config = options(learners=1, actors=1)
    chain = Chain(config, make_algorithm(config, SPEC, CPU))
    return [chain.collect() for _ in range(number)]


def sample_of(unroll: Unroll) -> Sample:
    config = options().share(0)
    layout = UnrollLayout(SPEC, config.acting.unroll_length, config.acting.envs_per_actor)
    store = make_store(config, layout, Batcher(SPEC, CPU), RewardTransform(config.rewards, 0.99))
    store.insert(Experience(0, unroll, lambda: None))
    sample = store.sample()
    return sample


def gradient(parameters: Tensor, unroll: Unroll) -> Tensor:
    """Of one learner alone with these parameters, clipped."""
    config = options(learners=1, actors=1)
    algorithm = make_algorithm(config, SPEC, CPU)
    with torch.no_grad():
        algorithm.parameters.values.copy_(parameters)
    algorithm.update(sample_of(unroll), 0.0, ignore)
    return algorithm.parameters.gradient.clone()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_every_gradient_is_applied_once_to_shared_parameters_and_moments(optimizer: str) -> None:
    """Learner 1 computes on parameters that learner 0 has left behind by two updates, again and again."""
    config = options(optimizer=optimizer)
    first, second = learners(config)
    unrolls = experience(18)
    assert gradient(first.parameters, unrolls[0]).any()
    shared = torch.nn.Parameter(first.parameters)
    kinds = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    oracle = kinds[optimizer]([shared], lr=0.01, eps=config.optimiser.optimizer_epsilon)

    def apply(found: Tensor) -> None:
        shared.grad = found
        oracle.step()

    second.turn()  # asks
    first.turn()  # answers
    for number in range(0, 18, 3):
        assert second.turn(due=True).learns
        stale = second.parameters
        assert torch.equal(stale, first.parameters)
        for own in (0, 1):
            apply(gradient(first.parameters, unrolls[number + own]))
            first.update(sample_of(unrolls[number + own]))
        second.update(sample_of(unrolls[number + 2]))
        assert torch.equal(second.parameters, stale)
        apply(gradient(stale, unrolls[number + 2]))
        second.turn()  # sends it
        first.turn()  # applies it, and answers
        torch.testing.assert_close(first.parameters, shared.detach(), rtol=1e-5, atol=1e-6)
    assert first.counters.updates == 18
    metrics = first.coordination.metrics()
    assert metrics["gradient_lag_min"] == metrics["gradient_lag_max"] == 2
    assert first.coordination.metrics()["gradient_lag_mean"] is None


def test_learners_go_on_without_each_other_and_count_together() -> None:
    first, second, third = learners(options(learners=3, actors=3), 3)
    unrolls = experience(3)
    second.turn()
    for unroll in unrolls:  # nobody answers or asks learner 0 anything
        assert first.turn(due=True).learns
        first.update(sample_of(unroll))
    second.counters.env_steps, second.counters.episodes = 30, 2
    second.counters.returns.extend([1.0, 5.0])
    second.counters.lengths.extend([1, 5])
    assert second.turn(due=True).learns  # although the third has not said a word
    second.update(sample_of(unrolls[0]))
    second.turn()
    assert first.turn().actors_alive == 4
    assert (first.counters.env_steps, first.counters.episodes, first.counters.updates) == (30, 2, 4)
    assert list(first.counters.returns) == [1.0, 5.0] and list(first.counters.lengths) == [1, 5]
    second.turn()
    assert second.counters.updates == 4
    third.turn()
    first.turn()
    third.turn()
    assert third.counters.updates == 4 and first.turn().actors_alive == 6
    assert torch.equal(third.parameters, first.parameters)


def test_state_and_policies_of_learner_0_take_the_place_of_the_others() -> None:
    config = options(normalise_observations=True, normalise_rewards=True)
    first, second = learners(config)
    for unroll in experience(2):
        first.rewards.observe(0, unroll)
        first.algorithm.observe(unroll)
        second.algorithm.observe(unroll)  # which learner 0's answer makes void
    first.algorithm.share_statistics()
    first.counters.updates = 7
    assert first.coordination.share_policy(7, b"policy") == (7, b"policy")
    second.turn()
    first.counters.updates = 9
    first.turn()
    assert second.turn(due=True).publishes
    assert second.coordination.share_policy(second.counters.updates, None) == (7, b"policy")
    assert second.counters.updates == 9 and second.rewards.moments.variance == first.rewards.moments.variance
    ours, theirs = second.algorithm.networks.state_dict(), first.algorithm.networks.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    normaliser = second.algorithm.network.normaliser
    assert normaliser is not None and float(normaliser.count) > 0 and not normaliser.has_collected
    second.update(sample_of(experience(1)[0]))
    second.turn()  # sends its gradient
    first.turn()
    assert not second.turn(due=True).publishes and second.counters.updates == 10, "the same policy is sent once"


def gorila(**changes: object) -> TrainConfig:
    return options(algorithm="gorila", batch_size=16, learning_starts=2, normalise_rewards=False, **changes)


def replayed() -> Sample:
    """Of a replay with one unroll in it."""
    config = gorila(learners=1, actors=1)
    return Chain(config, make_algorithm(config, SPEC, CPU)).sample()


@pytest.mark.parametrize(("limit", "updates", "dropped"), [(2, 4, 0), (1, 3, 1)])
def test_gorila_drops_a_gradient_that_missed_too_many_updates(limit: int, updates: int, dropped: int) -> None:
    config = gorila(max_gradient_lag=limit)
    first, second = learners(config)
    second.turn()
    first.turn()
    assert second.turn(due=True).learns
    first.update(replayed())
    first.update(replayed())
    second.update(replayed())
    second.turn()  # sends its gradient, which missed two
    first.turn()
    first.update(replayed())
    assert first.counters.updates == updates and first.coordination.metrics()["dropped_gradients"] == dropped


def test_gorilas_target_network_follows_the_updates_of_all_learners() -> None:
    config = gorila(target_interval_updates=3)
    first, second = learners(config)
    target, online = (first.algorithm.networks.get_submodule(name) for name in ("target", "online"))
    copied = {name: value.clone() for name, value in online.state_dict().items()}
    second.turn()
    first.turn()
    for made in range(1, 8):
        assert second.turn(due=True).learns
        second.update(replayed())
        second.turn()
        first.turn()
        assert first.algorithm.updates == first.counters.updates == made
        if made % 3 == 1:  # before the first, the fourth and the seventh
            assert not made > 1 or any(not torch.equal(v, copied[n]) for n, v in target.state_dict().items())
            copied = {name: value.clone() for name, value in target.state_dict().items()}
        assert all(torch.equal(value, copied[name]) for name, value in target.state_dict().items())
    second.turn()
    theirs = second.algorithm.networks.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in first.algorithm.networks.state_dict().items())


def test_a_ratio_holds_over_all_learners() -> None:
    """Each sees the steps and updates of the whole run, its own newest steps included."""
    first, second = learners(gorila())
    second.counters.env_steps = 30
    second.turn()
    first.counters.env_steps += 100
    first.turn()
    second.counters.env_steps += 7  # while the answer was on its way
    second.turn()
    assert (first.counters.env_steps, second.counters.env_steps) == (130, 137)


@pytest.mark.parametrize(("interval", "publications"), [(1, 6), (4, 1)])
def test_learner_0_publishes_what_others_gradients_have_made(interval: int, publications: int) -> None:
    first, second = learners(options(publish_interval_updates=interval))
    first.coordination.share_policy(0, b"a")
    unrolls, found = experience(6), 0
    second.turn()
    first.turn()
    for unroll in unrolls:
        assert second.turn(due=True).learns
        second.update(sample_of(unroll))
        second.turn()
        if first.turn().publishes:
            found += 1
            first.coordination.share_policy(first.counters.updates, None)
    assert found == publications


@pytest.mark.parametrize("stopping", [0, 1])
def test_a_reason_is_everybodys(stopping: int) -> None:
    everyone = learners(options(learners=3, actors=3), 3)
    reasons: dict[int, str | None] = {}

    def run(learner: int) -> None:
        turn = everyone[learner].turn(reason="a signal" if learner == stopping else None)
        while turn.reason is None:
            turn = everyone[learner].turn(reason="a signal" if learner == stopping else None)
        reasons[learner] = turn.reason

    together(*[lambda learner=learner: run(learner) for learner in range(3)])  # type: ignore[misc]
    assert set(reasons.values()) == {"a signal" if stopping == 0 else "a signal (learner 1)"}


@pytest.mark.parametrize("silent", [0, 1])
def test_a_learner_that_is_silent_is_an_error_of_the_other(silent: int) -> None:
    everyone = learners(options(peer_timeout_s=0.1))
    with pytest.raises(TransportError, match=f"learner {silent} was silent for 0.1 s"):
        while True:
            everyone[1 - silent].turn(due=True)


def test_an_update_of_others_takes_the_learning_rate_of_the_moment() -> None:
    config = options(learning_rate_schedule="linear", total_env_steps=1000)
    first, second = learners(config)
    second.turn()
    first.turn()
    assert second.turn(due=True).learns
    second.update(sample_of(experience(1)[0]))
    second.turn()
    twin = copy.deepcopy(first.parameters)
    first.counters.env_steps = 1000
    first.turn()
    assert first.counters.updates == 1
    assert torch.equal(first.parameters, twin)


def test_networks_that_no_message_holds_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"'a3c' send each other networks of [\d,]+ bytes.* has 1,048,576 at most"):
        learners(options(network="mlp:512x2"))


def together(*parts: Callable[[], None]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=part, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a learner hangs"
