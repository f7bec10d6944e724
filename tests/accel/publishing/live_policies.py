"""Networks on the way to their actors: specs, configurations and made-up batches for the publisher's tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from accel.acting.policy import SessionPolicy
from accel.acting.rules import Sampler, make_sampler
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import relative_error
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.batch import Batch
from accel.experience.unroll import UnrollLayout
from accel.networks import PolicyNetwork, build_from_config
from accel.publishing.inputs import RecentInputs
from accel.publishing.level import INTERVALS, Intervals
from accel.publishing.publisher import Publisher
from accel.transport.base import PolicyUpdate

torch.set_num_threads(1)

DISCRETE = ActionSpec("categorical", (4,))
BOX = ActionSpec("gaussian", (3,), low=(-1.0,) * 3, high=(1.0,) * 3)
VECTOR = EnvSpec((6,), "float32", BOX)
PIXELS = EnvSpec((2, 36, 36), "uint8", DISCRETE)
ENVS = 16
LENGTH = 8


def spec_for(network: str) -> EnvSpec:
    """Pixels for convolutions, else a vector."""
    return PIXELS if "cnn" in network or "resnet" in network else VECTOR


def config_for(network: str, compressor: str, **changes: object) -> TrainConfig:
    """A run in one process that calibrates on the second batch."""
    values: dict[str, object] = {"network": network, "compressor": compressor, "calibration_size": 2 * LENGTH * ENVS}
    values |= {"actors": 0, "algorithm": "impala", "normalise_observations": False}
    return TrainConfig.create(**(values | changes))


def make_network(config: TrainConfig, seed: int = 0) -> PolicyNetwork:
    """With weights that tell observations apart: a new policy head is all but uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_from_config(config.policy, spec_for(config.policy.network))
    with torch.no_grad():
        for name, parameter in network.policy_head.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(100.0)
    return network


