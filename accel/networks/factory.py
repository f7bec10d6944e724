"""From a network's text and an environment's layout to the network; every mismatch is a ConfigError."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module

import torch
from torch import Tensor, nn

from accel.config.models import NetworkConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.networks.core import LSTMCore
from accel.networks.dense import Activation
from accel.networks.policy import Critic, PolicyNetwork
from accel.networks.text import CHOICES, NetworkText, parse_network
from accel.networks.torsos import ImpalaResNet, MLPTorso, NatureCNN, Torso


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
        text: such as ``mlp:256x2``, ``nature-cnn:0.5``, ``impala-resnet:2+lstm:256``, or ``package.module:factory``, a
            function of the EnvSpec that returns an ``nn.Module`` from [N, *obs] float to [N, F]; uint8 observations
            reach it scaled to [0, 1]. It must map rows independently and deterministically: no dropout, no batch norm.
        spec: the environment's layout.
        critic: ``value``, ``action-value`` for Q(s, ·) of categorical actions, as Retrace needs it, or ``none``.
        activation: of mlp torsos; CNNs have ReLU.
        separate_value_torso: the critic gets its own torso; not with an LSTM.
        normalise_observations: keep running statistics of float observations; images are scaled by 1/255 instead.
        initial_log_std: initial log standard deviation of Gaussian actions.
        outputs: of the policy head; None: the action distribution's parameters.
        seed: initialise from this seed, leaving torch's default generator alone; None: use that generator.
    Raises:
        ConfigError: the text is unknown, or does not go with the environment or the options.
    """
    parsed = parse_network(text)
    _check(parsed, spec, critic, separate_value_torso, normalise_observations)
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
            core=None if parsed.lstm_size is None else LSTMCore(features, parsed.lstm_size),
            outputs=outputs,
            normalise_observations=normalise_observations,
            critic=critic,
            initial_log_std=initial_log_std,
            channels_last=parsed.is_cnn,
        )


def build_from_config(
    config: NetworkConfig, spec: EnvSpec, *, critic: Critic = "value", outputs: int | None = None
) -> PolicyNetwork:
    """Builds the network that a run's options ask for.

    ``separate_value_torso`` none means yes for an mlp with a critic and without an LSTM, else no.

    Raises:
        ConfigError: as ``build_network``.
    """
    parsed = parse_network(config.network)
    separate = config.separate_value_torso
    if separate is None:
        separate = parsed.torso == "mlp" and parsed.lstm_size is None and critic != "none"
    return build_network(
        config.network,
        spec,
        critic=critic,
        activation=config.activation,
        separate_value_torso=separate,
        normalise_observations=config.normalise_observations,
        initial_log_std=config.initial_log_std,
        outputs=outputs,
    )


def _check(text: NetworkText, spec: EnvSpec, critic: Critic, separate_value_torso: bool, normalise: bool) -> None:
    shape = spec.observation_shape
    if text.is_cnn and not spec.is_image:
        raise ConfigError(
            f"network '{text}' needs (channels, height, width) images, the observations have shape {shape}: "
            "use an mlp, such as mlp:256x2; images are uint8 Box observations, any others are flattened, so that a "
            "wrapper has to give uint8"
        )
    if critic == "action-value" and spec.action.kind != "categorical":
        raise ConfigError(
            f"an action-value critic (Retrace) needs one discrete action, not {spec.action.kind} actions: "
            "use the vtrace corrector"
        )
    if separate_value_torso and critic == "none":
        raise ConfigError("separate_value_torso is for a critic of its own, which this algorithm has not: leave it out")
    if separate_value_torso and text.lstm_size is not None:
        raise ConfigError(
            f"network '{text}': a separate value torso would need a recurrent state that actors do not carry: "
            "leave separate_value_torso off with an LSTM"
        )
    if normalise and spec.observation_dtype == "uint8":
        raise ConfigError(
            "normalise_observations is for float observations, uint8 ones are scaled to [0, 1] always: switch it off"
        )


def _make_torso(text: NetworkText, spec: EnvSpec, activation: Activation) -> tuple[nn.Module, int]:
    """The torso and F, its number of features."""
    shape = spec.observation_shape
    if text.is_factory:
        custom = _make_custom(text.torso, spec)
        return custom, _probe(text.torso, custom, shape)
    torso: Torso
    if text.torso == "mlp":
        torso = MLPTorso(shape, int(text.sizes[0]), int(text.sizes[1]), activation)
    elif text.torso == "nature-cnn":
        torso = NatureCNN(shape, text.sizes[0])
    else:
        torso = ImpalaResNet(shape, text.sizes[0])
    return torso, torso.features


def _make_custom(path: str, spec: EnvSpec) -> nn.Module:
    module_name, _, name = path.partition(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"network '{path}': cannot import '{module_name}' ({error}): put it on PYTHONPATH, or choose of {CHOICES}"
        ) from error
    factory: Callable[[EnvSpec], object] | None = getattr(module, name, None)
    if not callable(factory):
        raise ConfigError(f"network '{path}': module '{module_name}' has no function '{name}'")
    try:
        torso = factory(spec)
    except Exception as error:  # the user's own code, which raises anything
        raise ConfigError(
            f"network '{path}': calling it with the EnvSpec failed with {type(error).__name__}: {error}: give a "
            "function of one argument, the EnvSpec, that returns a torch.nn.Module"
        ) from error
    if not isinstance(torso, nn.Module):
        raise ConfigError(f"network '{path}': the factory returned {type(torso).__name__}, not a torch.nn.Module")
    return torso


def _probe(path: str, torso: nn.Module, shape: tuple[int, ...]) -> int:
    """F, found out by running the torso on two observations of zeros, which also settles lazy layers."""
    observations = torch.zeros(2, *shape)
    try:
        with torch.no_grad():
            output: object = torso(observations)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"network '{path}' fails on observations {tuple(observations.shape)}: {error}") from error
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[0] != 2:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(f"network '{path}' must map {tuple(observations.shape)} to [2, features], it gave {got}")
    return output.shape[1]
