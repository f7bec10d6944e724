"""Training that starts from a policy, a run's or one that others trained: its layers become the network's.

Layers are matched in the order in which the two networks run them, and the result is compared with the policy on
random observations: what computes something else between its layers is refused. From a run of the same algorithm
everything else that fits is taken too: critics, targets, the statistics of rewards. A policy of others has a critic of
its own in the run, as the rewards that its critic learned from were scaled in another way.

    python -P -m accel.launch.initial_policy < CONFIG    # writes the options that the policy brings; see starting.py
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, cast, get_args

import torch
from torch import Tensor, nn

from accel.config import TrainConfig
from accel.config.parts import Activation
from accel.display.errors import report_errors
from accel.envs.spaces import ACTION_MASK, EnvSpec
from accel.errors import CheckpointError, ConfigError
from accel.imports.normaliser import FixedNormaliser
from accel.imports.policy import ImportedPolicy, import_policy
from accel.networks.factory import build_network
from accel.networks.heads import GaussianHead
from accel.networks.normaliser import CLIP, ObservationNormaliser
from accel.networks.policy import PolicyModule, PolicyNetwork
from accel.networks.text import NetworkText
from accel.runs.directory import RunDirectory
from accel.runs.loading import TrainedRun, load_run
from accel.system.module_path import add_working_directory

if TYPE_CHECKING:
    from accel.learning.learner import Learner

Source = TrainedRun | ImportedPolicy
_LAYERS = (nn.Linear, nn.Conv2d, nn.LSTM)
_ROWS, _TOLERANCE = 64, 1e-4
# observations behind the statistics of a file that does not tell, so that new ones change them slowly
_OBSERVATIONS = 100_000

logger = logging.getLogger("accel")


def read_initial_policy(config: TrainConfig) -> Source:
    """The policy of ``init_from``, in the run's environment. Raises what ``load_run`` and ``import_policy`` raise."""
    options = config.policy
    if options.init_from is None:
        raise ConfigError("init_from is not given")
    if options.init_from.is_dir():
        if options.init_module or options.init_normaliser:
            raise ConfigError("a run brings its own network and normaliser: leave init_module and init_normaliser out")
        return load_run(options.init_from)
    environment = config.environment.model_dump(exclude={"task", "squash_actions"})
    played = TrainConfig.create(**environment)
    return import_policy(options.init_from, played, module=options.init_module, normaliser=options.init_normaliser)


def options_of(source: Source) -> dict[str, object]:
    """The options that a run needs to start from a policy: its network, and of a run its environment and algorithm.

    Raises:
        ConfigError: no network of ours has such layers.
    """
    if isinstance(source, TrainedRun):
        config = source.config
        kept = config.policy.model_dump(exclude={"init_from", "init_module", "init_normaliser"})
        return {**config.environment.model_dump(mode="json"), **kept, "algorithm": config.algorithm.algorithm}
    text = _text_of(source)
    normalises = _normaliser_of(source) is not None
    for activation in cast("tuple[Activation, ...]", get_args(Activation)):
        network = build_network(
            text, source.spec, critic="none", activation=activation, normalise_observations=normalises, seed=0
        )
        _fill(network, source)
        if _difference(network, source) <= _TOLERANCE:
            break
    else:
        raise ConfigError(f"{source.path}: {source.architecture} is no network {text!r} with any activation of ours")
    return {
        "network": text,
        "activation": activation,
        "normalise_observations": normalises,
        "squash_actions": source.config.environment.squash_actions,
    }


def start_from(source: Source, learner: Learner) -> None:
    """Make a learner's networks those of a policy.

    Raises:
        ConfigError: the networks differ; says which options fit.
    """
    network, algorithm = learner.algorithm.network, learner.algorithm
    if isinstance(source, TrainedRun) and type(source.algorithm) is type(algorithm):
        wanted = algorithm.networks.state_dict()
        theirs = source.algorithm.networks.state_dict().items()
        fitting = {name: value for name, value in theirs if name in wanted and wanted[name].shape == value.shape}
        algorithm.networks.load_state_dict(fitting, strict=False)
        if source.config.rewards == learner.config.rewards:
            counters = RunDirectory.open(source.path, read_only=True).load_checkpoint(source.which).counters
            learner.rewards.restore({**counters["rewards"], "returns": {}})  # type: ignore[dict-item]
    _fill(network, source)
    if not (difference := _difference(network, source)) <= _TOLERANCE:
        options = ", ".join(f"{name} = {value!r}" for name, value in options_of(source).items())
        raise ConfigError(
            f"init_from = {source.path}: its outputs differ from those of network "
            f"{learner.config.policy.network!r} with the same layers, by {difference:.2g} of their size: give {options}"
        )
    for other in algorithm.networks.modules():
        if isinstance(other, PolicyNetwork) and other is not network:
            other.load_state_dict(network.state_dict())
    logger.info("the policy begins as that of %s: %s", source.path, source.architecture)