def make_batch(network: PolicyNetwork, seed: int = 0, scale: float = 1.0) -> Batch:
    """Random observations of the network's environment; nothing else of a batch matters here."""
    spec, generator = network.spec, torch.Generator().manual_seed(seed)
    shape = (LENGTH + 1, ENVS, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        observations = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    else:
        observations = torch.randn(shape, generator=generator) * scale
    flags = torch.zeros(LENGTH, ENVS, dtype=torch.bool)
    numbers = torch.zeros(LENGTH, ENVS)
    first = torch.zeros(LENGTH + 1, ENVS, dtype=torch.bool)
    first[0, ::4] = True
    states = tuple(torch.tanh(torch.randn(ENVS, *s, generator=generator)) for s in network.state_shapes)
    return Batch(
        observations, None, first, ~flags, torch.zeros(LENGTH, ENVS), numbers, flags, flags, numbers,
        torch.zeros(LENGTH, ENVS, spec.action.param_size), states,
    )  # fmt: skip


def take(recent: RecentInputs, inputs: dict[str, np.ndarray]) -> None:
    """As many of these inputs as are wanted, as the publisher takes them from an unroll."""
    if recent.wanted:
        chosen = recent.choose(len(next(iter(inputs.values()))))
        recent.observe({name: values[chosen] for name, values in inputs.items()})


def rows_of(batch: Batch) -> dict[str, np.ndarray]:
    """A batch's steps as rows, [N, *shape] by name, of a policy without a recurrent state."""
    return {"observations": batch.observations[:-1].flatten(0, 1).numpy()}


def layout_of(network: PolicyNetwork, length: int = LENGTH, envs: int = ENVS) -> UnrollLayout:
    """Of unrolls that a network's actors send."""
    return UnrollLayout(network.spec, length, envs, network.state_shapes)


def observe(publisher: Publisher, network: PolicyNetwork, batch: Batch) -> None:
    """One learner update on a batch that arrived as one unroll."""
    layout = layout_of(network, *batch.valid.shape)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    unroll["observations"][...] = batch.observations.numpy()
    unroll["first"][...] = batch.first.numpy()
    for stored, state in zip(unroll.states, batch.states, strict=True):
        stored[...] = state.numpy()
    publisher.observe(unroll, layout)
    publisher.after_update()


def calibrate(publisher: Publisher, network: PolicyNetwork, updates: int = 2) -> None:
    """As many learner updates, each with a publication."""
    for update in range(updates):
        offered(publisher)
        observe(publisher, network, make_batch(network, seed=update))


def publisher_of(
    network: str, level: str, intervals: Intervals = INTERVALS, levels: Sequence[str] = (), **changes: object
) -> tuple[Publisher, PolicyNetwork]:
    """A publisher of a level, and its network. Options: as for ``config_for``."""
    config = config_for(network, level, **changes)
    return Publisher(config, net := make_network(config), intervals=intervals, levels=levels), net


def calibrated(
    network: str, level: str, intervals: Intervals = INTERVALS, **changes: object
) -> tuple[Publisher, PolicyNetwork]:
    """One whose level is calibrated."""
    publisher, net = publisher_of(network, level, intervals, **changes)
    calibrate(publisher, net)
    return publisher, net


def offered(publisher: Publisher) -> bytes | None:
    """The current policy as it is published; None where it is withheld."""
    publisher.begin(0)
    found = publisher.prepared(wait=True)
    assert found is not None
    return found[1]


def payload_of(publisher: Publisher) -> bytes:
    """The current policy as it is published."""
    payload = offered(publisher)
    assert payload is not None
    return payload


def published(publisher: Publisher) -> str:
    """The scheme that actors are offered; empty where nothing is."""
    payload = offered(publisher)
    return "" if payload is None else CompressedPolicy.from_bytes(payload).scheme


def scale(network: PolicyNetwork | torch.Tensor, factor: float) -> None:
    """Multiply a parameter, or all of a network's."""
    with torch.no_grad():
        for parameter in [network] if isinstance(network, torch.Tensor) else network.parameters():
            parameter.mul_(factor)


def acting_error(payload: bytes, network: PolicyNetwork, observations: np.ndarray | None = None) -> float:
    """How far an actor with this payload is from the learner's policy; on a batch of its own if none is given."""
    actor = session_policy(network)
    actor.load(update_of(payload))
    rows = make_batch(network, seed=3).observations[0].numpy() if observations is None else observations
    return relative_error(act_once(actor, network, rows), torch_params(network, rows))


def session_policy(network: PolicyNetwork, envs: int = ENVS) -> SessionPolicy:
    """The actor's side."""
    return SessionPolicy(layout_of(network, envs=envs), begun_sampler(network.spec, envs))


def begun_sampler(spec: EnvSpec, envs: int = ENVS) -> Sampler:
    """Ready to sample the first steps of an unroll."""
    sampler = make_sampler(spec.action, envs, LENGTH, np.random.default_rng(0))
    sampler.begin()
    return sampler


def act_once(policy: SessionPolicy, network: PolicyNetwork, observations: np.ndarray) -> np.ndarray:
    """The distribution parameters [B, P] of one step."""
    spec = network.spec
    actions = np.zeros((len(observations), *spec.action.shape), spec.action.dtype)
    params = np.zeros((len(observations), spec.action.param_size), np.float32)
    policy.act(observations, None, 0, actions, params)
    return params


def update_of(payload: bytes | None, version: int = 1) -> PolicyUpdate:
    """As a transport hands it over."""
    return PolicyUpdate(version, payload)


def torch_params(network: PolicyNetwork, observations: np.ndarray) -> np.ndarray:
    """What the learner's policy says, from zero state."""
    with torch.no_grad():
        outputs = network.acting_module()(
            torch.from_numpy(observations), *(torch.zeros(len(observations), *s) for s in network.state_shapes)
        )
    return outputs[0].numpy()
