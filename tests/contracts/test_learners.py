"""Several learners are one: what halves of a batch teach two of them, the whole batch teaches one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.gradient_exchange import GradientExchange
from accel.config import TrainConfig
from accel.config.algorithms import ALGORITHMS
from accel.errors import DivergenceError, TransportError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience
from accel.experience.stores.catalogue import make_store
from accel.experience.unroll import Unroll, UnrollLayout
from accel.learning.coordination import Iteration, SynchronousLearners
from accel.learning.counters import Counters
from accel.learning.process_group import ProcessGroup, own_gpus
from tests.accel.algorithms.pretend_device import DEVICE, Accelerator, DeviceTensor
from tests.contracts.test_algorithms import CPU, ROWS, SPEC, Chain, ignore

UPDATES = 50


def layout_of(config: TrainConfig) -> UnrollLayout:
    return UnrollLayout(SPEC, config.acting.unroll_length, config.acting.envs_per_actor)


SHARED = [name for name, its in ALGORITHMS.items() if its.many_learners and not its.asynchronous_gradients]
CASES: dict[str, dict[str, object]] = {
    **{name: {"algorithm": name} for name in SHARED},
    "ppo": {"algorithm": "ppo", "passes": 1, "minibatches": 1},
    "dppo": {"algorithm": "dppo", "passes": 4, "minibatches": 1},
    "impala, retrace": {"algorithm": "impala", "corrector": "retrace"},
    "impala, lstm, rmsprop": {"algorithm": "impala", "network": "mlp:8x1+lstm:6", "optimizer": "rmsprop"},
    "impala, raw advantages": {"algorithm": "impala", "normalise_advantages": False},
    "ppo, three passes, a stop": {"algorithm": "ppo", "passes": 3, "minibatches": 1, "target_kl": 1e-3},
}
Result = TypeVar("Result")
_SEEDING = threading.Lock()
"""Networks are initialised from torch's one generator, which learners of one process would share."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def together(*parts: Callable[[GradientExchange], Result], timeout_s: float = 60.0) -> list[Result]:
    """Each part in a thread of its own, joined by a real process group; raises what a part raised."""
    store = distributed.HashStore()
    store.set_timeout(timedelta(seconds=timeout_s))
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run(learner: int) -> None:
        try:
            exchange = ProcessGroup(store, learner, len(parts), timeout_s=timeout_s, address="127.0.0.1")
            results[learner] = parts[learner](exchange)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors[learner] = error

    threads = [threading.Thread(target=run, args=(learner,)) for learner in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * timeout_s)
    for learner in sorted(errors):
        raise errors[learner]
    return [results[learner] for learner in range(len(parts))]


def options(case: str, actors: int, **changes: object) -> TrainConfig:
    plain: dict[str, object] = {
        "network": "mlp:8x1", "unroll_length": ROWS, "envs_per_actor": 4, "learning_rate": 0.01, "actors": actors,
        "normalise_observations": True, "normalise_rewards": True, "max_gradient_norm": 0.1,
    }  # fmt: skip
    return TrainConfig.create(**{**plain, **CASES[case], **changes})


def experience(case: str, unrolls: int) -> list[Unroll]:
    """What an actor of an untrained policy sends, of unequally many valid steps."""
    config = options(case, 1, normalise_rewards=False)
    chain = Chain(config, make_algorithm(config, SPEC, CPU))
    found = [chain.collect() for _ in range(unrolls)]
    generator = np.random.default_rng(0)
    for number, unroll in enumerate(found):
        unroll["valid"][...] = generator.random(unroll["valid"].shape) < (0.9 if number % 2 else 0.4)
        unroll["valid"][0] = True
        unroll["observations"][...] += generator.normal(size=unroll["observations"].shape) + number % 3
    return found


def train(config: TrainConfig, batches: Iterator[list[Unroll]], exchange: GradientExchange | None) -> Algorithm:
    """As the loop does it: observe, insert, agree, sample, update."""
    with _SEEDING:
        algorithm = make_algorithm(config, SPEC, CPU, exchange)
    rewards = RewardTransform(config.rewards, config.algorithm.discount)
    store = make_store(config, layout_of(config), Batcher(SPEC, CPU), rewards)
    turns = None if exchange is None else SynchronousLearners(exchange, Counters(10), rewards)
    for unrolls in batches:
        for actor, unroll in enumerate(unrolls):
            rewards.observe(actor, unroll)
            algorithm.observe(unroll)
        if turns is not None:
            turns.agree(None, due=True, publishes=False, actors_alive=1)
        for actor, unroll in enumerate(unrolls):
            store.insert(Experience(actor, unroll, lambda: None))
        sample = store.sample()
        store.feedback(sample, algorithm.update(sample, 0.0, ignore).priorities)
    return algorithm


def tensors(algorithm: Algorithm) -> dict[str, Tensor]:
    return dict(algorithm.networks.state_dict())


def distance(one: Algorithm, two: Algorithm) -> float:
    """The greatest, over tensors, relative to the tensor's size."""
    ours, theirs = tensors(one), tensors(two)
    return max(float((ours[name] - theirs[name]).norm() / (theirs[name].norm() + 1e-6)) for name in theirs)


