"""Integer products in generated C, arranged for small processors: weights by output, packed where they have few bits.

The generator's MatMulInteger reads a weight [inputs, outputs] down its columns, and its QGemm adds up in 64 bits and
rescales in doubles. Here the sums have 32 bits, codes are s_x s_w / s_y times them in single precision, as in
onnxruntime's kernel, zero points are taken off once, and a weight is stored by output:

    greatest code     stored as                                         a code costs, on a Cortex-M
    1, 3, 7           32-bit words of 16, 10 or 8 codes of 2 to 4 bits  one load, sign extension, multiply-add each
    more              bytes                                             two loads, a multiply-add, the loop

The text is that of emx-onnx-cgen: a weight's declaration and definition, and the function of its product; a product of
another form stays as the generator wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, numpy_helper

from accel.compressors.graph.wiring import attributes
from accel.errors import ExportError

_WORD_BITS = 32
_MOST_PACKED_BITS = 4
_VALUES_A_LINE = 8
_SUMS = re.compile(
    r"^EMX_NODE_FN void (?P<name>\w+)\(const (?P<kind>u?int8_t) (?P<x>input0)\[1\]\[(?P<inputs>\d+)\], "
    r"const int8_t (?P<weight>input1)\[\d+\]\[(?P<outputs>\d+)\], "
    r"const (?P=kind) (?P<zero>input0_zero_point)\[1\], int32_t output\[1\]\[(?P=outputs)\]\) \{$"
)
_CODES = re.compile(
    r"^EMX_NODE_FN void (?P<name>\w+)\(const (?P<kind>u?int8_t) (?P<x>input_a)\[1\]\[(?P<inputs>\d+)\], "
    r"const float a_scale\[1\], const (?P=kind) (?P<zero>a_zero_point)\[1\], "
    r"const int8_t (?P<weight>input_b)\[(?P<outputs>\d+)\]\[(?P=inputs)\], const float b_scale\[(?P<scales>\d+)\], "
    r"const int8_t b_zero_point\[\d+\], const int32_t input_c\[(?P=outputs)\], const float y_scale\[1\], "
    r"const (?P=kind) y_zero_point\[1\], (?P=kind) output\[1\]\[(?P=outputs)\]\) \{$"
)
_FORMS = {"MatMulInteger": (_SUMS, 1), "QGemm": (_CODES, 3)}
"""The function of an operator, and which of its arguments is the weight."""
_BODY = """\
{head}
    int16_t codes[{padded}] = {{0}};{unused}
    for (idx_t k = 0; k < {inputs}; ++k) {{
        codes[k] = (int16_t)((int32_t){x}[0][k] - (int32_t){zero}[0]);
    }}
    for (idx_t n = 0; n < {outputs}; ++n) {{
        const int16_t *code = codes;
        int32_t acc = {start};
        for (idx_t k = 0; k < {columns}; ++k) {{
{step}
        }}
{end}
    }}
}}"""
_BYTE_STEP = "            acc += code[k] * (int32_t){weight}[n][k];"
_END_SUMS = "        output[0][n] = acc;"
_END_CODES = """\
        float value = nearbyintf((float)acc * (a_scale[0] * b_scale[{channel}] / y_scale[0])) + (float)y_zero_point[0];
        value = value < {least} ? {least} : value > {greatest} ? {greatest} : value;
        output[0][n] = ({kind})value;"""
_RANGES = {"uint8_t": ("0.0f", "255.0f"), "int8_t": ("-128.0f", "127.0f")}


@dataclass(frozen=True)
class PackedMatrix:
    """The codes of a weight [inputs, outputs] in words.

    Attributes:
        bits: of a code. words: [outputs, ⌈inputs / codes of a word⌉]; the first code is in the lowest bits.
    """

    bits: int
    words: npt.NDArray[np.uint32]

    @property
    def codes_a_word(self) -> int:
        """How many codes a word has; 3 bits leave two over."""
        return _WORD_BITS // self.bits


def pack(codes: npt.NDArray[np.int8]) -> PackedMatrix | None:
    """Pack a weight [inputs, outputs] in the fewest bits that hold its codes; None where that takes more than four."""
    greatest = int(np.abs(codes.astype(np.int32)).max(initial=0))
    bits = max(greatest.bit_length() + 1, 2)
    if bits > _MOST_PACKED_BITS:
        return None
    per_word = _WORD_BITS // bits
    inputs, outputs = codes.shape
    padded = np.zeros((outputs, -(-inputs // per_word), per_word), np.uint32)
    padded.reshape(outputs, -1)[:, :inputs] = codes.T.astype(np.int64) & (2**bits - 1)
    shifts = (bits * np.arange(per_word)).astype(np.uint32)
    return PackedMatrix(bits, np.bitwise_or.reduce(padded << shifts, axis=2))


def arrange_products(source: str, model: ModelProto) -> tuple[str, dict[str, int]]:
    """Arrange the weights of a model's integer products in its generated source.

    Returns:
        The source, and the bits of each weight that was packed, by its name in the source.
    Raises:
        ExportError: the source is not as this generator writes it.
    """
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in _FORMS]
    written = re.findall(r"^ \* OpType: (?:MatMulInteger|QGemm)$.*?^(EMX_NODE_FN void .*? \{)$", source, re.M | re.S)
    packed: dict[str, int] = {}
    for node, line in zip(products, written, strict=True):
        form, place = _FORMS[node.op_type]
        found, codes = form.match(line), arrays.get(node.input[3 if node.op_type == "QGemm" else 1])
        if node.op_type == "QGemm" and codes is not None:
            codes = codes.T if attributes(node).get("transB", 0) else None
        call = found and re.search(rf"^    {found['name']}\((.*)\);$", source, re.MULTILINE)
        if not found or not call or codes is None:
            continue
        weight, matrix = call.group(1).split(", ")[place], pack(codes)
        source = _replace_weight(source, weight, codes, matrix)
        source = _once(rf"^EMX_NODE_FN void {found['name']}\(.*?^}}$", _function(line, found, matrix), source)
        if matrix is not None:
            packed[weight] = matrix.bits
    return source, packed


def _replace_weight(source: str, weight: str, codes: npt.NDArray[np.int8], matrix: PackedMatrix | None) -> str:
    rows: npt.NDArray[np.generic] = codes.T if matrix is None else matrix.words
    kind = f"{'int8_t' if matrix is None else 'uint32_t'} {weight}[{rows.shape[0]}][{rows.shape[1]}]"
    source = _once(rf"^extern const int8_t {weight}\[.*?;$", f"extern const {kind};", source)
    lines = []
    for row in rows.tolist():
        texts = [str(value) if matrix is None else f"0x{value:08x}u" for value in row]
        parts = [", ".join(texts[i : i + _VALUES_A_LINE]) for i in range(0, len(texts), _VALUES_A_LINE)]
        lines.append("    {" + ",\n     ".join(parts) + "}")
    how = "" if matrix is None else f"{matrix.bits}-bit codes, {matrix.codes_a_word} a word, "
    body = ",\n".join(lines)
    text = f"/* {how}a row for each output */\nconst EMX_UNUSED {kind} = {{\n{body}\n}};"
    return _once(rf"^const EMX_UNUSED int8_t {weight}\[.*?^}};$", text, source)


def _function(line: str, form: re.Match[str], matrix: PackedMatrix | None) -> str:
    """The function of a product, whose first line is given, for its weight in words or bytes."""
    given = form.groupdict()
    stored, columns = "int8_t", int(given["inputs"])
    padded, step = columns, _BYTE_STEP.format(**given)
    if matrix is not None:
        stored, columns, per_word = "uint32_t", matrix.words.shape[1], matrix.codes_a_word
        padded, right = columns * per_word, _WORD_BITS - matrix.bits
        lines = [f"const uint32_t word = {given['weight']}[n][k];"]
        lines += [
            f"acc += code[{i}] * ((int32_t)(word << {right - i * matrix.bits}) >> {right});" for i in range(per_word)
        ]
        step = "\n".join(f"            {text}" for text in [*lines, f"code += {per_word};"])
    weight = rf"const int8_t {given['weight']}\[\d+\]\[\d+\]"
    head = re.sub(weight, f"const {stored} {given['weight']}[{given['outputs']}][{columns}]", line)
    start, end, unused = "0", _END_SUMS, ""
    if "scales" in given:
        least, greatest = _RANGES[given["kind"]]
        channel = "0" if given["scales"] == "1" else "n"
        unused = "\n    (void)b_zero_point; /* weights are symmetric */"
        start, end = "input_c[n]", _END_CODES.format(channel=channel, least=least, greatest=greatest, **given)
    return _BODY.format(
        head=head, columns=columns, padded=padded, step=step, start=start, end=end, unused=unused, **given
    )


def with_qualified_calls(source: str) -> str:
    """Casts where a matrix goes to a parameter of constants, which C99 does not convert by itself."""
    kinds: dict[str, list[str]] = {}
    for name, text in re.findall(r"^EMX_NODE_FN void (\w+)\((.*)\) \{$", source, re.MULTILINE):
        found = [re.fullmatch(r"(const \w+) \w+\[[^]]*\]((?:\[\d+\])+)", part) for part in text.split(", ")]
        kinds[name] = ["" if match is None else f"({match[1]} (*){match[2]})" for match in found]

    def call(match: re.Match[str]) -> str:
        casts, values = kinds.get(match[2], []), match[3].split(", ")
        if len(casts) != len(values):
            return match[0]
        return f"{match[1]}{match[2]}({', '.join(map(''.join, zip(casts, values, strict=True)))});"

    return re.sub(r"^( +)(\w+)\(([\w, ]*)\);$", call, source, flags=re.MULTILINE)


def _once(pattern: str, text: str, source: str) -> str:
    """Replace what a pattern matches, which is there once. Raises ExportError."""
    changed, count = re.subn(pattern, lambda _: text, source, flags=re.MULTILINE | re.DOTALL)
    if count != 1:
        raise ExportError(
            f"the generated C has {count} places like {pattern}: another version of emx-onnx-cgen made it"
        )
    return changed
