"""Policies as ONNX models: their operators are run with torch and recorded, then held against onnxruntime."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper, shape_inference
from torch import Tensor, nn

from accel.compressors.runtime import session_options
from accel.errors import CheckpointError, ConfigError
from accel.imports.onnx_operators import Call, apply
from accel.imports.policy_file import LIMIT_BYTES, Array, PolicyFile, PolicyReader, ReadPolicy
from accel.imports.torch_modules import FactorySpec
from accel.imports.traced_program import State, TracedProgram, in_order

logger = logging.getLogger("accel")

# in one value of a graph, beside what the file has: that of a policy on some rows has far fewer
_MOST_NUMBERS = 2**26
_DIRECTION = re.compile(r"(?:^|_)(?:ins?|inputs?|outs?|outputs?|next|new|prev|n|0)(?=_|$)|(?<=^[hc])[0n]$")


def _owns(file: PolicyFile) -> bool:
    if file.content[:1] != b"\x08":  # the first field is the version of the format
        return False
    try:
        return bool(onnx.load_from_string(file.content).graph.node)
    except Exception:  # noqa: BLE001 - protobuf's errors are of its implementation
        return False


def _read(file: PolicyFile) -> ReadPolicy:
    model = onnx.load_from_string(file.content)
    try:
        _check_external_data(model, file.path.parent)
        onnx.load_external_data_for_model(model, str(file.path.parent))
        session = ort.InferenceSession(
            model.SerializeToString(), session_options(), ["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as error:  # onnx's and onnxruntime's errors share no base
        reason = str(error).strip().partition("\n")[0]
        if "NOT_IMPLEMENTED" in reason:
            reason += "; export it in single precision, in operators of ONNX alone"
        raise CheckpointError(f"ONNX model {file.path} cannot be loaded: {reason}") from error
    policy = _OnnxPolicy(model, session, file.path)
    widths = [str(layer) for layer in policy.graph.layer_sizes]
    return ReadPolicy(f"ONNX: {'-'.join(widths) or 'no dense layers'}", policy.make, policy.answer, takes_parts=True)


ONNX = PolicyReader("ONNX model", _owns, _read)
"""An ONNX model with one input of floats, or several named as the parts of a Dict observation, and any state."""
_CRITIC = frozenset(("value", "values", "state_value", "state_values", "vf", "critic"))
"""Names of outputs that are no policy's: Q-values, which are one, have others."""


