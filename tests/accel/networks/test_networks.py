"""accel.networks: the learner's forward pass, the acting step, the LSTM's resets and where gradients go."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from accel.config import TrainConfig
from accel.config.parts import Activation, NetworkConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.networks import PolicyNetwork, build_from_config, build_network, compiled_towers
from accel.networks.critics import ActionCritics
from accel.networks.dense import dense

DISCRETE = ActionSpec("categorical", (6,))
MULTI = ActionSpec("multi_categorical", (2, 3))
BOX = ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3)
CARTPOLE = EnvSpec((4,), "float32", ActionSpec("categorical", (2,)))
VECTOR = EnvSpec((5,), "float32", BOX)
MATRIX = EnvSpec((2, 3), "float32", MULTI)
IMAGE = EnvSpec((4, 40, 44), "uint8", DISCRETE)
ATARI = EnvSpec((4, 84, 84), "uint8", DISCRETE)
NETWORKS = [
    ("mlp:32x2", CARTPOLE),
    ("mlp:16x1", VECTOR),
    ("mlp:8x3", MATRIX),
    ("mlp:16x2", IMAGE),
    ("mlp:32x2+lstm:8", VECTOR),
    ("mlp:32x2+transformer:8x2", VECTOR),
    ("nature-cnn:0.25", IMAGE),
    ("nature-cnn:0.25+lstm:8", IMAGE),
    ("impala-resnet:0.25", IMAGE),
    ("impala-resnet:0.25+lstm:8", IMAGE),
]
networks = pytest.mark.parametrize(("text", "spec"), NETWORKS, ids=[f"{t}-{s.observation_shape}" for t, s in NETWORKS])


def _observations(spec: EnvSpec, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if spec.observation_dtype == "uint8":
        return torch.randint(0, 256, (*shape, *spec.observation_shape), generator=generator, dtype=torch.uint8)
    return 3.0 * torch.randn(*shape, *spec.observation_shape, generator=generator)


def _first(length: int, batch: int) -> Tensor:
    return torch.rand(length, batch, generator=torch.Generator().manual_seed(1)) < 0.3


def _state(network: PolicyNetwork, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(batch, *shape, generator=generator) for shape in network.state_shapes)


@networks
def test_every_row_of_an_unroll_is_what_the_acting_step_gives(text: str, spec: EnvSpec) -> None:
    network = build_network(text, spec, seed=0, normalise_observations=spec.observation_dtype == "float32")
    if network.normaliser is not None:
        network.normaliser.update(_observations(spec, 50) * 2.0 + 1.0)
    for parameter in network.policy_head.parameters():
        nn.init.normal_(parameter)
    observations, first, state = _observations(spec, 5, 3), _first(5, 3), _state(network, 3)
    with torch.no_grad():
        output = network(observations, first, state)
        acting = network.acting_module()
        for t in range(5):
            state = tuple(s * ~first[t].unsqueeze(1) for s in state)
            params, *next_state = acting(observations[t], *state)
            torch.testing.assert_close(params, output.params[t], rtol=1e-4, atol=1e-4)
            state = tuple(next_state)
    assert output.params.shape == (5, 3, spec.action.param_size) and output.values.shape == (5, 3)
    assert len(acting.input_names) == len(acting.output_names) == 1 + len(network.state_shapes)
    for final, stepped in zip(output.state, state, strict=True):
        torch.testing.assert_close(final, stepped, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "sigmoid"])
@pytest.mark.parametrize("inputs", [3, 40], ids=["narrow-input", "wide-input"])
def test_the_dense_call_and_its_gradients_equal_the_layers(activation: Activation, inputs: int) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b).double() for a, b in ((inputs, 16), (16, 16), (16, 7))]
    x = torch.randn(9, inputs, dtype=torch.float64, requires_grad=True)
    expected = x
    for layer in layers:
        expected = getattr(torch.nn.functional, activation)(layer(expected))
    weights, biases = tuple(layer.weight for layer in layers), tuple(layer.bias for layer in layers)
    output = dense(x, weights, biases, activation)
    torch.testing.assert_close(output, expected)
    with torch.no_grad():
        single = dense(x.float(), *(tuple(part.float() for part in parts) for parts in (weights, biases)), activation)
    torch.testing.assert_close(single, expected.detach().float(), rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(output)
    ours = torch.autograd.grad((output * weight).sum(), [x, *weights, *biases])
    theirs = torch.autograd.grad((expected * weight).sum(), [x, *weights, *biases])
    torch.testing.assert_close(ours, theirs)


@networks
@pytest.mark.parametrize("critic", ["value", "action-value", "shared"])
def test_what_is_differentiated_by_hand_has_the_gradients_of_autograd(text: str, spec: EnvSpec, critic: str) -> None:
    separate = critic != "shared" and text.startswith("mlp") and "+" not in text
    kind = "action-value" if critic == "action-value" and spec.action.kind == "categorical" else "value"
    _compare_gradients(
        build_network(text, spec, critic=kind, separate_value_torso=separate, seed=0, normalise_observations=True), kind
    )


@pytest.fixture(params=["by a kernel", "by torch"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A network's text. A kernel computes its layers, or torch as where there are none."""
    if request.param == "by torch":
        monkeypatch.setattr(compiled_towers, "kernels_here", tuple)
    return "mlp:16x2"