@torch.no_grad()
def _fill(network: PolicyNetwork, source: Source) -> None:
    """Copy a policy's layers, normaliser and deviations. Raises ConfigError for layers of other kinds or shapes."""
    spec = network.spec
    if _sizes(spec) != _sizes(source.spec):
        raise ConfigError(
            f"init_from = {source.path} is a policy for other observations or actions: {_sizes(source.spec)}, and the "
            f"environment has {_sizes(spec)}"
        )
    theirs, outputs = _run(source.policy, source)
    ours, _ = _run(network.acting_module(), source)
    shapes = [[tuple(p.shape) for p in layer.parameters()] for layers in (theirs, ours) for layer in layers[:-1]]
    if not theirs or len(theirs) != len(ours) or shapes[: len(theirs) - 1] != shapes[len(theirs) - 1 :]:
        raise ConfigError(
            f"init_from = {source.path} has the layers {_shown(theirs)}, and the network {_shown(ours)}: leave "
            "--network out, so that it is the policy's"
        )
    for layer, given in zip(ours[:-1], theirs[:-1], strict=True):
        layer.load_state_dict(given.state_dict())
    actions = spec.action.sizes[0] if spec.action.kind == "gaussian" else sum(spec.action.sizes)
    log_std = outputs[:, actions:].mean(0) if outputs.shape[1] == 2 * actions else None
    _fill_head(ours[-1], theirs[-1], log_std, source)
    if isinstance(network.policy_head, GaussianHead) and log_std is not None:
        network.policy_head.log_std.copy_(log_std)
    _fill_normaliser(network, source)


def _fill_head(ours: nn.Module, theirs: nn.Module, log_std: Tensor | None, source: Source) -> None:
    """The last layer; ours may have outputs beside the actions': a value of the state, or deviations for each."""
    if not isinstance(ours, nn.Linear) or not isinstance(theirs, nn.Linear) or ours.in_features != theirs.in_features:
        raise ConfigError(f"init_from = {source.path} ends in {theirs}, and the network in {ours}")
    count, more = theirs.out_features, ours.out_features - theirs.out_features
    weight: Tensor = theirs.weight
    bias: Tensor = theirs.state_dict().get("bias", torch.zeros(count))
    if more == 1 and source.spec.action.kind == "categorical":  # the mean of Q-values is the state's value: duelling
        weight, bias = torch.cat((weight, weight.mean(0, keepdim=True))), torch.cat((bias, bias.mean(0, keepdim=True)))
    elif more == count and log_std is not None:
        weight, bias = torch.cat((weight, torch.zeros_like(weight))), torch.cat((bias, log_std))
    elif more:
        raise ConfigError(
            f"init_from = {source.path} gives {count} outputs, and the algorithm takes {ours.out_features}: choose an "
            "algorithm for such policies, as --algorithm ppo is for logits and means, and dqn for Q-values"
        )
    ours.weight.copy_(weight)
    ours.bias.copy_(bias)


def _normaliser_of(source: Source) -> tuple[Tensor, Tensor] | nn.Module | None:
    """(mean, 1/deviation) of a file, or a run's own module; None where observations are not normalised."""
    if isinstance(source, TrainedRun):
        return source.algorithm.network.normaliser
    fixed = next((part for part in source.policy.modules() if isinstance(part, FixedNormaliser)), None)
    if fixed is not None and fixed is source.policy.normaliser and fixed.clip != CLIP:
        raise ConfigError(
            f"{source.path} clips normalised observations at {fixed.clip:g}, and training does at {CLIP:g}: write "
            f"the statistics with clip = {CLIP:g}, where that makes no difference"
        )
    return None if fixed is None else (fixed.mean, fixed.rstd)


