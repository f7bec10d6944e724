"""No update waits for the device that it computes on: shown on one that computes on the host and refuses to be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Adam

from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.cuda_graphs import WARM_RUNS, RecordedSteps
from accel.bench.learner import random_experience
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import DivergenceError
from accel.experience.batch import Batch, Batcher
from accel.experience.stores.base import Sample
from accel.tuning.mismatch_copies import PolicyCopies
from tests.accel.algorithms.pretend_device import DEVICE, Accelerator, DeviceTensor, WaitedError
from tests.contracts.test_algorithms import ALGORITHMS, CPU, ENVS, SPEC, Chain, config, ignore, parameters, spec_of

Result = TypeVar("Result")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    # What torch refuses to do on a type of device that it does not compute on.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(sys.modules[Adam.__module__], "_device_dtype_check_for_fused", lambda *_, **__: None)
    with Accelerator() as mode:
        yield mode


def there(value: Any) -> Any:
    """The tensors of a sample's part on the device; an episode's first rows, and copies of flags, stay on the host."""
    if isinstance(value, Tensor):
        return value.to(DEVICE)
    if isinstance(value, tuple):
        return tuple(there(part) for part in value)
    if isinstance(value, Batch):
        moved = {field.name: there(getattr(value, field.name)) for field in fields(value)}
        host = {"valid": value.valid, "truncated": value.truncated}
        return replace(value, **moved | {"first": value.first, "on_host": host})
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{field.name: there(getattr(value, field.name)) for field in fields(value)})
    return value


def moved(sample: Sample) -> Sample:
    parts = {name: there(getattr(sample, name)) for name in ("batch", "rewards", "transitions", "steps", "weights")}
    return replace(sample, **parts)


def made(name: str, options: TrainConfig) -> tuple[Algorithm, Any, Chain]:
    """Two equal learners, on the host and on the device, and the experience of the first."""
    host, device = (make_algorithm(options, spec_of(name), place) for place in (CPU, DEVICE))
    return host, device, Chain(options, host)


@contextmanager
def watched(accelerator: Accelerator) -> Iterator[None]:
    """Nothing in here may wait."""
    accelerator.watched = True
    yield
    accelerator.watched = False


def assert_alike(host: Algorithm, device: Algorithm) -> None:
    theirs = parameters(device)
    for key, value in parameters(host).items():
        assert torch.allclose(value.float(), theirs[key].held.float(), atol=1e-4), key


@pytest.mark.slow
@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, "adam") for name in ALGORITHMS), ("impala", "rmsprop"), ("dqn", "rmsprop")]
)
def test_an_update_learns_what_it_does_on_the_host_and_waits_for_nothing(
    name: str, optimizer: str, accelerator: Accelerator
) -> None:
    options = config(name, optimizer=optimizer, max_gradient_norm=0.05)
    host, device, chain = made(name, options)
    assert all(isinstance(value, DeviceTensor) for value in parameters(device).values())
    for _ in range(4):
        sample = chain.sample()
        copied = moved(sample)
        host.update(sample, 0.25, ignore)
        with watched(accelerator):
            update = device.update(copied, 0.25, ignore)
            chain.store.feedback(sample, update.priorities)
        if chain.store.accepts:
            chain.collect()
        metrics = update.read()
        assert np.isfinite(list(metrics.values())).all()
    assert_alike(host, device)


@pytest.mark.few(2)
@pytest.mark.parametrize("algorithm", ["impala", "ppo", "impact"])
def test_final_observations_and_statistics_of_observations_are_not_waited_for(
    algorithm: str, accelerator: Accelerator
) -> None:
    """Of environments that reset within a step, whose truncated episodes are bootstrapped from their last values."""
    spec = EnvSpec((5,), "float32", ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2), "same_step")
    options = TrainConfig.create(algorithm=algorithm, network="mlp:8x1", unroll_length=9, envs_per_actor=4)
    host, device = (make_algorithm(options, spec, place) for place in (CPU, DEVICE))
    _, layout = agree(options, host)
    unroll = random_experience(layout, 1)
    unroll["truncated"][[3, 7], [1, 2]] = True
    batch = Batcher(spec, CPU).build([unroll])
    sample = Sample(unroll.valid_steps or 36, batch, batch.rewards)
    copied = moved(sample)
    for learner, its in ((host, sample), (device, copied)):
        accelerator.watched = learner is device
        learner.observe(unroll)
        learner.update(its, 0.0, ignore)
    accelerator.watched = False
    assert_alike(host, device)


@pytest.mark.parametrize("broken", ["numbers are read", "flags are elsewhere", "first is elsewhere", "copies block"])
def test_it_is_noticed_where_an_update_waits(
    broken: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"first is elsewhere": "impala, lstm", "copies block": "sac"}.get(broken, "ppo")
    _, device, chain = made(name, config(name))
    sample = moved(chain.sample())
    if broken == "numbers are read":
        device.defers = False
    elif broken == "copies block":
        monkeypatch.setattr("accel.algorithms.continuous.to_device", lambda tensor, place: tensor.to(place))
    else:
        assert sample.batch is not None
        changes: dict[str, Any] = (
            {"on_host": {}} if broken == "flags are elsewhere" else {"first": there(sample.batch.first)}
        )
        sample = replace(sample, batch=replace(sample.batch, **changes))
    with watched(accelerator), pytest.raises(WaitedError):
        device.update(sample, 0.0, ignore)


@pytest.mark.parametrize("name", ["impala", "ppo", "dqn", "sac"])
def test_an_update_that_is_not_finite_is_refused_and_reported_with_the_next(
    name: str, accelerator: Accelerator
) -> None:
    _, device, chain = made(name, config(name))
    sample = moved(chain.sample())
    for tensor in (sample.rewards, getattr(sample.transitions, "returns", None)):
        if tensor is not None:
            tensor.held.fill_(float("nan"))
    before = {key: value.held for key, value in parameters(device).items() if "target" not in key}
    with watched(accelerator):
        device.update(sample, 0.0, ignore)
        with pytest.raises(DivergenceError, match="nan") as caught:
            device.update(sample, 0.0, ignore)
    assert caught.value.updates_ago == 1
    after = parameters(device)
    assert all(torch.equal(value, after[key].held) for key, value in before.items())


@pytest.mark.parametrize("name", ["apex", "r2d2", "ptr-ppo"])
def test_priorities_of_a_device_arrive_a_turn_late_and_are_those_that_it_computed(
    name: str, accelerator: Accelerator
) -> None:
    options = config(name)
    algorithm = make_algorithm(options, spec_of(name), CPU)
    chain, late = Chain(options, algorithm), Chain(options, algorithm)
    for _ in range(6):
        chain.collect(), late.collect()
    store: Any = chain.store
    its: Any = late.store
    sample, same = store.sample(), its.sample()
    before = its.tree.weights.copy()
    found = torch.arange(len(sample.weights) if sample.weights is not None else ENVS) / 100
    store.feedback(sample, found)
    with watched(accelerator):
        its.feedback(same, found.to(DEVICE, non_blocking=True))
    assert not np.array_equal(store.tree.weights, its.tree.weights), "they are on their way"
    sample = its.sample()
    with watched(accelerator):
        its.feedback(sample, found.to(DEVICE, non_blocking=True))
    changed = store.tree.weights != before
    assert changed.any() and np.array_equal(store.tree.weights[changed], its.tree.weights[changed])


def test_a_gradient_of_another_learner_that_is_not_finite_is_not_applied(accelerator: Accelerator) -> None:
    _, device, chain = made("a3c", config("a3c"))
    sample = moved(chain.sample())
    gradient = torch.ones(device.parameters.values.shape)
    device.apply(gradient, 0.0)
    before = {key: value.held for key, value in parameters(device).items()}
    device.apply(gradient * float("nan"), 0.0)
    device.update(sample, 0.0, ignore)
    with pytest.raises(DivergenceError, match="gradient norm nan"):
        device.update(sample, 0.0, ignore)
    assert all(torch.equal(value, parameters(device)[key].held) for key, value in before.items())


class Ordinary:
    """A recorder that is never asked to record."""

    def warm(self, call: Callable[[], Result]) -> Result:
        return call()

    def record(self, call: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        raise AssertionError("these are the runs before a recording")


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["impala", "ppo", "ptr-ppo", "impact", "dqn, retrace", "apex", "sac, retrace", "d4pg"])
def test_what_goes_with_recording_waits_for_nothing_either(name: str, accelerator: Accelerator) -> None:
    """Copies of inputs, minibatches of one length; of each step the runs before its recording."""
    options = config(name, passes=1) if "ppo" in name else config(name)
    host, device, chain = made(name, options)
    device.runner = RecordedSteps(Ordinary(), DEVICE, required=True)
    for _ in range(1 if "ppo" in name else WARM_RUNS):
        sample = chain.sample()
        copied = moved(sample)
        chain.store.feedback(sample, host.update(sample, 0.5, ignore).priorities)
        with watched(accelerator):
            device.update(copied, 0.5, ignore)
        if chain.store.accepts:
            chain.collect()
    assert_alike(host, device)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_copies_of_a_recurrent_policy_act_on_the_device(core: str, accelerator: Accelerator) -> None:
    """The rows at which episodes begin are on the host, the states on the device."""
    options = TrainConfig.create(network=f"mlp:8x1+{core}:6")
    host, device = (make_algorithm(options, SPEC, place).network for place in (CPU, DEVICE))
    observations, first = torch.randn(5, 3, *SPEC.observation_shape), torch.arange(15).view(5, 3) % 4 == 0
    states = tuple(torch.randn(3, *shape) for shape in host.state_shapes)
    assert len(states) > 0
    found = []
    for network in (host, device):
        copies = PolicyCopies(network, 1)
        copies.keep(0)
        inputs = (observations, states) if network is host else (there(observations), there(states))
        accelerator.watched = network is device
        found.append(copies.act(0, inputs[0], first, inputs[1]))
        accelerator.watched = False
    assert isinstance(found[1], DeviceTensor) and torch.allclose(found[0], found[1].held, atol=1e-5)
