"""Policies in zip files of Stable-Baselines3 and sb3-contrib: PPO, A2C, TRPO, MaskablePPO, RecurrentPPO, DQN, QRDQN,
SAC, TQC, CrossQ, TD3, DDPG and ARS with MlpPolicy, CnnPolicy or MultiInputPolicy.

Weights and layer sizes come from the tensors in ``policy.pth``. From ``data``, JSON with pickles in base64 among its
values, only plain values are read: the policy's class, the spaces, the activation function's name, squashing, the step
count. Nothing is unpickled.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

from accel.envs.spaces import ACTION_MASK
from accel.errors import CheckpointError, ConfigError
from accel.imports.policy_file import PolicyFile, PolicyReader, ReadPolicy
from accel.imports.recurrent import SteppedPolicy, read_cores
from accel.imports.saved_spaces import SavedSpaces
from accel.imports.torch_files import fill, read_tensors
from accel.imports.torch_modules import FactorySpec
from accel.networks.observations import mask_outputs
from accel.system.untrusted import parse_json

_DATA, _WEIGHTS = "data", "policy.pth"
_REMEDY = (
    "build the policy yourself: save policy.state_dict() with safetensors, and give --module package:factory "
    "--weights FILE"
)

ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType(
    {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU, "gelu": nn.GELU, "silu": nn.SiLU}
)
_OTHER_ACTIVATIONS = (
    *(nn.Softplus, nn.Softsign, nn.Mish, nn.SELU, nn.CELU, nn.Sigmoid, nn.LogSigmoid, nn.Hardswish, nn.Hardtanh),
    *(nn.ReLU6, nn.Identity),
)


@dataclass(frozen=True)
class _Family:
    """Algorithms whose policies have the same parts.

    Attributes:
        name: of its algorithms. homes: the modules of its policies' classes.
        head: of the last layer the name, or the prefix, which ends in a dot. body: prefixes of the layers before it.
        by_layers: whether its layers tell it from the others, in a file that does not name the policy's class.
    """

    name: str
    homes: tuple[str, ...]
    head: str
    body: tuple[str, ...]
    by_layers: bool = True

    @property
    def acts(self) -> str:
        """The part of the policy that acts, with a dot; "" where it is the whole."""
        return self.head[: self.head.find(".") + 1] if "." in self.head[:-1] else ""

    @property
    def features(self) -> tuple[str, ...]:
        """Possible prefixes of the features, in order of preference."""
        return (f"{self.acts}features_extractor",) if self.acts else ("pi_features_extractor", "features_extractor")

    @property
    def squashes(self) -> bool:
        """Whether actions are tanh(output), rescaled to their bounds."""
        return self.acts == "actor."

    @property
    def samples(self) -> bool:
        """Whether the outputs are those of a distribution."""
        return self.head == "action_net"


_COMMON = ("stable_baselines3.common.policies",)
_MASKABLE = ("sb3_contrib.common.maskable.policies",)
_RECURRENT = ("sb3_contrib.common.recurrent.policies",)
_SAC = ("stable_baselines3.sac.policies", "sb3_contrib.tqc.policies")
_SHARED = ("mlp_extractor.shared_net", "mlp_extractor.policy_net")
_FAMILIES = (
    _Family("PPO or A2C", _COMMON, "action_net", _SHARED),
    _Family("MaskablePPO", _MASKABLE, "action_net", _SHARED, by_layers=False),
    _Family("RecurrentPPO", _RECURRENT, "action_net", _SHARED[1:], by_layers=False),
    _Family("CrossQ", ("sb3_contrib.crossq.policies",), "actor.mu", ("actor.latent_pi",), by_layers=False),
    _Family("SAC or TQC", _SAC, "actor.mu", ("actor.latent_pi",)),
    _Family("SAC or TQC with gSDE", _SAC, "actor.mu.0", ("actor.latent_pi",), by_layers=False),
    _Family("TD3 or DDPG", ("stable_baselines3.td3.policies",), "actor.mu.", ("actor.mu",)),
    _Family("DQN", ("stable_baselines3.dqn.policies",), "q_net.q_net.", ("q_net.q_net",)),
    _Family("QRDQN", ("sb3_contrib.qrdqn.policies",), "quantile_net.quantile_net.", ("quantile_net.quantile_net",)),
    _Family("ARS", ("sb3_contrib.ars.policies",), "action_net.", ("action_net",)),
)
# of PPO's and A2C's critics; and what does not decide the greedy action
_VALUE_PARTS = ("value_net", "vf_features_extractor", "mlp_extractor.value_net", "lstm_critic", "critic.")
_OTHER_PARTS = ("log_std", "actor.log_std")
_MEMORY = "lstm_actor."
_EXTRACTORS = "'stable_baselines3.common.torch_layers."
# of CrossQ's batch renormalisation
_NORM_EPSILON = 0.001


def _owns(file: PolicyFile) -> bool:
    return {_DATA, _WEIGHTS} <= {*file.members}


def _read_file(file: PolicyFile) -> ReadPolicy:
    members = file.unpack(lambda name: name.rpartition("/")[2] in (_DATA, _WEIGHTS))
    content = {name.rpartition("/")[2]: member for name, member in members.items()}
    weights = read_tensors(content[_WEIGHTS], f"{_WEIGHTS} in {file.path}")
    try:
        data = parse_json(content[_DATA])
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        raise CheckpointError(f"{file.path}: its {_DATA} is not what Stable-Baselines3 writes: {error}") from error
    return _read(weights, data, file.path, file.activation)


def _read(weights: dict[str, Tensor], data: Mapping[str, object], path: Path, activation: str | None) -> ReadPolicy:
    named = data.get("policy_class")
    family = _family(weights, str(named.get("__module__", "")) if isinstance(named, dict) else "", path)
    kind = ACTIVATIONS[activation] if activation else _activation(data, path, nn.Tanh if family.samples else nn.ReLU)
    steps, options = data.get("num_timesteps"), data.get("policy_kwargs")
    options = options if isinstance(options, dict) else {}
    extractor = str(options.get("features_extractor_class", _EXTRACTORS))
    if _EXTRACTORS not in extractor:
        raise ConfigError(f"{path}: its features extractor is a class of its own ({extractor[:80]}): {_REMEDY}")
    spaces = SavedSpaces.read(data)
    squashes = family.squashes or options.get("squash_output") is True
    if family.name == "ARS" and spaces.action == "Box":  # by default its linear policy does not end in tanh
        squashes = options.get("squash_output", "ARSLinearPolicy" not in str(named)) is True
    scales_images = options.get("normalize_images") is not False
    if family.name == "CrossQ":
        weights = _without_norms(weights, family.body[0], family.head)
    parts = OrderedDict[str, nn.Module]()
    texts = ["nature-cnn"] if any(name.startswith(family.features) and ".cnn." in name for name in weights) else []
    for prefix in family.body:
        layers, sizes = dense_layers(weights, prefix, kind, path, ends_linear=family.head.endswith("."))
        parts[prefix.rpartition(".")[2]] = layers
        texts += sizes
    if not family.head.endswith("."):
        parts[family.head.rpartition(".")[2]] = _linear(weights, family.head, path)
    if family.head == "actor.mu.0":
        limit = _positive(options, "clip_mean", 2.0, path)
        parts["clip"] = nn.Hardtanh(-limit, limit)
    if family.name == "QRDQN":
        quantiles = int(_positive(options, "n_quantiles", 200, path))
        layers[-1] = _mean_over_quantiles(cast(nn.Linear, layers[-1]), quantiles, path)
    log_std = weights.get("log_std")
    architecture = f"{family.name}: {'-'.join(texts) or 'linear'} {kind.__name__}"
    cores = read_cores(weights, _MEMORY, str(path)) if family.name == "RecurrentPPO" else []
    if family.name == "RecurrentPPO" and not cores:
        raise CheckpointError(f"{path}: its policy is recurrent, and layer '{_MEMORY}weight_ih_l0' is missing")
    masked = family.name == "MaskablePPO"

    def make(spec: FactorySpec) -> nn.Module:
        if masked and not spec.action.masked:
            raise ConfigError(
                f"{path}: its policy needs masks of allowed actions, and the environment gives none: give one with "
                "action_masks(), info['action_mask'] or an entry action_mask"
            )
        if spec.action.masked and not masked:
            raise ConfigError(
                f"{path}: its policy takes no masks of allowed actions, and the environment gives them: add --wrapper "
                "accel.envs.masks:without_masks"
            )
        features = _features(weights, family, spec, path)
        if cores:
            return SteppedPolicy(_Joined(features), cores, nn.Sequential(parts))
        if masked or len(features) > 1:
            names = [part.name for part in spec.inputs]
            mask = names.index(ACTION_MASK) if masked else None
            return _PartsPolicy(_Joined(features), nn.Sequential(parts), mask)
        return nn.Sequential(OrderedDict[str, nn.Module](features=features[0], **parts))

    # Of these the attribute is set by VecNormalize alone; others keep it always.
    tells = family.samples or family.name == "ARS"
    normalised = data.get("_last_original_obs") is not None if tells else None
    return ReadPolicy(
        architecture,
        make=make,
        log_std=log_std,
        squashes=squashes,
        samples=family.samples,
        scales_images=scales_images,
        images_alone=True,
        takes_parts=masked or bool(spaces.entries) or any(".extractors." in name for name in weights),
        env_steps=steps if isinstance(steps, int) else 0,
        spaces=spaces,
        normalised=normalised,
    )


def _without_norms(weights: Mapping[str, Tensor], body: str, head: str) -> dict[str, Tensor]:
    """CrossQ's layers, each with the normalisation before it inside: W (s (x − m) / √(v + ε) + t) + b.

    Raises: CheckpointError: a layer is damaged.
    """
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{body}.")}
    found = sorted({int(match[1]) for name in weights if (match := re.match(rf"{re.escape(body)}\.(\d+)\.", name))})
    gain, shift, count = torch.ones(()).double(), torch.zeros(()).double(), 0
    try:
        for place in [*(f"{body}.{index}" for index in found), head]:
            if f"{place}.scale" in weights:
                scale, bias, mean, variance = (
                    weights[f"{place}.{part}"].double() for part in ("scale", "bias", "ra_mean", "ra_var")
                )
                gain = scale / torch.sqrt(variance + _NORM_EPSILON)
                shift = bias - mean * gain
                continue
            weight, bias = (weights[f"{place}.{part}"].double() for part in ("weight", "bias"))
            name = head if place == head else f"{body}.{2 * count}"
            kept[f"{name}.weight"] = (weight * gain).float()
            kept[f"{name}.bias"] = (bias + (weight * shift).sum(dim=1)).float()
            gain, shift, count = torch.ones(()).double(), torch.zeros(()).double(), count + 1
    except (KeyError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"layer {place!r} is damaged or incomplete: {error}") from error
    return kept


def _mean_over_quantiles(layer: nn.Linear, quantiles: int, path: Path) -> nn.Linear:
    """QRDQN's last layer, to [q·n] quantiles of n actions, as a layer to n means, which are linear too."""
    actions, rest = divmod(layer.out_features, quantiles)
    if rest:
        raise CheckpointError(
            f"{path}: its last layer has {layer.out_features} outputs, no multiple of {quantiles} quantiles"
        )
    means = nn.Linear(layer.in_features, actions)
    rows = {name: tensor.unflatten(0, (quantiles, actions)) for name, tensor in layer.state_dict().items()}
    means.load_state_dict({name: tensor.double().mean(0) for name, tensor in rows.items()})
    return means


