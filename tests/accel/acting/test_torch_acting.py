"""The torch baseline acts with exactly the network's policy, whatever memory format it runs in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accel.acting.rules import make_sampler
from accel.acting.torch_policy import TorchPolicy, make_module, serialise_module
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.unroll import UnrollLayout
from accel.networks import build_from_config
from accel.transport.base import PolicyUpdate

ENVS = 3
VECTORS = EnvSpec((5,), "float32", ActionSpec("categorical", (4,)))
IMAGES = EnvSpec((4, 40, 40), "uint8", ActionSpec("categorical", (4,)))


@pytest.mark.parametrize(
    ("network", "spec"),
    [
        ("mlp:16x2", VECTORS),
        ("mlp:16x1+lstm:8", VECTORS),
        ("nature-cnn:0.25", IMAGES),
        ("impala-resnet:0.25", IMAGES),
        ("mlp:16x1", IMAGES),
    ],
)
def test_parameters_are_those_of_the_published_network(network: str, spec: EnvSpec) -> None:
    torch.set_num_threads(1)
    config = TrainConfig.create(network=network, compressor="fp32", actor_runtime="torch")
    published = build_from_config(config.policy, spec)
    rng = np.random.default_rng(0)
    sampler = make_sampler(spec.action, ENVS, 4, rng)
    sampler.begin()
    policy = TorchPolicy(
        make_module(config.to_json(), spec), UnrollLayout(spec, 4, ENVS, published.state_shapes), sampler
    )
    policy.load(PolicyUpdate(3, serialise_module(published.acting_module(), spec)))
    assert (policy.version, policy.scheme) == (3, "fp32")
    state = tuple(torch.zeros(ENVS, *s) for s in published.state_shapes)
    actions, params = np.zeros(ENVS, np.int64), np.zeros((ENVS, 4), np.float32)
    for t in range(4):
        draw = rng.integers(0, 256, (ENVS, *spec.observation_shape))
        observations = draw.astype(spec.observation_dtype)
        first = np.array([t == 2, False, t == 0])
        policy.act(observations, first, t, actions, params)
        with torch.no_grad():
            wanted = published(torch.from_numpy(observations)[None], torch.from_numpy(first)[None], state)
        state = wanted.state
        np.testing.assert_allclose(params, wanted.params[0].numpy(), atol=1e-5)
        assert ((actions >= 0) & (actions < 4)).all()
        for ours, theirs in zip(policy.states(), state, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
