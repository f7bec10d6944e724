"""Network texts: parsing, printing, the user's own factories, and every refusal's message."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError
from accel.networks import build_network
from accel.networks.text import CoreName, NetworkText, parse_network

VECTOR = EnvSpec((5,), "float32", ActionSpec("gaussian", (3,), (-1.0,) * 3, (1.0,) * 3))
IMAGE = EnvSpec((4, 40, 44), "uint8", ActionSpec("categorical", (6,)))


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("mlp:64-64", NetworkText("mlp", (64.0, 64.0)), "mlp:64x2"),
        ("mlp", NetworkText("mlp", (256.0, 256.0)), "mlp:256x2"),
        ("nature-cnn:0.5+lstm", NetworkText("nature-cnn", (0.5,), "lstm", 256), "nature-cnn:0.5+lstm:256"),
        (" impala-resnet:2+lstm:128 ", NetworkText("impala-resnet", (2.0,), "lstm", 128), "impala-resnet:2+lstm:128"),
        ("mlp:8x1+transformer", NetworkText("mlp", (8.0,), "transformer", 64, 2), "mlp:8x1+transformer:64x2"),
        ("my.own:torso+gru:8", NetworkText("my.own:torso", (), "gru", 8), "my.own:torso+gru:8"),
    ],
)
def test_a_text_is_parsed_and_printed(text: str, expected: NetworkText, canonical: str) -> None:
    assert parse_network(text) == expected
    assert str(expected) == canonical
    assert parse_network(canonical) == expected


TORSOS = st.one_of(
    st.builds(lambda w, d: NetworkText("mlp", (float(w),) * d), st.integers(1, 99999), st.integers(1, 99)),
    st.builds(lambda ws: NetworkText("mlp", tuple(map(float, ws))), st.lists(st.integers(1, 99999), min_size=2)),
    st.builds(
        lambda name, quarters: NetworkText(name, (quarters / 4,)),
        st.sampled_from(["nature-cnn", "impala-resnet"]),
        st.integers(1, 400),
    ),
    st.just(NetworkText("package.module:factory", ())),
)


CORES = st.one_of(
    st.just(()),
    st.tuples(st.sampled_from(["lstm", "gru"]), st.integers(1, 9999)),
    st.tuples(st.just("transformer"), st.integers(1, 2000).map(lambda quarter: 4 * quarter), st.integers(1, 9)),
)


@given(TORSOS, CORES)
def test_printing_and_parsing_round_trip(torso: NetworkText, core: tuple[CoreName, int]) -> None:
    network = NetworkText(torso.torso, torso.sizes, *core)
    assert parse_network(str(network)) == network


@pytest.mark.parametrize(
    "text",
    [
        "", "resnet", "resnet:2", "mlp:", "mlp:64", "mlp:0x2", "mlp:64x0", "mlp:64x2x1", "nature-cnn:0",
        "nature-cnn:-1", "nature-cnn:nan", "impala-resnet:", "impala-resnet:big", "mlp:64x2+rnn", "mlp:64x2+gru:0",
        "mlp:64x2+transformer:64", "mlp:64x2+transformer:30x1", "mlp:64x2+transformer:64x0", "mlp:64x2+lstm+gru",
        "mlp:64x2+lstm:0",
        "mlp:64x2+lstm:", "mlp:64x2+lstm+lstm", "+lstm:8", "a:b:c", "1a:b",
    ],
)  # fmt: skip
def test_a_malformed_text_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"choices: auto\[:WIDTHxDEPTH\], mlp:WIDTHxDEPTH or .*nature-cnn.*impala-resnet.*lstm:SIZE"
    ):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "spec", "options", "message"),
    [
        ("nature-cnn", VECTOR, {}, r"needs \(channels, height, width\) images.*use an mlp"),
        ("impala-resnet+lstm:8", VECTOR, {}, r"needs \(channels, height, width\) images.*use an mlp"),
        ("nature-cnn", EnvSpec((3, 20, 20), "uint8", IMAGE.action), {}, "at least 36 x 36, not 20 x 20"),
        ("mlp:8x1", VECTOR, {"critic": "action-value"}, "needs one discrete action, not gaussian.*vtrace"),
        ("mlp:8x1+lstm:4", VECTOR, {"separate_value_torso": True}, "leave separate_value_torso off"),
        ("no_such_package.module:torso", VECTOR, {}, "cannot import 'no_such_package.module'.*PYTHONPATH"),
        ("accel.envs.spaces:missing", VECTOR, {}, "module 'accel.envs.spaces' has no function 'missing'"),
        ("accel.envs.spaces:__name__", VECTOR, {}, "module 'accel.envs.spaces' has no function '__name__'"),
        (
            "own_networks:wrong_shape",
            IMAGE,
            {},
            r"must map \(2, 4, 40, 44\) to \[2, features\], it gave \(2, 4",
        ),
        ("own_networks:wrong_input", IMAGE, {}, r"fails on observations \(2, 4, 40, 44\)"),
        ("own_networks:no_module", IMAGE, {}, "returned function, not a torch.nn.Module"),
        ("own_networks:broken", IMAGE, {}, "failed with KeyError: 'width'"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_a_network_that_does_not_fit_is_refused(text: str, spec: EnvSpec, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(text, spec, **options)


FACTORIES = """
import math
import torch
from torch import nn