def _fill_normaliser(network: PolicyNetwork, source: Source) -> None:
    theirs, ours = _normaliser_of(source), network.normaliser
    if (theirs is None) != (ours is None):
        raise ConfigError(
            f"init_from = {source.path} was trained {'without' if theirs is None else 'with'} a normaliser of "
            f"observations: set normalise_observations = {theirs is not None}"
        )
    if isinstance(theirs, nn.Module) and ours is not None:
        ours.load_state_dict(theirs.state_dict())
    elif isinstance(theirs, tuple) and isinstance(ours, ObservationNormaliser):
        mean, rstd = (part.reshape(ours.mean.shape).double() for part in theirs)
        ours.count.fill_(max(source.env_steps, _OBSERVATIONS))
        ours.running_mean.copy_(mean)
        ours.running_m2.copy_(rstd.pow(-2) * ours.count.cpu())
        ours.mean.copy_(mean)
        ours.rstd.copy_(rstd)


def _text_of(source: Source) -> str:
    """The text of the network that has a policy's layers. Raises ConfigError."""
    layers, _ = _run(source.policy, source)
    kinds = [type(layer) for layer in layers]
    if kinds and set(kinds) == {nn.Linear}:
        if widths := tuple(float(cast(nn.Linear, layer).out_features) for layer in layers[:-1]):
            return str(NetworkText("mlp", widths))
    elif kinds == [nn.Conv2d] * 3 + [nn.Linear] * 2:
        return "nature-cnn"
    raise ConfigError(
        f"init_from = {source.path} has the layers {_shown(layers)}: training starts from dense layers with one "
        "activation between them, from Stable-Baselines3's NatureCNN, and from runs"
    )


def _sizes(spec: EnvSpec) -> tuple[object, ...]:
    parts = [(part.name, part.shape, part.dtype) for part in spec.inputs]
    return (parts, spec.action.kind, spec.action.sizes)


def _shown(layers: list[nn.Module]) -> str:
    return ", ".join(f"{type(layer).__name__} {tuple(next(layer.parameters()).shape)}" for layer in layers) or "none"


@torch.no_grad()
def _run(module: PolicyModule, source: Source) -> tuple[list[nn.Module], Tensor]:
    """The layers of a module in the order in which they run, and its outputs on random observations."""
    layers: list[nn.Module] = []
    hooks = [
        layer.register_forward_hook(lambda layer, *_: layers.append(layer))
        for layer in module.modules()
        if isinstance(layer, _LAYERS)
    ]
    try:
        return layers, module(*_rows(module, source))[0].cpu()
    finally:
        for hook in hooks:
            hook.remove()


def _rows(module: PolicyModule, source: Source) -> list[Tensor]:
    """Random inputs of a policy, always the same: observations spread as its normaliser expects them."""
    generator = torch.Generator().manual_seed(0)
    device = next(module.parameters()).device
    normaliser, rows = _normaliser_of(source), []
    for part in source.spec.inputs:
        if part.dtype == "uint8":
            most = 2 if part.name == ACTION_MASK else 256
            rows.append(torch.randint(0, most, (_ROWS, *part.shape), generator=generator, dtype=torch.uint8))
            continue
        numbers = torch.randn((_ROWS, *part.shape), generator=generator)
        rows.append(normaliser[0] + numbers / normaliser[1] if isinstance(normaliser, tuple) else numbers)
    rows += [torch.randn((_ROWS, *shape), generator=generator).tanh() for shape in module.state_shapes]
    return [row.to(device) for row in rows]


@torch.no_grad()
def _difference(network: PolicyNetwork, source: Source) -> float:
    """The greatest difference of the outputs that choose actions, as a share of their size."""
    spec = network.spec
    count = spec.action.sizes[0] if spec.action.kind == "gaussian" else sum(spec.action.sizes)
    theirs = _run(source.policy, source)[1][:, :count]
    ours = _run(network.acting_module(), source)[1][:, :count]
    difference = float((ours - theirs).abs().max()) / (1.0 + float(theirs.abs().max()))
    if difference != difference:
        raise CheckpointError(f"{source.path} gives numbers that are not finite")
    return difference


def main() -> int:
    """Write ``options_of`` the policy of a configuration."""
    add_working_directory()

    def work() -> int:
        config = TrainConfig.from_json(json.load(sys.stdin))
        sys.stdout.write(f"\n{json.dumps(options_of(read_initial_policy(config)))}\n")
        return 0

    return report_errors(work, "accel train")


if __name__ == "__main__":
    sys.exit(main())
