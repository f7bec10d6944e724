"""Recorded steps learn what plain ones do: repeated by operations on the tensors that they were recorded with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.cuda_graphs import MAX_RECORDED, WARM_RUNS, CudaRecorder, RecordedSteps, StepRunner, make_runner
from accel.algorithms.gradient_exchange import GradientExchange
from accel.bench.learner import random_experience
from accel.config import TrainConfig
from accel.correctors.recursion import doubling_scan
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batcher
from accel.experience.stores.base import Sample
from tests.contracts.test_algorithms import CPU, Chain, config, equal, ignore, parameters, spec_of

Result = TypeVar("Result")
UPDATES = 20
NAMES = ["impala", "impala, retrace", "a2c", "ppo", "dppo", "ptr-ppo", "impact", "dqn", "dqn, retrace",
         "dqn, prioritised", "apex", "d4pg", "td3", "sac", "sac, retrace", "sac, n-step"]  # fmt: skip


class Tape(TorchDispatchMode):
    """Writes down what is computed, and repeats it on the same tensors without any Python of its authors.

    What CUDA graphs do, for a CPU: a number that Python computed is repeated as it was, a tensor is where it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(function._schema.arguments, args, strict=False):
            self._keep(argument, value)
        for argument in function._schema.arguments:
            if argument.name in kwargs:
                self._keep(argument, kwargs[argument.name])
        found = function(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        new = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() not in given]
        self._own |= {tensor.untyped_storage().data_ptr() for tensor in new}
        self.lines.append((function, args, kwargs, tensors if new else []))
        return found

    def undo(self) -> None:
        """Put back what was written to: recording runs nothing."""
        for tensor, before in self._before.values():
            tensor.copy_(before)

    def replay(self) -> None:
        for function, args, kwargs, results in self.lines:
            found = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for result, value in zip(results, found, strict=False):
                result.copy_(value)

    def _keep(self, argument: Any, value: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in tree_leaves(value):
            place = tensor.untyped_storage().data_ptr()
            if place not in self._own and place not in self._before:
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                self._before[place] = whole, whole.clone()


@dataclass
class TapeRecorder(CudaRecorder):
    """For a CPU."""

    records: int = 0
    replays: int = 0
    fails: bool = False

    def warm(self, call: Callable[[], Result]) -> Result:
        return call()

    def record(self, call: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        if self.fails:
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nand more")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        self.records += 1
        tape = Tape()
        with tape:
            result = call()
        with torch.no_grad():
            tape.undo()

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                tape.replay()

        return result, replay


@pytest.fixture(autouse=True)
def as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways that only a CPU takes compute in numpy, which no tape sees."""
    monkeypatch.setattr("accel.networks.dense.suits", lambda x: False)
    monkeypatch.setattr("accel.correctors.recursion.row_loop", doubling_scan)
    torch.set_num_threads(1)


def learner(name: str, recorder: TapeRecorder | None, **changes: object) -> tuple[GradientAlgorithm, Chain]:
    options = config(name, **{"learning_rate_schedule": "linear", "normalise_observations": True, **changes})
    algorithm = make_algorithm(options, spec_of(name), CPU)
    algorithm.defers = True
    if recorder is not None:
        algorithm.runner = RecordedSteps(recorder, CPU, required=True)
    return algorithm, Chain(options, algorithm)


def train(algorithm: GradientAlgorithm, chain: Chain) -> list[dict[str, float]]:
    """With a learning rate that falls, statistics of observations that change, and every sample another."""
    found = []
    for number in range(UPDATES):
        if chain.store.accepts:
            chain.collect()
        sample = chain.sample()
        update = algorithm.update(sample, number / (UPDATES + 2), ignore)
        chain.store.feedback(sample, update.priorities)
        found.append(update.read())
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, "adam") for name in NAMES), ("impala", "rmsprop"), ("dqn", "rmsprop")]
)
def test_recorded_steps_learn_to_the_bit_what_plain_ones_do(name: str, optimizer: str) -> None:
    recorder = TapeRecorder()
    (plain, its_chain), (recorded, chain) = (
        learner(name, made, optimizer=optimizer, max_gradient_norm=0.05) for made in (None, recorder)
    )
    assert train(plain, its_chain) == train(recorded, chain), "metrics"
    assert equal(parameters(plain), parameters(recorded))
    assert recorder.records >= 1 and recorder.replays >= UPDATES - WARM_RUNS * recorder.records
    assert recorded.runner.outcome == "on"


def test_batches_with_ever_other_numbers_of_valid_steps_are_one_recording() -> None:
    """PPO's minibatches are filled up; what they are filled with has no weight."""
    spec = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)))
    options = TrainConfig.create(
        algorithm="ppo", network="mlp:8x1", passes=2, minibatches=3, unroll_length=50, envs_per_actor=4
    )
    recorder, valid = TapeRecorder(), set[int]()
    plain, recorded = (make_algorithm(options, spec, CPU) for _ in range(2))
    plain.defers = recorded.defers = True
    recorded.runner = RecordedSteps(recorder, CPU, required=True)
    _, layout = agree(options, plain)
    for seed in range(10):
        unroll = random_experience(layout, seed)
        steps = int(unroll["valid"][:-1].sum())
        batch = Batcher(spec, CPU).build([unroll])
        valid.add(steps)
        for algorithm in (plain, recorded):
            algorithm.update(Sample(steps, batch, batch.rewards), 0.0, ignore)
    assert len(valid) > 4 and recorder.records == 3, "targets, and minibatches with and without the KL"
    theirs = parameters(recorded)
    assert all(torch.allclose(value, theirs[key], atol=1e-5) for key, value in parameters(plain).items())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["impala", "ppo", "dqn", "sac"])