@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_has_the_gradients_of_autograd(either_way: str, activation: Activation) -> None:
    _compare_gradients(build_network(either_way, VECTOR, activation=activation, seed=0), "value")


@pytest.mark.parametrize("frozen", ["torso.", "bias", "policy_head.", "critic_head.", "log_std"])
def test_frozen_parameters_stay_and_the_others_have_the_gradients_of_autograd(either_way: str, frozen: str) -> None:
    network = build_network(either_way, VECTOR, seed=0)
    named = [parameter for name, parameter in network.named_parameters() if frozen in name]
    for parameter in named:
        parameter.requires_grad_(False)
    _compare_gradients(network, "value")
    assert named and all(parameter.grad is None for parameter in named)


def test_parameters_frozen_after_they_had_gradients_get_no_more(either_way: str) -> None:
    network = build_network(either_way, VECTOR, seed=0)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    network.torso.requires_grad_(False)
    output, pull = network.differentiator()(_observations(VECTOR, 3, 2), _first(3, 2))
    with torch.no_grad():
        pull(torch.ones_like(output.params), torch.ones_like(output.values))
    assert not any(bool(parameter.grad.any()) for parameter in network.torso.parameters())
    assert all(bool(parameter.grad.any()) for parameter in network.policy_head.parameters())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_critics_without_gradients_yet_get_some(either_way: str, activation: Activation) -> None:
    box = EnvSpec((5,), "float32", ActionSpec("gaussian", (2,), (-1.0, -1.0), (1.0, 1.0)))
    config = TrainConfig.create(algorithm="sac", network=either_way, activation=activation)
    critics = ActionCritics(config.policy, box, critics=2)
    rating = critics.differentiator()(torch.randn(7, 5), torch.randn(7, 2))
    rating.pull(torch.ones_like(rating.values))
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in critics.parameters())


def _compare_gradients(network: PolicyNetwork, kind: str) -> None:
    arguments = _observations(network.spec, 3, 2), _first(3, 2), _state(network, 2)
    expected = network(*arguments)
    predictions = expected.values if kind == "value" else expected.action_values
    of_params, of_predictions = torch.randn_like(expected.params), torch.randn_like(predictions)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    theirs = torch.autograd.grad([expected.params, predictions], parameters, [of_params, of_predictions])
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        output, pull = network.differentiator()(*arguments)
        pull(of_params, of_predictions)
    assert not output.params.requires_grad
    torch.testing.assert_close((output.params, output.state), (expected.params.detach(), expected.state))
    torch.testing.assert_close(output.values if kind == "value" else output.action_values, predictions.detach())
    torch.testing.assert_close([parameter.grad for parameter in parameters], list(theirs), rtol=1e-4, atol=1e-5)


def _reached(network: PolicyNetwork, loss: Tensor) -> set[str]:
    network.zero_grad()
    loss.backward(retain_graph=True)
    return {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.abs().any())}


@pytest.mark.parametrize("critic", ["value", "action-value"])
def test_separate_torsos_keep_both_losses_apart_and_a_shared_one_gets_both(critic: str) -> None:
    for separate in (True, False):
        network = build_network("mlp:8x2", CARTPOLE, critic=critic, separate_value_torso=separate, seed=0)
        output = network(_observations(CARTPOLE, 3, 2), torch.zeros(3, 2, dtype=torch.bool))
        policy = _reached(network, output.params.square().sum())
        predictions = output.values if critic == "value" else output.action_values
        value = _reached(network, predictions.square().sum())
        assert policy | value == {name for name, _ in network.named_parameters()}
        shared = {name for name, _ in network.named_parameters() if name.startswith("torso.")}
        assert policy & value == (set() if separate else shared)
        assert {name.split(".")[0] for name in policy} == {"torso", "policy_head"}


def test_the_acting_module_shares_parameters_and_leaves_the_critic_out() -> None:
    network = build_network("mlp:8x2", VECTOR, separate_value_torso=True, normalise_observations=True, seed=0)
    acting = network.acting_module()
    own = dict(network.named_parameters())
    assert all(own[name] is p for name, p in acting.named_parameters())
    assert not [name for name in acting.state_dict() if name.startswith(("value", "critic"))]
    observations = _observations(VECTOR, 4)
    before = acting(observations)[0].detach()
    with torch.no_grad():
        network.policy_head.mean.bias += 1.0
    torch.testing.assert_close(acting(observations)[0], before + torch.tensor([1.0, 1, 1, 0, 0, 0]))


