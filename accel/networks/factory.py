"""From a network's text and an environment's layout to the network; every mismatch is a ConfigError."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

from accel.config.parts import Activation, NetworkConfig
from accel.envs.spaces import ACTION_MASK, EnvSpec, ObservationPart
from accel.errors import ConfigError
from accel.networks.core import GRUCore, LSTMCore, RecurrentCore
from accel.networks.custom import make_custom_torso
from accel.networks.observations import DictTorso
from accel.networks.policy import Critic, PolicyNetwork
from accel.networks.text import NetworkText, cnn_for, parse_network
from accel.networks.torsos import ImpalaResNet, MLPTorso, NatureCNN, Torso
from accel.networks.transformer import TransformerCore


def build_network(
    text: str,
    spec: EnvSpec,
    *,
    critic: Critic = "value",
    activation: Activation = "tanh",
    separate_value_torso: bool = False,
    normalise_observations: bool = False,
    initial_log_std: float = 0.0,
    outputs: int | None = None,
    seed: int | None = None,
) -> PolicyNetwork:
    """Builds a network on the CPU.

    Args:
        text: ``auto``, or such as ``mlp:256x2``, ``nature-cnn:0.5``, ``impala-resnet:2+lstm:256``, or
            ``package.module:factory`` (``accel.networks.custom``). For a Dict observation a built-in text is the torso
            of the parts of its kind; further images get nature-cnn, or impala-resnet below 36 x 36, further vectors
            mlp:256x2, and the features of all are joined.
        spec: the environment's layout.
        critic: ``value``, ``action-value`` for Q(s, ·) of categorical actions, as Retrace needs it, or ``none``.
        activation: of mlp torsos; CNNs have ReLU.
        separate_value_torso: not with a recurrent core.
        normalise_observations, initial_log_std, outputs: see ``PolicyNetwork``.
        seed: initialise from this seed, leaving torch's default generator alone; None: use that generator.
    Raises:
        ConfigError: the text is unknown, or does not go with the environment or the options.
    """
    parsed = parse_network(text).for_observations(spec)
    _check(parsed, spec, critic, separate_value_torso)
    with ExitStack() as stack:
        if seed is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(seed)
        torso, features = _make_torso(parsed, spec, activation)
        return PolicyNetwork(
            spec,
            torso,
            features,
            value_torso=_make_torso(parsed, spec, activation)[0] if separate_value_torso else None,
            core=_make_core(parsed, features),
            outputs=outputs,
            normalise_observations=normalise_observations and any(part.dtype != "uint8" for part in spec.inputs),
            critic=critic,
            initial_log_std=initial_log_std,
            channels_last=parsed.is_cnn and not spec.parts,
        )


def build_from_config(
    config: NetworkConfig,
    spec: EnvSpec,
    *,
    critic: Critic = "value",
    outputs: int | None = None,
    seed: int | None = None,
) -> PolicyNetwork:
    """Builds the network that a run's options ask for. Raises ConfigError: as ``build_network``.

    ``separate_value_torso`` none means yes for an mlp with a critic and without a recurrent core, else no.
    """
    parsed = parse_network(config.network).for_observations(spec)
    separate = config.separate_value_torso
    if separate is None:
        separate = parsed.torso == "mlp" and parsed.core is None and critic != "none" and not spec.has_images
    return build_network(
        str(parsed),
        spec,
        critic=critic,
        activation=config.activation,
        separate_value_torso=separate,
        normalise_observations=config.normalise_observations,
        initial_log_std=config.initial_log_std,
        outputs=outputs,
        seed=seed,
    )


def _check(text: NetworkText, spec: EnvSpec, critic: Critic, separate_value_torso: bool) -> None:
    seen = f"the parts {', '.join(p.name for p in spec.parts)}" if spec.parts else f"shape {spec.observation_shape}"
    if text.is_cnn and not spec.has_images:
        raise ConfigError(
            f"network '{text}' needs (channels, height, width) images, the observations have {seen}: "
            "use an mlp, such as mlp:256x2; images are uint8 Box observations of two dimensions or more"
        )
    if critic == "action-value" and spec.action.kind != "categorical":
        raise ConfigError(
            f"an action-value critic (Retrace) needs one discrete action, not {spec.action.kind} actions: "
            "use the vtrace corrector"
        )
    if separate_value_torso and critic == "none":
        raise ConfigError("separate_value_torso is for a critic of its own, which this algorithm has not: leave it out")
    if separate_value_torso and text.core is not None:
        raise ConfigError(
            f"network '{text}': a separate value torso would need a recurrent state that actors do not carry: "
            f"leave separate_value_torso off with +{text.core}"
        )


def _make_torso(text: NetworkText, spec: EnvSpec, activation: Activation) -> tuple[nn.Module, int]:
    """The torso and F, its number of features."""
    if text.is_factory:
        return make_custom_torso(text.torso, spec)
    if spec.parts:
        torsos = {p.name: _part_torso(text, p, activation) for p in spec.parts if p.name != ACTION_MASK}
        torso: Torso = DictTorso(torsos)
    else:
        torso = _built_in(text, spec.observation_shape, activation)
    return torso, torso.features


def _part_torso(text: NetworkText, part: ObservationPart, activation: Activation) -> Torso:
    """The text's torso for parts of its kind; for the others nature-cnn, impala-resnet (small images) or mlp:256x2."""
    if part.is_image == text.is_cnn:
        return _built_in(text, part.shape, activation)
    return _built_in(parse_network(cnn_for(part.shape) if part.is_image else "mlp"), part.shape, activation)


def _built_in(text: NetworkText, shape: tuple[int, ...], activation: Activation) -> Torso:
    if text.torso == "mlp":
        return MLPTorso(shape, tuple(map(int, text.sizes)), activation)
    return (NatureCNN if text.torso == "nature-cnn" else ImpalaResNet)(shape, text.sizes[0])


def _make_core(text: NetworkText, features: int) -> RecurrentCore | None:
    if text.core is None:
        return None
    if text.core == "transformer":
        return TransformerCore(features, text.core_size, text.core_layers)
    return (LSTMCore if text.core == "lstm" else GRUCore)(features, text.core_size)