def test_a_rate_that_python_knows_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any number that a recording would keep."""
    recorder = TapeRecorder()
    (plain, its_chain), (recorded, chain) = (learner(name, made) for made in (None, recorder))
    begin = recorded.begin

    def set_number(progress: float) -> float:
        rate = begin(progress)
        recorded.optimizer.learning_rate = rate
        return rate

    monkeypatch.setattr(recorded, "begin", set_number)
    train(plain, its_chain), train(recorded, chain)
    assert not all(
        torch.allclose(value, parameters(recorded)[key], atol=1e-5) for key, value in parameters(plain).items()
    )


class Watching(StepRunner):
    """Sees what steps return."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[Tensor] = []

    def run(self, step: Callable[..., Result], mark: Callable[[str], None], *inputs: object) -> Result:
        result = step(mark, *inputs)
        self.returned += [leaf for leaf in _leaves(result) if isinstance(leaf, Tensor)]
        return result


def _leaves(value: Any) -> list[Any]:
    """Of tuples and dataclasses."""
    if is_dataclass(value):
        return [leaf for field in fields(value) for leaf in _leaves(getattr(value, field.name))]
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", NAMES)
def test_no_step_returns_a_graph(name: str) -> None:
    """Which would keep autograd's nodes of the parameters, and with them the stream of an earlier run."""
    algorithm, chain = learner(name, None)
    algorithm.runner = watching = Watching()
    chain.update()
    assert len(watching.returned) >= 4 and not any(tensor.requires_grad for tensor in watching.returned)


def twice(_mark: Callable[[str], None], value: Tensor, other: Tensor | None) -> Tensor:
    return 2.0 * value if other is None else 2.0 * value + other


def test_each_shape_is_recorded_once_and_results_lie_where_they_lay() -> None:
    recorder, marked = TapeRecorder(), list[str]()
    runner = RecordedSteps(recorder, CPU)
    found = [runner.run(twice, marked.append, torch.full((3,), float(k)), None) for k in range(8)]
    assert [tensor[0].item() for tensor in found[:WARM_RUNS]] == [0.0, 2.0, 4.0]
    assert {tensor.data_ptr() for tensor in found[WARM_RUNS:]} == {found[-1].data_ptr()} and found[-1][0] == 14.0
    assert (recorder.records, recorder.replays) == (1, 5) and marked == ["backward"] * 8
    for inputs in ((torch.ones(4), None), (torch.ones(3), torch.ones(3)), (torch.ones(3).double(), None)):
        for _ in range(5):
            assert torch.equal(runner.run(twice, ignore, *inputs), twice(ignore, *inputs))
    assert recorder.records == 4


def test_a_number_is_no_input() -> None:
    with pytest.raises(TypeError, match="give it as a tensor"):
        RecordedSteps(TapeRecorder(), CPU).run(twice, ignore, 0.5, None)


def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    runner = RecordedSteps(TapeRecorder(fails=True), CPU)
    with caplog.at_level("WARNING", "accel"):
        found = [runner.run(twice, ignore, torch.full((3,), float(k)), None)[0].item() for k in range(8)]
    assert found == [2.0 * k for k in range(8)]
    (line,) = caplog.messages
    assert line == "without a CUDA graph: twice cannot be recorded (operation not permitted when stream is capturing)"
    assert runner.outcome.startswith("on, but twice cannot be recorded")
    required = RecordedSteps(TapeRecorder(fails=True), CPU, required=True)
    with pytest.raises(ConfigError, match="--learner-graphs auto, or off"):
        for _ in range(WARM_RUNS + 1):
            required.run(twice, ignore, torch.ones(3), None)


def test_shapes_without_end_are_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    recorder = TapeRecorder()
    runner = RecordedSteps(recorder, CPU, required=True)
    for _ in range(5):
        for size in range(1, MAX_RECORDED + 4):
            assert len(runner.run(twice, ignore, torch.ones(size), None)) == size
    assert recorder.records == MAX_RECORDED
    assert runner.outcome == "on, but steps have more than 16 shapes" and len(caplog.messages) == 1


class Two(GradientExchange):
    learners = 2


@pytest.mark.parametrize(
    ("options", "exchange", "device", "reason"),
    [
        ({"network": "mlp:8x1+lstm:4"}, GradientExchange(), "cuda", "recurrent"),
        ({"network": "mlp:8x1+gru:4"}, GradientExchange(), "cuda", "recurrent"),
        ({"compressor": "prune(0.5)+qat"}, GradientExchange(), "cuda", "changes the ranges"),
        ({"algorithm": "tests.contracts.page_algorithm:factory"}, GradientExchange(), "cuda", "runs its own steps"),
        ({}, Two(), "cuda", "several learners"),
        ({}, GradientExchange(), "cpu", "the learner is on no CUDA device"),
    ],
)
def test_why_steps_are_not_recorded(
    options: dict[str, object], exchange: GradientExchange, device: str, reason: str
) -> None:
    def runner(graphs: str) -> StepRunner:
        return make_runner(TrainConfig.create(**options, learner_graphs=graphs), exchange, torch.device(device))

    assert type(runner("auto")) is StepRunner
    assert runner("auto").outcome.startswith("off: ") and reason in runner("auto").outcome
    with pytest.raises(ConfigError, match=reason):
        runner("on")
    assert runner("off").outcome == "off"


def test_graphs_are_for_cuda_devices() -> None:
    with pytest.raises(ConfigError, match="--device cuda"):
        TrainConfig.create(learner_graphs="on", device="cpu")