@pytest.mark.slow
@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_two_learners_with_half_of_each_batch_are_one_with_all_of_it(case: str) -> None:
    """Three unrolls a batch: one learner has two of them. Parameters, normaliser and targets after 50 updates."""
    unrolls = experience(case, 3 * UPDATES)

    def batches(places: list[int]) -> Iterator[list[Unroll]]:
        return ([unrolls[3 * update + place] for place in places] for update in range(UPDATES))

    alone = train(options(case, 3), batches([0, 1, 2]), None)
    shared = options(case, 3, learners=2)
    one, two = together(
        lambda exchange: train(shared.share(0), batches([0, 1]), exchange),
        lambda exchange: train(shared.share(1), batches([2]), exchange),
    )
    assert distance(one, two) == 0.0
    assert distance(one, alone) < 1e-3
    initial = make_algorithm(options(case, 3), SPEC, CPU)
    assert distance(alone, initial) > 0.1
    separate = train(options(case, 2), batches([0, 1]), None)
    assert distance(separate, alone) > 1e-2


def test_minibatches_of_unequal_halves_keep_learners_alike() -> None:
    """One learner has fewer valid steps than there are minibatches: all make as many steps as that one can."""
    unrolls = experience("ppo", 8)
    for unroll in unrolls[1::2]:
        unroll["valid"][...] = False
        unroll["valid"][0, :2] = True
    config = options("ppo", 2, learners=2, passes=2, minibatches=4)
    one, two = together(
        lambda exchange: train(config.share(0), ([u] for u in unrolls[0::2]), exchange),
        lambda exchange: train(config.share(1), ([u] for u in unrolls[1::2]), exchange),
    )
    assert distance(one, two) == 0.0


def test_one_learners_broken_batch_stops_all_before_anything_is_stepped() -> None:
    unrolls = experience("impala", 2)
    unrolls[1]["rewards"][0] = np.nan
    config = options("impala", 2, learners=2, normalise_rewards=False)
    before = tensors(make_algorithm(config, SPEC, CPU))

    def diverge(exchange: GradientExchange) -> str:
        with _SEEDING:
            algorithm = make_algorithm(config, SPEC, CPU, exchange)
        store = make_store(config.share(0), layout_of(config), Batcher(SPEC, CPU), RewardTransform(config.rewards, 0.9))
        store.insert(Experience(0, unrolls[exchange.learner], lambda: None))
        sample = store.sample()
        with pytest.raises(DivergenceError) as caught:
            algorithm.update(sample, 0.0, ignore)
        assert all(torch.equal(value, before[name]) for name, value in tensors(algorithm).items())
        return str(caught.value)

    assert all("nan" in said for said in together(diverge, diverge))


def test_turns_add_up_counts_and_episodes_and_a_reason_is_everybodys() -> None:
    def run(exchange: GradientExchange) -> tuple[list[Iteration], Counters]:
        number, counters = exchange.learner, Counters(8)
        turns = SynchronousLearners(exchange, counters, RewardTransform(options("impala", 2).rewards, 0.9))
        counters.env_steps, counters.episodes = 10 + number, 1 + number
        counters.returns.extend([float(number)] * (1 + number))
        counters.lengths.extend([7] * (1 + number))
        found = [turns.agree(None, due=number == 0, publishes=number == 1, actors_alive=2)]
        found.append(turns.agree(None, due=True, publishes=False, actors_alive=2 - number))
        found.append(turns.agree("a signal" if number else None, due=True, publishes=False, actors_alive=1))
        assert turns.share_policy(7, b"policy" if number == 0 else None) == (7, b"policy")
        assert turns.share_policy(8, None) == (8, None)
        return found, counters

    for found, counters in together(run, run):
        waiting, learning, last = found
        assert not waiting.learns and waiting.publishes and waiting.reason is None
        assert learning.learns and not learning.publishes and learning.actors_alive == 3
        assert last.reason == "a signal (learner 1)"
        assert (counters.env_steps, counters.episodes) == (21, 3)
        assert sorted(counters.returns) == [0.0, 1.0, 1.0] and list(counters.lengths) == [7, 7, 7]


def test_a_learner_that_is_gone_or_silent_is_an_error_of_the_others() -> None:
    def leave(exchange: GradientExchange) -> None:
        exchange.gather([1.0])

    def stay(exchange: GradientExchange) -> None:
        exchange.gather([1.0])
        with pytest.raises(TransportError, match="another learner is gone, or was silent for 60 s"):
            exchange.gather([1.0])

    together(leave, stay, timeout_s=60.0)


def test_learners_that_share_a_device_add_up_by_way_of_the_host() -> None:
    def add(exchange: GradientExchange) -> list[Tensor]:
        with Accelerator():
            tensors = [torch.full((2, 3), 1.5).to(DEVICE), torch.arange(4.0).to(DEVICE)]
            exchange.sum(tensors)
        return [tensor.held for tensor in tensors if isinstance(tensor, DeviceTensor)]

    for found in together(add, add):
        assert len(found) == 2 and torch.equal(found[0], torch.full((2, 3), 3.0))
        assert torch.equal(found[1], 2.0 * torch.arange(4.0))


def test_learners_have_gpus_of_their_own_where_no_two_are_one_and_none_is_without() -> None:
    first, second, none = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 6.0], [0.0] * 5
    assert own_gpus([first, second]) and own_gpus([first])
    assert not own_gpus([first, first]) and not own_gpus([first, none]) and not own_gpus([none, none])