def _positive(options: Mapping[str, object], name: str, default: float, path: Path) -> float:
    value = options.get(name, default)
    if not isinstance(value, int | float) or not 1e-6 <= value <= 1e6:
        raise CheckpointError(f"{path}: {name} is {str(value)[:40]!r}, not a positive number")
    return value


def _family(weights: Mapping[str, Tensor], home: str, path: Path) -> _Family:
    """The family of a policy, whose class's module is ``home``, or "" where the file does not name it.

    Raises: ConfigError: another class or other layers: custom, masked, recurrent, Dict.
    """
    families = [family for family in _FAMILIES if (home in family.homes if home else family.by_layers)]
    if not families:
        raise ConfigError(
            f"{path}: its policy is a class of its own ({home}), and layers alone do not tell how it acts: {_REMEDY}"
        )
    family = next((f for f in families if any(_is_of(name, f.head) for name in weights)), None)
    if family is None:
        raise ConfigError(
            f"{path}: no policy of {', '.join(f.name for f in families)}, it holds {', '.join(list(weights)[:4])}: "
            f"{_REMEDY}"
        )
    memory = (_MEMORY,) if family.name == "RecurrentPPO" else ()
    known = (*family.features, *family.body, family.head.rstrip("."), *memory, *_OTHER_PARTS)
    for name in weights:
        acts = name.startswith(family.acts) if family.acts else not name.startswith(_VALUE_PARTS)
        if acts and not name.startswith(known):
            raise ConfigError(f"{path}: layer {name!r} is none of a standard {family.name} policy: {_REMEDY}")
    return family