def good(spec):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.Tanh())

def views(spec):
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(spec.observation_shape[0], 4, 8, 4)
        def forward(self, images):
            assert images.dtype == torch.float32 and float(images.max()) <= 1.0
            return self.convolution(images).view(len(images), -1)
    return Views()

def wrong_shape(spec):
    return nn.Identity()

def wrong_input(spec):
    return nn.Linear(999, 3)

def no_module(spec):
    return lambda x: x

def broken(spec):
    return {}["width"]

def with_layer(spec, layer):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.observation_shape), 32), layer, nn.Tanh())

def dropout(spec):
    return with_layer(spec, nn.Dropout(0.1))

def batch_norm(spec):
    return with_layer(spec, nn.BatchNorm1d(32))

def layer_norm(spec):
    return with_layer(spec, nn.Sequential(nn.LayerNorm(32), nn.Dropout(0.0)))

def frozen(spec):
    torso = with_layer(spec, nn.Sequential(nn.BatchNorm1d(32), nn.Dropout(0.5)))
    torso[2].eval()
    return torso

class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x

def noise(spec):
    return with_layer(spec, Noisy())

def noise_always(spec):
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)
    return with_layer(spec, Noise())

def centred(spec):
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)
    return with_layer(spec, Centred())
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_networks.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_networks"


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize(("name", "spec"), [("good", VECTOR), ("good", IMAGE), ("views", IMAGE)])
@pytest.mark.parametrize(("core", "separate"), [("", False), ("", True), ("+lstm:4", False), ("+gru:4", False)])
def test_the_users_own_torso_is_built_into_a_network(
    factories: str, name: str, spec: EnvSpec, core: str, separate: bool
) -> None:
    network = build_network(f"{factories}:{name}{core}", spec, separate_value_torso=separate, seed=0)
    assert all(p.numel() for p in network.parameters())
    observations = torch.ones(3, 2, *spec.observation_shape, dtype=getattr(torch, spec.observation_dtype))
    output = network(
        observations, torch.zeros(3, 2, dtype=torch.bool), tuple(torch.zeros(2, *s) for s in network.state_shapes)
    )
    assert output.params.shape == (3, 2, spec.action.param_size)
    (output.params.square().sum() + output.values.sum()).backward()
    assert all(p.grad is not None for p in network.parameters())
    same = build_network(f"{factories}:{name}{core}", spec, separate_value_torso=separate, seed=0)
    pairs = zip(network.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dropout", r"layer '2' \(Dropout\) computes something else in train mode.*LayerNorm"),
        ("batch_norm", r"layer '2' \(BatchNorm1d\) computes something else in train mode.*LayerNorm"),
        ("noise", r"layer '2' \(Noisy\) computes something else in train mode"),
        ("noise_always", "from call to call: leave out noise"),
        ("centred", "differently alone and beside others.*normalisation over the batch"),
    ],
)
def test_a_torso_that_acts_otherwise_than_it_learns_is_refused(
    factories: str, name: str, message: str, spec: EnvSpec
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(f"{factories}:{name}", spec)


def test_layers_whose_mode_makes_no_difference_are_taken_as_they_are(factories: str) -> None:
    """Modes and statistics stay what they were."""
    frozen = build_network(f"{factories}:frozen", VECTOR)
    assert frozen.torso.training and not frozen.torso[2].training
    assert not frozen.torso[2][0].running_mean.any() and int(frozen.torso[2][0].num_batches_tracked) == 0
    assert build_network(f"{factories}:layer_norm", VECTOR).torso[2].training


def test_auto_follows_the_kind_of_observation() -> None:
    small = EnvSpec((3, 10, 10), "uint8", IMAGE.action)
    texts = [str(parse_network("auto:32x1").for_observations(spec)) for spec in (VECTOR, IMAGE, small)]
    assert texts == ["mlp:32x1", "nature-cnn", "impala-resnet"]
    assert str(parse_network("auto+lstm:8").for_observations(IMAGE)) == "nature-cnn+lstm:8"
    assert build_network("auto", IMAGE, normalise_observations=True).normaliser is None
    assert build_network("auto", VECTOR, normalise_observations=True).normaliser is not None
    with pytest.raises(ConfigError, match=r"float32 of shape .*name one with --network"):
        build_network("auto", EnvSpec((3, 40, 40), "float32", IMAGE.action))
