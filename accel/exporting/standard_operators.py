"""ONNX models in standard operators: artifacts rewritten for other runtimes, which lack onnxruntime's own operators.

Artifacts hold fused operators of onnxruntime's. ``standard_float`` replaces those without quantisation. Integer
products have two equivalent standard forms:

    ``integer_products``      MatMulInteger and a scale, y = s_x s_w (Σ (q_x − z_x) q_w + b), for code in integers
                              and for format ``onnx``, where codes are rounded from the results
    ``dequantised_products``  y = Σ (s_x (q_x − z_x)) (s_w q_w) + s_x s_w b, for compilers that recognise the pattern
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from accel.compressors.artifact import CompressedPolicy
from accel.compressors.graph.wiring import AttributeValue, attributes
from accel.compressors.runtime import session_options
from accel.errors import ExportError
from accel.exporting.run_policy import Array

MICROSOFT = "com.microsoft"
_UNFUSED = {"FusedGemm": "Gemm", "FusedConv": "Conv"}


@dataclass
class FloatDraft:
    """A model while it is rewritten.

    Attributes:
        arrays: initializers by name; rules only add to them. nodes: the new nodes so far.
    """

    arrays: dict[str, Array]
    nodes: list[NodeProto] = field(default_factory=list)

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: AttributeValue) -> str:
        """Append a standard node; returns its output."""
        node = helper.make_node(kind, inputs, [output], name=output)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return output

    def constant(self, name: str, array: Array) -> str:
        """Add an initializer; returns its name."""
        self.arrays[name] = array
        return name

    def scale(self, name: str) -> npt.NDArray[np.float64]:
        """An initializer that holds scales, in double precision."""
        return np.asarray(self.arrays[name], np.float64)


Rule = Callable[[NodeProto, FloatDraft], None]


def standard_float(model: ModelProto) -> ModelProto:
    """Standard operators in place of fused floating-point ones; integer operators stay."""
    return _rewrite(model, {})


def standard_artifact(artifact: CompressedPolicy) -> CompressedPolicy:
    """A policy in standard operators, which onnxruntime fuses when it loads it; as it is where one has no such form."""
    model = onnx.load_from_string(artifact.model)
    made = _rewrite(model, {"QGemm": _standard_gemm, "QLinearAdd": _dequantised_add})
    own = [sum(name.startswith(MICROSOFT) for name in operators(found)) for found in (model, made)]
    if own[1] or not own[0]:
        return artifact
    return replace(artifact, model=made.SerializeToString(), optimisation="all")


def integer_products(model: ModelProto) -> ModelProto:
    """``standard_float``, and matrix products of codes with floating-point results as MatMulInteger."""
    return _rewrite(model, {"QGemm": _integer_product})


def dequantised_products(model: ModelProto) -> ModelProto:
    """``standard_float``, and every integer operator as its floating-point one between dequantising and quantising."""
    return _rewrite(
        model, {"QGemm": _dequantised_gemm, "QLinearConv": _dequantised_conv, "QLinearAdd": _dequantised_add}
    )


def operators(model: ModelProto) -> dict[str, int]:
    """Number of nodes of each operator; onnxruntime's own operators have their domain in front."""
    counts: dict[str, int] = {}
    for node in model.graph.node:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def fixed_batch(model: ModelProto, batch: int) -> ModelProto:
    """The model with a fixed batch: all shapes are static, shape arithmetic is folded.

    The shapes are those that onnxruntime finds when it runs the model on zeros.

    Raises:
        ExportError: onnxruntime cannot run it.
    """
    fixed = ModelProto()
    fixed.CopyFrom(model)
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.WhichOneof("value") == "dim_param":
                dimension.dim_value = batch
    values = _run_all(fixed)
    known = {tensor.name for tensor in fixed.graph.initializer}
    kept = []
    for node in fixed.graph.node:
        folds = node.op_type == "Shape" or all(name in known for name in node.input if name)
        if folds and all(values[name].dtype == np.int64 for name in node.output):
            fixed.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in node.output)
            known.update(node.output)
        else:
            kept.append(node)
    del fixed.graph.node[:]
    fixed.graph.node.extend(kept)
    declared = {value.name for value in fixed.graph.output}
    for node in kept:
        for name in node.output:
            if name and name not in declared:
                element = helper.np_dtype_to_tensor_dtype(values[name].dtype)
                fixed.graph.value_info.append(helper.make_tensor_value_info(name, element, values[name].shape))
    return fixed


