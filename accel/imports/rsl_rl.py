"""Checkpoints of rsl_rl, as Isaac Lab, legged_gym and mjlab write them, of its versions 1 to 5.

    x̂ = (x − mean) / (std + 0.01), then LSTM or GRU where there is one, then layers with ELU between

Source: rsl_rl's ``EmpiricalNormalization``, whose eps = 0.01 and whose activation, ELU by default, no file tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from accel.errors import CheckpointError, ConfigError
from accel.imports.normaliser import GREATEST, FixedNormaliser
from accel.imports.policy_file import PolicyFile, PolicyReader, ReadPolicy
from accel.imports.recurrent import SteppedPolicy, read_cores
from accel.imports.stable_baselines3 import ACTIVATIONS, dense_layers

_EPSILON = 0.01
_KEYS = ("student_state_dict", "actor_state_dict", "model_state_dict")
_HEADS = ("mlp", "student", "actor")
_NORMALISERS = ("obs_normalizer.", "actor_obs_normalizer.", "student_obs_normalizer.", "obs_norm_state_dict.")
_MEMORIES = ("memory_a.rnn.", "memory_s.rnn.", "rnn.rnn.")
_DEVIATIONS = ("std", "log_std", "distribution.")
_OTHERS = ("critic", "teacher", "memory_c.", "memory_t.")


def _owns(file: PolicyFile) -> bool:
    return any(key in file.checkpoint for key in _KEYS)


def _read(file: PolicyFile) -> ReadPolicy:
    saved, path = file.checkpoint, file.path
    weights = file.tensors(next(key for key in _KEYS if key in saved))
    weights |= {f"obs_norm_state_dict.{name}": t for name, t in file.tensors("obs_norm_state_dict").items()}
    head = next((head for head in _HEADS if f"{head}.0.weight" in weights), "actor")
    memory = next((prefix for prefix in _MEMORIES if f"{prefix}weight_ih_l0" in weights), _MEMORIES[0])
    normaliser = next((prefix for prefix in _NORMALISERS if f"{prefix}_mean" in weights), None)
    known = (f"{head}.", memory, *_DEVIATIONS, *_OTHERS, *_NORMALISERS)
    if odd := [name for name in weights if not name.startswith(known)]:
        raise ConfigError(
            f"{path}: {odd[0]!r} is none of a plain policy of rsl_rl: export it with the library's exporter, and "
            "give its policy.pt or policy.onnx"
        )
    if not any(name.startswith(_DEVIATIONS) for name in weights):
        raise ConfigError(
            f"{path}: no deviations beside the layers: their outputs may be means, means and deviations or "
            "parameters of a Beta distribution, and the file does not tell which: export it with the library's "
            "exporter, and give its policy.pt or policy.onnx"
        )
    activation = ACTIVATIONS[file.activation or "elu"]
    layers, sizes = dense_layers(weights, head, activation, path, ends_linear=True)
    cores = read_cores(weights, memory, str(path))
    before = nn.Identity() if normaliser is None else _normaliser(weights, normaliser, path)
    module = SteppedPolicy(before, cores, layers) if cores else nn.Sequential(before, layers)
    steps = saved.get("iter")
    texts = [*(type(core).__name__.removesuffix("Core").lower() for core in cores), *sizes]
    return ReadPolicy(
        f"rsl_rl: {'-'.join(texts)} {activation.__name__}" + (f", iteration {steps}" if steps else ""),
        make=lambda _spec: module,
        log_std=_log_std(weights),
    )


def _normaliser(weights: Mapping[str, Tensor], prefix: str, path: Path) -> FixedNormaliser:
    """As one of variances, which clips nothing."""
    mean, deviation = weights[f"{prefix}_mean"], weights.get(f"{prefix}_std")
    if deviation is None or deviation.shape != mean.shape or not (deviation > -_EPSILON).all():
        raise CheckpointError(f"{path}: the normaliser {prefix!r} lacks its deviations: give what rsl_rl wrote")
    variance = (deviation.double().reshape(-1) + _EPSILON).square()
    return FixedNormaliser(mean.reshape(-1), variance, clip=GREATEST, epsilon=0.0)


def _log_std(weights: Mapping[str, Tensor]) -> Tensor | None:
    for name, tensor in weights.items():
        if re.fullmatch(r"(distribution\.)?log_std(_param)?", name):
            return tensor
        if re.fullmatch(r"(distribution\.)?std(_param)?", name) and (tensor > 0).all():
            return tensor.log()
    return None


RSL_RL = PolicyReader("checkpoint of rsl_rl", _owns, _read, takes_activation=True)
"""``model_N.pt`` of rsl_rl."""