def _is_of(name: str, head: str) -> bool:
    return name.startswith(head) if head.endswith(".") else name == f"{head}.weight"


def _activation(data: Mapping[str, object], path: Path, default: type[nn.Module]) -> type[nn.Module]:
    """``policy_kwargs``' activation function."""
    options = data.get("policy_kwargs")
    if not isinstance(options, dict) or "activation_fn" not in options:
        return default
    text = str(options["activation_fn"])[-64:]
    found = re.search(r"torch\.nn\.[\w.]*?(\w+)'?>?$", text)
    by_class = {kind.__name__: kind for kind in (*ACTIVATIONS.values(), *_OTHER_ACTIVATIONS)}
    if found is None or found[1] not in by_class:
        raise ConfigError(
            f"{path}: activation function {text!r} is unknown: give --activation, one of {', '.join(ACTIVATIONS)}, if "
            f"that is what it is with its usual arguments; else {_REMEDY}"
        )
    return by_class[found[1]]


class _Joined(nn.Module):
    """An observation's parts, each through its features, one after the other."""

    def __init__(self, features: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features = nn.ModuleList(features)

    def forward(self, *parts: Tensor) -> Tensor:
        """Each [B, *shape] to [B, F]."""
        found = [features(part) for features, part in zip(self.features, parts, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


class _PartsPolicy(nn.Module):
    """An observation's parts, of which one may be a mask of actions, to outputs."""

    def __init__(self, before: _Joined, after: nn.Module, mask: int | None) -> None:
        super().__init__()
        self.before, self.after, self.mask = before, after, mask

    def forward(self, *parts: Tensor) -> Tensor:
        """Each [B, *shape] to [B, P]."""
        outputs: Tensor = self.after(self.before(*(part for i, part in enumerate(parts) if i != self.mask)))
        return outputs if self.mask is None else mask_outputs(outputs, parts[self.mask])


def _features(weights: Mapping[str, Tensor], family: _Family, spec: FactorySpec, path: Path) -> list[nn.Module]:
    """Of each part of an observation: flattening, or the convolutions of NatureCNN where there are any."""
    prefix = next((p for p in family.features if any(name.startswith(f"{p}.") for name in weights)), family.features[0])
    parts = [part for part in spec.inputs if part.name != ACTION_MASK]
    if parts[0].name == "observations":
        found = any(name.startswith(f"{prefix}.") for name in weights)
        return [_nature_cnn(weights, prefix, path) if found else nn.Flatten()]
    inside = [name.removeprefix(f"{prefix}.extractors.") for name in weights if name.startswith(f"{prefix}.")]
    extractors = {name.partition(".")[0] for name in inside}
    if wrong := extractors ^ {part.name for part in parts if part.is_image}:
        raise ConfigError(
            f"{path}: its policy has convolutions for the entries {sorted(extractors)}, and {min(wrong)!r} of the "
            f"environment is {'no' if min(wrong) in extractors else 'an'} image: give the environment of its training"
        )
    return [
        _nature_cnn(weights, f"{prefix}.extractors.{part.name}", path) if part.is_image else nn.Flatten()
        for part in parts
    ]


def _nature_cnn(weights: Mapping[str, Tensor], prefix: str, path: Path) -> nn.Module:
    names = {name.removeprefix(f"{prefix}.") for name in weights if name.startswith(f"{prefix}.")}
    layers = [f"cnn.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")]
    wanted = {*layers, "linear.0.weight", "linear.0.bias"}
    if names != wanted:
        odd = sorted(names ^ wanted)[0]
        raise ConfigError(f"{path}: layer '{prefix}.{odd}' is not that of NatureCNN: {_REMEDY}")
    modules: list[nn.Module] = []
    for index, (size, stride) in zip((0, 2, 4), ((8, 4), (4, 2), (3, 1)), strict=True):
        weight = weights[f"{prefix}.cnn.{index}.weight"]
        if weight.dim() != 4 or tuple(weight.shape[2:]) != (size, size) or 0 in weight.shape:
            raise ConfigError(f"{path}: layer '{prefix}.cnn.{index}' is not that of NatureCNN: {_REMEDY}")
        convolution = nn.Conv2d(weight.shape[1], weight.shape[0], size, stride)
        fill(convolution, weights, f"weights {path}", f"{prefix}.cnn.{index}.")
        modules += [convolution, nn.ReLU()]
    modules += [nn.Flatten(), _linear(weights, f"{prefix}.linear.0", path), nn.ReLU()]
    return nn.Sequential(*modules)


def dense_layers(
    weights: Mapping[str, Tensor], prefix: str, activation: type[nn.Module], path: Path, *, ends_linear: bool
) -> tuple[nn.Sequential, list[str]]:
    """Linear layers with an activation after each, or after each but the last; and their widths.

    Raises: ConfigError, CheckpointError: the layers ``prefix`` are no such ones, or damaged; names one.
    """
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.weight")
    found = sorted(int(match[1]) for match in map(pattern.fullmatch, weights) if match)
    if found != list(range(0, 2 * len(found), 2)) or (ends_linear and not found):
        raise ConfigError(f"{path}: the layers {prefix!r} are not linear ones with activations between: {_REMEDY}")
    modules: list[nn.Module] = []
    for index in found:
        modules += [_linear(weights, f"{prefix}.{index}", path), activation()]
    widths = [str(weights[f"{prefix}.{i}.weight"].shape[0]) for i in found]
    if ends_linear:
        modules.pop()
        widths.pop()
    return nn.Sequential(*modules), widths


def _linear(weights: Mapping[str, Tensor], name: str, path: Path) -> nn.Linear:
    weight = weights.get(f"{name}.weight", torch.empty(0))
    if weight.dim() != 2 or 0 in weight.shape:
        raise ConfigError(f"{path}: layer {name!r} is no linear one: {_REMEDY}")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in weights)
    fill(linear, weights, f"weights {path}", f"{name}.")
    return linear


STABLE_BASELINES3 = PolicyReader("zip file of Stable-Baselines3", _owns, _read_file, takes_activation=True)
"""What ``model.save(path)`` wrote."""
