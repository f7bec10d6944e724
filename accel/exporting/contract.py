"""The contract of a bundle: everything that a program needs to know to run the policy, as plain JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from gymnasium import spaces
from onnx import ModelProto

from accel.acting.rules import LOG_STD_BOUNDS, RuleSpec
from accel.compressors.artifact import CompressedPolicy, TensorSpec
from accel.envs.base import VectorEnvironment
from accel.envs.observations import ObservationLayout
from accel.envs.spaces import ACTION_MASK, ActionSpec, EnvSpec
from accel.errors import ExportError
from accel.exporting.formats.base import ExportFormat, Vectors, Written
from accel.exporting.run_policy import FORMAT, FORMAT_VERSION, Contract
from accel.exporting.standard_operators import operators
from accel.imports.greedy import RULE as GREEDY_RULE
from accel.json_object import Json, finite
from accel.runs.trained_policy import TrainedPolicy
from accel.system.extras import installed_version
from accel.system.machine import read_source, read_versions
from accel.version import __version__

FP32_ONNX, VECTORS = "fp32.onnx", "vectors.npz"
# greatest relative difference from the test vectors on another machine or engine: the first for rounding in single
# precision, the second for integer codes, which differ by one where an activation function differs in its last bit
FLOAT_BOUND, INTEGER_BOUND = 1e-4, 2e-2
_METADATA = ("format_version", "scheme", "observation", "action", "recurrent_state", "environment", "source")
_POST_PROCESSING = {
    "categorical": "action = start + index of the greatest logit; or sample from softmax(logits)",
    "multi_categorical": "for each part of the logits: start + index of the greatest; or sample from its softmax",
    "gaussian": "value = mean (the first half of params); or mean + exp(log_std) * standard normal noise",
}


def make_contract(
    run: TrainedPolicy,
    artifact: CompressedPolicy,
    fp32: ModelProto,
    target: ExportFormat,
    written: Written,
    vectors: Vectors,
    greedy: bool,
) -> Contract:
    """The contract without ``files``, which lists what is written after it.

    Args:
        run: the trained policy. artifact: the compressed policy. fp32: the model of full precision.
        target: the format. written: what it wrote.
        vectors: the test vectors.
        greedy: how the policy was played for the report.
    Raises:
        EnvError: the run's environment cannot be made.
    """
    environment = run.make_env(1, 0)
    environment.close()
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "scheme": artifact.scheme,
        "inputs": [_tensor(spec) for spec in artifact.inputs],
        "outputs": [_tensor(spec) for spec in artifact.outputs],
        "observation": _observation(run, environment.layout) | element_labels("observation", environment, run.spec),
        "action": action_json(run.spec.action, environment.action_space, run.rule_spec)
        | element_labels("action", environment, run.spec),
        "recurrent_state": _states(artifact),
        "environment": environment_json(run, environment),
        "model": _model(artifact, target, written),
        "fp32": {"path": FP32_ONNX, "graph_optimisation": "all", "session_options": {}, **_graph(fp32)},
        "target": _target(artifact, target, written),
        "vectors": {
            "path": VECTORS,
            "rows": len(next(iter(vectors.inputs.values()))),
            "bound": vectors.bound,
            "measure": "root mean square difference / root mean square deviation of the expected from their mean row",
        },
        "acted": "greedy" if greedy else "sampled",
        "source": _source(run),
        "versions": {
            "accel": __version__,
            **read_versions(),
            **{name: installed_version(name) for name in ("openvino", "emx-onnx-cgen")},
        },
    }


def with_metadata(model: bytes, contract: Contract) -> bytes:
    """The ONNX model with the meaning of its inputs and outputs in its metadata, as JSON under ``accel.`` names."""
    described = onnx.load_from_string(model)
    del described.metadata_props[:]
    for name in _METADATA:
        described.metadata_props.add(key=f"accel.{name}", value=json.dumps(finite(contract[name]), allow_nan=False))
    return bytes(described.SerializeToString())


def vector_bound(artifact: CompressedPolicy) -> float:
    """Greatest difference from the test vectors allowed on another engine or CPU, as a share of the outputs' spread."""
    names = " ".join(operators(onnx.load_from_string(artifact.model)))
    runs_integers = any(word in names for word in ("Integer", "QGemm", "QLinear", "Quantize"))
    return INTEGER_BOUND if runs_integers else FLOAT_BOUND


def action_json(action: ActionSpec, space: spaces.Space[object], rule: RuleSpec) -> Json:
    """The action space and what turns the policy's outputs into an action of the environment."""
    start: object = 0
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        start = np.asarray(space.start).tolist()
    return {
        **action.to_json(),
        "shape": list(space.shape or ()),
        "start": start,
        "dtype": "float32" if action.kind == "gaussian" else "int64",
        "sampling": _sampling(rule),
        "post_processing": _post_processing(action, rule),
    }


def element_labels(kind: Literal["observation", "action"], environment: VectorEnvironment, spec: EnvSpec) -> Json:
    """Names, units and bounds of the numbers of an observation (no image, no Dict) or of an action.

    An environment states names and units in its ``metadata``, as lists under ``observation_names``,
    ``observation_units``, ``action_names`` and ``action_units``. Without them names are ``observation[0]`` and so on,
    and units are empty. One discrete action has a name for each choice and no unit.

    Raises: ExportError: such a list has another length.
    """
    if kind == "observation":
        count = 0 if spec.is_image or spec.parts else spec.observation_shape[0]
    else:
        count = spec.action.sizes[0] if spec.action.kind == "categorical" else spec.action.action_size
    if count == 0:
        return {}
    plain = {"names": [f"{kind}[{i}]" for i in range(count)], "units": [""] * count}
    found: Json = {}
    for name, default in plain.items():
        stated = environment.metadata.get(f"{kind}_{name}", default)
        if not isinstance(stated, list | tuple) or len(stated) != count:
            stated = f"metadata['{kind}_{name}'] = {stated!r}"
            raise ExportError(f"the environment's {stated} needs to be a list of {count} texts")
        found[name] = [str(text) for text in stated]
    if kind == "observation" and environment.observation_space is not None:
        bounds = spaces.flatten_space(environment.observation_space)
        if isinstance(bounds, spaces.Box):
            found |= {side: finite(getattr(bounds, side).astype(float).tolist()) for side in ("low", "high")}
    return found