def _run_all(model: ModelProto) -> dict[str, Array]:
    """Every intermediate value on inputs of zeros."""
    open_model = ModelProto()
    open_model.CopyFrom(model)
    declared = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name]
    open_model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    inputs = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dimension.dim_value for dimension in tensor.shape.dim]
        inputs[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    try:
        session = ort.InferenceSession(
            open_model.SerializeToString(), session_options("none"), providers=["CPUExecutionProvider"]
        )
        return dict(zip(names, session.run(names, inputs), strict=True))
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise ExportError(f"onnxruntime cannot run the model whose shapes are needed: {error}") from error


def _rewrite(model: ModelProto, rules: Mapping[str, Rule]) -> ModelProto:
    """Unfuse, apply the rule of each node's operator, and drop unused initializers."""
    draft = FloatDraft({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})
    old = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        rule = _unfuse if node.op_type in _UNFUSED else rules.get(node.op_type)
        if rule is None:
            draft.nodes.append(node)
        else:
            rule(node, draft)
    used = {name for node in draft.nodes for name in node.input}
    initializers = [
        old[name] if name in old else numpy_helper.from_array(array, name)
        for name, array in draft.arrays.items()
        if name in used
    ]
    graph = helper.make_graph(draft.nodes, model.graph.name, model.graph.input, model.graph.output, initializers)
    domains = {node.domain for node in draft.nodes} | {""}
    imports = [opset for opset in model.opset_import if opset.domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=model.ir_version, producer_name="accel")


def _unfuse(node: NodeProto, draft: FloatDraft) -> None:
    given = attributes(node)
    activation = str(given.pop("activation"))
    before = draft.add(_UNFUSED[node.op_type], node.input, f"{node.output[0]}:before", **given)
    draft.add(activation, [before], node.output[0])


def _integer_product(node: NodeProto, draft: FloatDraft) -> None:
    """QGemm with a floating-point result; one with integer codes as its result stays."""
    if len(node.input) > 8 and node.input[8]:
        draft.nodes.append(node)
    else:
        _multiply(node, node.output[0], f"{node.output[0]}:matrix", draft)


def _standard_gemm(node: NodeProto, draft: FloatDraft) -> None:
    """QGemm; the two products of a layer of two bytes share their weights."""
    (result,), rounding = node.output, [name for name in node.input[7:9] if name]
    real = f"{result}:unrounded" if rounding else result
    _multiply(node, real, f"{node.input[3]}:{attributes(node).get('transB', 0)}", draft)
    if real != result:
        draft.add("QuantizeLinear", [real, *rounding], result)


def _multiply(node: NodeProto, result: str, matrix_name: str, draft: FloatDraft) -> None:
    """A product with weights without zero points, as all schemes have them."""
    codes, x_scale, x_zero, weight, w_scale, _, *rest = node.input
    matrix = draft.arrays[weight]
    matrix = matrix.T if attributes(node).get("transB", 0) else matrix
    right = draft.constant(matrix_name, np.ascontiguousarray(matrix))
    total = draft.add("MatMulInteger", [codes, right, x_zero], f"{result}:products")
    if rest and rest[0]:
        total = draft.add("Add", [total, rest[0]], f"{result}:sums")
    real = draft.add("Cast", [total], f"{result}:real", to=TensorProto.FLOAT)
    scale = (draft.scale(x_scale) * draft.scale(w_scale)).astype(np.float32)
    # "{result}:scale" may be that of the result's own codes
    draft.add("Mul", [real, draft.constant(f"{result}:factor", scale)], result)


def _dequantised_gemm(node: NodeProto, draft: FloatDraft) -> None:
    codes, x_scale, x_zero, weight, w_scale, w_zero, *rest = node.input
    bias, y_scale, y_zero = (*rest, "", "", "")[:3]
    result, transposed = node.output[0], attributes(node).get("transB", 0)
    x = draft.add("DequantizeLinear", [codes, x_scale, x_zero], f"{result}:x")
    axis = {} if draft.arrays[w_scale].ndim == 0 else {"axis": 0 if transposed else 1}
    w = draft.add("DequantizeLinear", [weight, w_scale, w_zero], f"{result}:w", **axis)
    inputs = [x, w, *_real_bias(bias, x_scale, w_scale, result, draft)]
    real = result if not y_scale else f"{result}:real"
    draft.add("Gemm", inputs, real, transB=transposed)
    if y_scale:
        draft.add("QuantizeLinear", [real, y_scale, y_zero], result)


def _dequantised_conv(node: NodeProto, draft: FloatDraft) -> None:
    codes, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *rest = node.input
    given, result = attributes(node), node.output[0]
    if given.pop("channels_last", 0):
        raise ExportError(f"operator {node.domain}.QLinearConv of layer {node.name!r} has its channels last")
    x = draft.add("DequantizeLinear", [codes, x_scale, x_zero], f"{result}:x")
    axis = {} if draft.arrays[w_scale].ndim == 0 else {"axis": 0}
    w = draft.add("DequantizeLinear", [weight, w_scale, w_zero], f"{result}:w", **axis)
    bias = _real_bias(rest[0] if rest else "", x_scale, w_scale, result, draft)
    real = draft.add("Conv", [x, w, *bias], f"{result}:real", **given)
    draft.add("QuantizeLinear", [real, y_scale, y_zero], result)


def _dequantised_add(node: NodeProto, draft: FloatDraft) -> None:
    result, names = node.output[0], list(node.input)
    a = draft.add("DequantizeLinear", names[0:3], f"{result}:a")
    b = draft.add("DequantizeLinear", names[3:6], f"{result}:b")
    real = draft.add("Add", [a, b], f"{result}:real")
    draft.add("QuantizeLinear", [real, *names[6:8]], result)


def _real_bias(bias: str, x_scale: str, w_scale: str, result: str, draft: FloatDraft) -> list[str]:
    if not bias:
        return []
    real = draft.arrays[bias].astype(np.float64) * draft.scale(x_scale) * draft.scale(w_scale)
    return [draft.constant(f"{result}:bias", real.astype(np.float32))]