def test_gaussian_parameters_are_means_and_one_log_deviation_for_all_states() -> None:
    network = build_network("mlp:8x2", VECTOR, initial_log_std=-0.5)
    params = network(_observations(VECTOR, 3, 2), torch.zeros(3, 2, dtype=torch.bool)).params
    assert torch.equal(params[..., 3:], torch.full((3, 2, 3), -0.5))
    assert float(params[..., :3].detach().abs().max()) < 0.1


def test_a_missing_state_is_an_error() -> None:
    network = build_network("mlp:8x2+lstm:4", VECTOR)
    assert network.state_shapes == ((4,), (4,)) and build_network("mlp:8x2", VECTOR).state_shapes == ()
    with pytest.raises(ValueError, match="2 parts of recurrent state and got 0"):
        network(_observations(VECTOR, 1, 3), torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("text", "spec", "separate", "expected"),
    [
        ("mlp:64x2", CARTPOLE, False, (4 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2) + (64 + 1)),
        ("mlp:64x2", CARTPOLE, True, 2 * ((4 * 64 + 64) + (64 * 64 + 64)) + (64 * 2 + 2) + (64 + 1)),
        ("mlp:256x3", VECTOR, False, (5 * 256 + 256) + 2 * (256 * 256 + 256) + (256 * 3 + 3) + 3 + (256 + 1)),
        ("mlp:32x1+lstm:16", VECTOR, False, (5 * 32 + 32) + 4 * 16 * (32 + 16 + 2) + (16 * 3 + 3) + 3 + (16 + 1)),
        ("nature-cnn", ATARI, False, 8_224 + 32_832 + 36_928 + 1_606_144 + 3_078 + 513),
        ("nature-cnn:0.5", ATARI, False, 4_112 + 8_224 + 9_248 + (1_568 * 512 + 512) + 3_078 + 513),
        ("impala-resnet", ATARI, False, (592 + 4 * 2_320) + (4_640 + 4 * 9_248) + 5 * 9_248 + 991_488 + 1_542 + 257),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_networks_have_the_published_parameter_count(text: str, spec: EnvSpec, separate: bool, expected: int) -> None:
    network = build_network(text, spec, separate_value_torso=separate)
    assert sum(p.numel() for p in network.parameters()) == expected


def test_weights_start_orthogonal_with_the_gain_of_their_place() -> None:
    network = build_network("mlp:16x2", EnvSpec((16,), "float32", DISCRETE), seed=0)
    for weight in (network.torso.layers[0].weight, network.torso.layers[1].weight):
        torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(16), rtol=1e-4, atol=1e-4)
    head = network.policy_head.weight
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(6), rtol=1e-3, atol=1e-8)
    assert network.critic_head.weight.detach().norm().item() == pytest.approx(1.0, abs=1e-5)
    assert not any(p.any() for name, p in network.named_parameters() if name.endswith("bias"))


def test_features_of_the_resnet_start_at_a_scale_that_trains() -> None:
    network = build_network("impala-resnet", ATARI, seed=0)
    with torch.no_grad():
        features = network.torso(_observations(ATARI, 4).float() / 255.0)
    assert 0.02 < math.sqrt(float(features.square().mean())) < 3.0


def test_a_seed_decides_the_parameters_and_leaves_the_default_generator_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (build_network("mlp:8x2", CARTPOLE, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["torso.layers.0.weight"], other["torso.layers.0.weight"])


@pytest.mark.parametrize(("text", "separate"), [("mlp:8x2", True), ("mlp:8x2+lstm:4", False)])
def test_a_run_configuration_builds_its_network(text: str, separate: bool) -> None:
    config = NetworkConfig(network=text, activation="relu", normalise_observations=True, initial_log_std=-1)
    network = build_from_config(config, VECTOR)
    assert (network.value_torso is not None) == separate
    assert network.normaliser is not None and network.critic == "value"
    assert network.policy_head.log_std[0].item() == -1.0
    assert build_from_config(config, CARTPOLE, critic="action-value").critic == "action-value"
    assert build_from_config(config, CARTPOLE, critic="none", outputs=3).critic_head is None
    shared = config.model_copy(update={"separate_value_torso": False})
    assert build_from_config(shared, CARTPOLE).value_torso is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a machine with a CUDA device")
@networks
def test_cuda_gives_what_the_cpu_gives(text: str, spec: EnvSpec) -> None:
    network = build_network(text, spec, seed=0)
    observations, first, state = _observations(spec, 5, 3), _first(5, 3), _state(network, 3)
    expected = network(observations, first, state)
    network.to("cuda")
    output = network(observations.cuda(), first.cuda(), tuple(s.cuda() for s in state))
    torch.testing.assert_close(output.params.cpu(), expected.params, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(output.values.cpu(), expected.values, rtol=1e-2, atol=1e-2)
    output.values.sum().backward()
    with torch.autocast("cuda", torch.bfloat16):
        half = network(observations.cuda(), first.cuda(), tuple(s.cuda() for s in state))
    torch.testing.assert_close(half.values.float().cpu(), expected.values, rtol=0.1, atol=0.1)
    assert torch.float16 not in {part.dtype for part in half.state}
