"""The learner on a real CUDA device: what the other tests show on a pretended one, and a run from start to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import accel
from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.cuda_graphs import CudaRecorder, RecordedSteps, make_runner
from accel.algorithms.gradient_exchange import GradientExchange
from accel.config import TrainConfig
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Store
from accel.experience.stores.catalogue import make_store
from accel.experience.transfer import Arrivals, Joined, make_staging
from accel.experience.unroll import Unroll
from accel.learning.device import update_phases
from accel.monitor.timers import PhaseTimer
from tests.contracts.test_algorithms import ALGORITHMS, CPU, Chain, config, ignore, spec_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
CUDA = torch.device("cuda")
UPDATES = 20
RECURRENT = [name for name in ALGORITHMS if "lstm" in str(ALGORITHMS[name].get("network", ""))]
NAMES = [name for name in ALGORITHMS if name != "the page's"]


@contextmanager
def no_waiting() -> Iterator[None]:
    """torch raises where the host would wait for the device."""
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Learner:
    """One on CUDA with a store of its own, fed with what actors of another learner send."""

    def __init__(self, name: str, graphs: str, **changes: object) -> None:
        self.options = config(name, learner_graphs=graphs, learning_rate_schedule="linear", **changes)
        spec = spec_of(name)
        algorithm = make_algorithm(self.options, spec, CUDA)
        assert isinstance(algorithm, GradientAlgorithm)
        self.algorithm = algorithm
        algorithm.runner = make_runner(self.options, GradientExchange(), CUDA)
        _, layout = agree(self.options, algorithm)
        rewards = RewardTransform(self.options.rewards, self.options.algorithm.discount)
        self.store: Store = make_store(self.options, layout, Batcher(spec, CUDA), rewards)

    def train(self, unrolls: list[Unroll]) -> None:
        for number, unroll in enumerate(unrolls):
            self.algorithm.observe(unroll)
            self.store.insert(Experience(0, unroll, lambda: None))
            if (sample := self.store.sample()) is not None:
                update = self.algorithm.update(sample, number / (2 * UPDATES), ignore)
                self.store.feedback(sample, update.priorities)

    def parameters(self) -> dict[str, np.ndarray]:
        return {key: value.cpu().numpy() for key, value in self.algorithm.networks.state_dict().items()}


def experience(name: str) -> list[Unroll]:
    options = config(name)
    chain = Chain(options, make_algorithm(options, spec_of(name), CPU))
    return [chain.collect() for _ in range(UPDATES)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("graphs", ["off", "on"])
def test_an_update_and_what_goes_with_it_waits_for_nothing(name: str, graphs: str) -> None:
    if graphs == "on" and name in RECURRENT:
        graphs = "auto"
    learner, unrolls = Learner(name, graphs, normalise_observations=True), experience(name)
    learner.train(unrolls[:10])  # recordings, and libraries' choices of algorithms, wait
    with no_waiting():
        learner.train(unrolls[10:])
    assert learner.algorithm.is_finite()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in RECURRENT])
def test_graphs_learn_what_plain_steps_do(name: str, optimizer: str) -> None:
    unrolls = experience(name)
    plain, graphs = (Learner(name, wanted, optimizer=optimizer, max_gradient_norm=0.05) for wanted in ("off", "on"))
    plain.train(unrolls)
    graphs.train(unrolls)
    assert graphs.algorithm.runner.outcome == "on"
    theirs = graphs.parameters()
    for key, value in plain.parameters().items():
        np.testing.assert_allclose(theirs[key], value, atol=2e-4, err_msg=key)


@pytest.mark.parametrize("name", ["impala", "ppo", "dqn", "sac"])
def test_a_device_learns_what_the_host_does(name: str) -> None:
    unrolls, options = experience(name), config(name, learning_rate_schedule="linear")
    device = Learner(name, "off")
    host = make_algorithm(options, spec_of(name), CPU)
    chain = Chain(options, host)
    device.train(unrolls)
    for number, unroll in enumerate(unrolls):
        chain.store.insert(Experience(0, unroll, lambda: None))
        if (sample := chain.store.sample()) is not None:
            update = host.update(sample, number / (2 * UPDATES), ignore)
            chain.store.feedback(sample, update.priorities)
    theirs = device.parameters()
    for key, value in host.networks.state_dict().items():
        np.testing.assert_allclose(theirs[key], value.numpy(), atol=0.03, err_msg=key)


def test_batches_that_are_in_flight_are_not_overwritten() -> None:
    """More than there is page-locked memory for, with work in front of their use."""
    staging = make_staging(CUDA)
    sent = []
    busy = torch.randn(2048, 2048, device=CUDA)
    for number in range(40):
        busy = (busy @ busy).clamp(-1.0, 1.0)
        arrays = [np.full((1000, 100 + number), number + part, np.float32) for part in range(2)]
        sent.append(staging.send({"a": Joined(arrays, 1), "b": Joined([np.arange(number + 1)])}))
    for number, fields in enumerate(sent):
        half = 100 + number
        assert bool((fields["a"][:, :half] == number).all()) and bool((fields["a"][:, half:] == number + 1).all())
        assert fields["b"].tolist() == list(range(number + 1))


def test_numbers_arrive_a_turn_late() -> None:
    arrivals: Arrivals[int] = Arrivals()
    with no_waiting():
        found = [arrivals.put(number, torch.full((3,), float(number), device=CUDA)) for number in range(4)]
    assert found[0] == [] and [keys[0][0] for keys in found[1:]] == [0, 1, 2]
    assert all(np.array_equal(arrived[0][1], np.full(3, arrived[0][0])) for arrived in found[1:])


def test_phases_are_the_devices() -> None:
    timer = PhaseTimer(("backward", "much"))
    phases = update_phases(CUDA, timer)
    matrix = torch.randn(4096, 4096, device=CUDA)
    torch.mm(matrix, matrix)  # the first product of all starts cuBLAS
    torch.cuda.synchronize()
    for _ in range(3):
        phases.begin()
        torch.mm(matrix, matrix)
        phases.mark("backward")
        for _ in range(20):
            torch.mm(matrix, matrix)
        phases.mark("much")
        phases.end()
    phases.settle(wait=True)
    times = timer.snapshot()
    assert times["much"] > 2.0 * times["backward"] > 0.0


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_a_run_learns_on_cuda_and_says_whether_with_graphs(graphs: str, tmp_path: Path) -> None:
    summary = accel.train(
        TrainConfig.create(
            env="CartPole-v1", actors=0, device="cuda", learner_graphs=graphs, total_env_steps=20_000,
            results_dir=tmp_path, evaluate_every=None,
        )
    )  # fmt: skip
    assert summary.device.startswith("cuda") and summary.learner_graphs == {"auto": "on", "off": "off"}[graphs]
    assert summary.learner_s["backward"] > 0.0 and summary.return_mean is not None and summary.return_mean > 20.0


def test_a_step_that_cannot_be_recorded_leaves_stream_and_memory_as_they_were() -> None:
    """It reads a number, which is no error in an ordinary run."""

    def reads(_mark: object, value: torch.Tensor) -> torch.Tensor:
        return value * float(value.sum())

    def doubles(_mark: object, value: torch.Tensor) -> torch.Tensor:
        return 2.0 * value

    runner, before = RecordedSteps(CudaRecorder(CUDA), CUDA), torch.cuda.current_stream()
    for number in range(8):
        found = runner.run(reads, ignore, torch.full((4,), float(number), device=CUDA))
        assert found.tolist() == [4.0 * number**2] * 4
    assert torch.cuda.current_stream() == before and "cannot be recorded" in runner.outcome
    for number in range(8):
        found = runner.run(doubles, ignore, torch.full((4,), float(number), device=CUDA))
        assert found.tolist() == [2.0 * number] * 4
    assert "doubles" not in runner.outcome
    torch.cuda.empty_cache()  # raises while a recording is under way