def environment_json(run: TrainedPolicy, environment: VectorEnvironment) -> Json:
    """What makes the environment that the policy was trained on; Atari's defaults, ALE's, are among its arguments."""
    options = run.config.environment
    kwargs: Json = dict(options.kwargs)
    if environment.implementation == "atari":
        from accel.envs.atari import DEFAULTS

        kwargs = {**DEFAULTS, **kwargs}
    return {"backend": options.backend, "id": options.env, "kwargs": kwargs, "wrappers": list(options.wrapper)}


def write_json(path: Path, value: Contract) -> None:
    """Write strict, readable JSON."""
    path.write_text(json.dumps(finite(value), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _model(artifact: CompressedPolicy, target: ExportFormat, written: Written) -> Json:
    model = onnx.load_from_string(artifact.model)
    return {
        "path": written.files[0] if target.runs_onnx and target.name != "onnx" else "model.onnx",
        "graph_optimisation": artifact.optimisation,
        "session_options": {"session.disable_quant_qdq": "1"},
        **_graph(model),
        "ir_version": model.ir_version,
        "cpu_features": list(artifact.cpu_features),
        "int8_variant": artifact.variant,
    }


def _graph(model: ModelProto) -> Json:
    return {
        "opset": {opset.domain or "ai.onnx": opset.version for opset in model.opset_import},
        "operators": operators(model),
    }


def _target(artifact: CompressedPolicy, target: ExportFormat, written: Written) -> Json:
    return {
        "format": target.name,
        "files": list(written.files),
        "batch": "any",
        "cpu_features": list(artifact.cpu_features) if target.runs_onnx else [],
        **written.facts,
    }


def _source(run: TrainedPolicy) -> Json:
    return {
        "run": run.path.name,
        "network": run.architecture,
        "env_steps": run.env_steps,
        "policy_version": run.version,
        "seed": run.config.run.seed,
        **read_source(),
    }


_IMAGE = "channels, height, width; stacked frames are channels, the newest last"
_FLAT = "as gymnasium.spaces.flatten gives it: Box values, one-hot indices, parts of Tuple in order"
_MASK = "1 for each allowed action, 0 for the others, whose parameters are -1e9; components one after the other"


def _observation(run: TrainedPolicy, environment: ObservationLayout) -> Json:
    """What goes in; ``parts`` name an input of the model each, with the path of its entry in a Dict observation."""
    spec = run.spec
    if spec.parts:
        return {
            "parts": [
                {
                    "name": part.name,
                    "path": list(path),
                    "shape": list(part.shape),
                    "dtype": part.dtype,
                    "layout": _MASK if part.name == ACTION_MASK else _IMAGE if part.is_image else _FLAT,
                }
                for part, path in zip(spec.parts, environment.paths, strict=True)
            ],
            "normalisation": {"inside_the_graph": True, "method": run.normalisation},
        }
    layout = _IMAGE if spec.is_image else _FLAT
    return {
        "shape": list(spec.observation_shape),
        "dtype": spec.observation_dtype,
        "layout": layout,
        "frame_stack": spec.frame_stack,
        "normalisation": {"inside_the_graph": True, "method": run.normalisation},
    }


def _states(artifact: CompressedPolicy) -> list[Json]:
    following = artifact.outputs[1:]
    pairs = zip(artifact.inputs[len(artifact.inputs) - len(following) :], following, strict=True)
    rule = "zero at the start and in every row that begins an episode; otherwise the previous call's output"
    return [{"input": before.name, "output": after.name, "initial": 0.0, "rule": rule} for before, after in pairs]


def _sampling(rule: RuleSpec) -> Json:
    """How outputs become a distribution of actions, as ``run_policy.py`` does it; a rule of the user's own samples what
    the outputs parametrise."""
    if rule.name == GREEDY_RULE:
        return {"rule": "greedy"}
    if rule.name == "gaussian-noise":
        return {"rule": rule.name, "noise": rule.options["noise"]}
    if rule.name == "epsilon-greedy":
        return {"rule": rule.name, "epsilon": rule.options["final_epsilon"]}
    if rule.name == "squashed-gaussian":
        return {"rule": "distribution", "log_std": list(LOG_STD_BOUNDS)}
    return {"rule": "distribution"}


def _post_processing(action: ActionSpec, rule: RuleSpec) -> str:
    if rule.name == "epsilon-greedy":
        return "action = start + index of the greatest of the first values; or, with probability epsilon, any"
    if rule.name == "gaussian-noise":
        value = "value = tanh(output); or that plus noise * standard normal, clipped to [-1, 1]"
        return f"{value}; action = (low + high) / 2 + value * (high - low) / 2"
    text = _POST_PROCESSING[action.kind]
    if rule.name == GREEDY_RULE:
        text = text.partition("; or ")[0]
    if action.kind != "gaussian":
        return text
    if action.squash:
        return f"{text}; action = (low + high) / 2 + tanh(value) * (high - low) / 2"
    return f"{text}; action = value clipped to [low, high]"


def _tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "dtype": spec.dtype, "shape": ["batch" if size is None else size for size in spec.shape]}