class _OnnxPolicy:
    def __init__(self, model: ModelProto, session: ort.InferenceSession, path: Path) -> None:
        self._session, self._path = session, path
        self.graph = OnnxGraph(model)
        self._inputs = {value.name: value for value in model.graph.input if value.name not in self.graph.constants}
        outputs = [value.name for value in model.graph.output]
        self._states = list(_states(self._inputs, model.graph.output))
        taken = {state.source for state in self._states}
        self._observed = [name for name in self._inputs if name not in taken]
        known = {state.target for state in self._states} | self.graph.constants.keys()
        others = [name for name in outputs if name not in known]
        floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
        kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
        # actions that are chosen by others, and values of a critic, come behind
        others.sort(key=lambda name: (kinds[name] not in floats, name.lower() in _CRITIC))
        if not others or not self._observed:
            raise ConfigError(f"{path} maps {', '.join(self._inputs)} to {', '.join(outputs)}: no policy")
        if others[1:]:
            logger.warning("%s: its output %s is taken, and %s not", path, others[0], ", ".join(others[1:]))
        self._states = [state for state in self._states if not self.graph.only_forwards(state.source, state.target)]
        self._wanted = [others[0], *(state.target for state in self._states)]
        self._read = self.graph.read_for(self._wanted)
        for state in self._states:
            state.check(path)
        for name in (name for name in self._observed if name in self._read):
            sizes = _sizes(self._inputs[name])
            if len(sizes) < 2 or sizes[0] > 1:
                raise ConfigError(
                    f"{path} takes {name!r} of {list(sizes)}, where [1, ...] is one observation: export it for one, or "
                    "with a free batch dimension"
                )

    def make(self, spec: FactorySpec) -> nn.Module:
        parts = {part.name for part in spec.inputs}
        if unread := [name for name in self._observed if name not in self._read | parts]:
            logger.warning("%s: its output does not depend on %s, which get zeros", self._path, ", ".join(unread))
        self._observed = in_order([name for name in self._observed if name not in unread], spec, self._path)
        for name, part in zip(self._observed, spec.inputs, strict=True):
            sizes = _sizes(self._inputs[name])[1:]
            shapes = [part.shape, (*part.shape[1:], part.shape[0])] if part.is_image else [part.shape]
            fits = any(
                len(sizes) == len(shape) and all(a in (0, b) for a, b in zip(sizes, shape, strict=True))
                for shape in shapes
            )
            if not fits and (len(part.shape) > 1 or math.prod(sizes) != part.shape[0]):
                raise ConfigError(
                    f"{self._path} takes {name!r} of {list(sizes)}, and observations have {list(part.shape)}: give "
                    "the environment of its training, with its --env-arg and --wrapper"
                )
        examples = [torch.zeros(1, *part.shape) for part in spec.inputs]
        examples += [torch.zeros(1, *state.row) for state in self._states]
        return TracedProgram(self._run, examples, len(self._states), self.graph.tensors)

    def _run(self, *rows: Tensor) -> list[Tensor]:
        output, *following = self.graph(self._feeds(rows), self._wanted)
        return [output, *(state.to_rows(value) for state, value in zip(self._states, following, strict=True))]

    def _feeds(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Observations and states by the names of the model's inputs, as it takes them."""
        observed, held = rows[: len(self._observed)], rows[len(self._observed) :]
        feeds = {name: self._laid_out(name, value) for name, value in zip(self._observed, observed, strict=True)}
        return feeds | {state.source: state.of_rows(value) for state, value in zip(self._states, held, strict=True)}

    def _laid_out(self, name: str, rows: Tensor) -> Tensor:
        """Observations as the model takes them: here arrays that are no images are flat, images have channels first."""
        sizes = _sizes(self._inputs[name])[1:]
        if 0 in sizes or sizes == rows.shape[1:]:
            return rows
        return rows.reshape(len(rows), *sizes) if rows.dim() == 2 else rows.movedim(1, -1)

    def answer(self, row: Sequence[Array]) -> list[Array]:
        given, feeds = self._feeds([torch.from_numpy(value) for value in row]), {}
        for name, value in self._inputs.items():
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            zeros = np.zeros([size or 1 for size in _sizes(value)], kind)
            feeds[name] = given[name].numpy().astype(kind) if name in given else zeros
        output, *following = self._session.run(self._wanted, feeds)
        return [output, *(s.to_rows(torch.from_numpy(v)).numpy() for s, v in zip(self._states, following, strict=True))]


def _constant(tensor: TensorProto) -> Array:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:  # of one that no node reads, and so onnxruntime has not read
        raise CheckpointError(f"the ONNX model's constant {tensor.name!r} cannot be read: {error}") from error


class OnnxGraph:
    """The nodes of a model as a function of torch tensors; shapes and constants are computed beside them.

    Attributes:
        constants: known values by name. tensors: those of floats, in torch, by name.
    """

    def __init__(self, model: ModelProto) -> None:
        self._opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.constants: dict[str, Array] = {t.name: _constant(t) for t in model.graph.initializer}
        self._nodes: list[NodeProto] = []
        self.layer_sizes: list[int] = []
        for node in model.graph.node:
            if all(name in self.constants for name in node.input if name):
                self.constants |= self._evaluated(node, self.constants)
            else:
                self._nodes.append(node)
        self.tensors = {
            name: torch.from_numpy(np.array(array, np.float32))
            for name, array in self.constants.items()
            if array.dtype.kind == "f"
        }
        for node in self._nodes:
            weight = self.tensors.get(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
            if weight is not None and weight.dim() == 2:
                is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
                self.layer_sizes.append(weight.shape[0 if is_transposed else 1])

    def only_forwards(self, source: str, target: str) -> bool:
        """Whether an input's one use is to become an output as it is."""
        uses = [node for node in self._nodes if source in node.input]
        return all(node.op_type == "Identity" and list(node.output) == [target] for node in uses)

    def read_for(self, wanted: Sequence[str]) -> set[str]:
        """Names of what the nodes that make some values read, the values themselves among them."""
        return {*wanted, *(name for node in self._needed(wanted) for name in node.input)}

    def __call__(self, feeds: Mapping[str, Tensor], wanted: Sequence[str]) -> list[Tensor]:
        """The wanted values. Raises ConfigError for an operator that is not known."""
        values: dict[str, Tensor] = dict(feeds)
        constants = dict(self.constants)
        for node in self._needed(wanted):
            names = list(node.input)
            if node.op_type == "Shape" and names[0] in values:
                constants[node.output[0]] = np.asarray(values[names[0]].shape, np.int64)
                continue
            if all(name in constants for name in names if name):
                constants |= self._evaluated(node, constants)
                continue
            tensors = [
                values[name] if name in values else self._tensor(name, constants) if name else None for name in names
            ]
            self._check_size(node, {n: t for n, t in zip(names, tensors, strict=True) if t is not None}, constants)
            call = Call(node, tensors, [constants.get(name) for name in names], self._opset)
            found = apply(call) if node.domain in ("", "ai.onnx") else None
            if found is None:
                raise ConfigError(
                    f"the graph has the operator {node.op_type} ({node.name!r}), which is not known here: "
                    "export logits or means alone, in floats, without sampling, branches or fused operators"
                )
            values |= zip(node.output, [found] if isinstance(found, Tensor) else found, strict=False)
        return [values[name] for name in wanted]

    def _needed(self, wanted: Sequence[str]) -> list[NodeProto]:
        needed, kept = set(wanted), []
        for node in reversed(self._nodes):
            if needed & set(node.output):
                kept.append(node)
                needed |= set(node.input)
        return kept[::-1]

    def _tensor(self, name: str, constants: Mapping[str, Array]) -> Tensor:
        return self.tensors[name] if name in self.tensors else torch.from_numpy(np.array(constants[name]))

    def _check_size(
        self, node: NodeProto, inputs: Mapping[str, Array | Tensor], constants: Mapping[str, Array]
    ) -> None:
        """Raises ConfigError, before a node runs, where it makes far more numbers than a policy has."""
        types = {name: helper.make_tensor_type_proto(_kind(value), value.shape) for name, value in inputs.items()}
        sizes = {
            name: numpy_helper.from_array(value.astype(np.float32) if value.dtype.kind == "f" else value)
            for name, value in constants.items()
            if name in inputs and value.size < 99
        }
        types |= {name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for name, tensor in sizes.items()}
        try:
            schema = defs.get_schema(node.op_type, self._opset, node.domain)
            found = shape_inference.infer_node_outputs(schema, node, types, sizes).values()
        except (defs.SchemaError, shape_inference.InferenceError):
            return  # neither will it run
        for value in found:
            if math.prod(dim.dim_value for dim in value.tensor_type.shape.dim) > _MOST_NUMBERS:
                raise ConfigError(f"operator {node.op_type} {node.name!r} makes far more numbers than a policy has")

    def _evaluated(self, node: NodeProto, constants: Mapping[str, Array]) -> dict[str, Array]:
        from onnx.reference import ReferenceEvaluator

        if any(attribute.HasField("g") for attribute in node.attribute):
            raise ConfigError(f"the graph has control flow ({node.op_type} {node.name!r}): export it without branches")
        self._check_size(node, {name: constants[name] for name in node.input if name}, constants)
        graph = helper.make_graph(
            [node],
            "constant",
            [helper.make_empty_tensor_value_info(name) for name in {*node.input} - {""}],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        try:
            found = ReferenceEvaluator(model).run(None, {name: constants[name] for name in node.input if name})
        except Exception as error:  # its operators' errors share no base
            raise ConfigError(f"operator {node.op_type!r} {node.name!r} cannot be evaluated: {error}") from error
        return dict(zip(node.output, (np.asarray(value) for value in found), strict=True))


def _kind(value: Array | Tensor) -> int:
    """What a value counts as: floats are of single precision."""
    kind = (value.numpy(force=True) if isinstance(value, Tensor) else value).dtype.kind
    return {"b": onnx.TensorProto.BOOL, "f": onnx.TensorProto.FLOAT}.get(kind, onnx.TensorProto.INT64)


def _check_external_data(model: ModelProto, directory: Path) -> None:
    """Raises ValueError: weights in other files have more bytes than any that is read."""
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and (directory / entry.value).stat().st_size > LIMIT_BYTES:
                raise ValueError(f"its weights in {entry.value} have more than {LIMIT_BYTES:,} bytes")


def _states(inputs: Mapping[str, ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> Iterator[State]:
    """Inputs and outputs of one shape whose names differ by what says that one goes in and the other comes out."""
    by_stem = {_stem(value.name): value for value in outputs}
    for name, value in inputs.items():
        found = by_stem.get(_stem(name))
        if found is not None and len(inputs) > 1 and len(_sizes(found)) == len(_sizes(value)):
            yield State(name, found.name, _sizes(value))


def _stem(name: str) -> str:
    return _DIRECTION.sub("", name.lower()).strip("_")


def _sizes(value: ValueInfoProto) -> tuple[int, ...]:
    """Sizes of an input or output; 0 where they are free."""
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
