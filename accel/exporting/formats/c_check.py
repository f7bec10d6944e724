"""The check program of a C bundle: C99 that compares ``policy.c`` with test vectors on the target device.

``vectors.h`` has as many of the bundle's test vectors as fit into 64 KiB, at least four, and the spread of all of them,
so that it measures what ``accel verify --run-native-check`` measures. The export and that check compile and run it with
the command in the contract and the model card.
"""

from __future__ import annotations

import textwrap

import numpy as np
import numpy.typing as npt

from accel.compressors.artifact import CompressedPolicy
from accel.exporting.formats.base import Vectors
from accel.exporting.run_policy import Array, spread

CHECK, VECTORS = "check.c", "vectors.h"
# the program lies outside the bundle: a bundle with files that its checksums do not list is refused
BUILD, RUN = "gcc -std=c99 -pedantic-errors -O2 -o ../check check.c policy.c -lm", "../check"
# room for test vectors on a small device; fewer than four rows would test little
_MAX_BYTES, _MIN_ROWS = 64 * 1024, 4
_WIDTH = 110

_CHECK = """\
/* Does policy.c compute what was exported? Runs it on the test vectors of vectors.h.

       {build} && {run}

   Needs the files of this bundle, printf and sqrt. Prints a line for each output; exits with 0 where all of them are
   within the bound, and with 1 where one is not: then this is not the policy that was exported, or the compiler, its
   options or the processor change what it computes. */

#include <math.h>
#include <stdio.h>

#include "policy.h"
#include "vectors.h"

struct difference {{
    double squares; /* sum over values of (found - wanted) squared */
    double greatest;
    long values;
}};

static void compare(const float *found, const float *wanted, long values, struct difference *so_far)
{{
    long i;
    for (i = 0; i < values; i++) {{
        double apart = (double)found[i] - (double)wanted[i];
        if (apart < 0) {{
            apart = -apart;
        }}
        if (!(apart <= so_far->greatest)) {{
            so_far->greatest = apart; /* what is not a number is kept */
        }}
        so_far->squares += apart * apart;
    }}
    so_far->values += values;
}}

static int passes(const char *name, const struct difference *found, double spread)
{{
    double relative = sqrt(found->squares / (double)found->values) / spread;
    int good = relative <= VECTORS_BOUND; /* false for what is not a number */
    printf("%s: greatest difference %.3g, relative difference %.3g of at most %g, %d rows: %s\\n", name,
           found->greatest, relative, VECTORS_BOUND, VECTORS_ROWS, good ? "pass" : "FAIL");
    return good;
}}

int main(void)
{{
{declarations}
    int row, good = 1;
    for (row = 0; row < VECTORS_ROWS; row++) {{
        policy({arguments});
{comparisons}
    }}
{verdicts}
    return good ? 0 : 1;
}}
"""


def chosen_rows(vectors: Vectors) -> npt.NDArray[np.intp]:
    """Which test vectors a device gets: all, or as many as fit, evenly spaced."""
    arrays = (*vectors.inputs.values(), *vectors.outputs.values())
    rows = len(arrays[0])
    row_bytes = sum(array.nbytes for array in arrays) // rows
    count = min(rows, max(_MIN_ROWS, _MAX_BYTES // row_bytes))
    return np.linspace(0, rows - 1, count).round().astype(np.intp)


def vectors_header(vectors: Vectors) -> str:
    """Inputs, expected outputs, and the spread that their differences are measured by, as constants in C."""
    rows, of = chosen_rows(vectors), len(next(iter(vectors.inputs.values())))
    lines = [
        f"/* Test vectors for check.c: {len(rows)} of {of} in vectors.npz, answered by model.onnx on onnxruntime. */",
        "#ifndef VECTORS_H",
        "#define VECTORS_H",
        "#include <stdint.h>",
        "",
        f"#define VECTORS_ROWS {len(rows)}",
        "/* the greatest root mean square difference that passes, as a share of the output's spread, the root mean",
        "   square deviation from its mean row */",
        f"#define VECTORS_BOUND {vectors.bound!r}",
    ]
    for name, array in vectors.inputs.items():
        lines += ["", *_constants(f"vectors_{name}", array[rows])]
    for name, array in vectors.outputs.items():
        lines += ["", f"#define SPREAD_{name} {spread(array)!r}", *_constants(f"vectors_{name}", array[rows])]
    return "\n".join([*lines, "", "#endif", ""])


def check_program(vectors: Vectors, artifact: CompressedPolicy) -> str:
    """The program, for the inputs and outputs of a policy."""
    outputs = {spec.name: spec.with_batch(1) for spec in artifact.outputs}
    declarations = [
        f"    static float {name}{''.join(f'[{size}]' for size in shape)};\n"
        f"    struct difference of_{name} = {{0.0, 0.0, 0}};"
        for name, shape in outputs.items()
    ]
    flat = [(name, "[0]" * (len(shape) - 1), int(np.prod(shape))) for name, shape in outputs.items()]
    return _CHECK.format(
        build=BUILD,
        run=RUN,
        declarations="\n".join(declarations),
        arguments=", ".join([*(f"vectors_{name}[row]" for name in vectors.inputs), *outputs]),
        comparisons="\n".join(
            f"        compare({name}{zeros}, vectors_{name}[row]{zeros}, {size}, &of_{name});"
            for name, zeros, size in flat
        ),
        verdicts="\n".join(f'    good &= passes("{name}", &of_{name}, SPREAD_{name});' for name in outputs),
    )


def _constants(name: str, array: Array) -> list[str]:
    """Rows [N, ...] as an array [N][1][...], so that each row is a batch of one observation."""
    sizes = "".join(f"[{size}]" for size in (len(array), 1, *array.shape[1:]))
    kind = "uint8_t" if array.dtype == np.uint8 else "float"
    lines = [f"static const {kind} {name}{sizes} = {{"]
    for row in array:
        lines += textwrap.wrap(f"{{{_braced(row)}}},", _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [*lines, "};"]


def _braced(array: Array) -> str:
    """An array as an initialiser."""
    parts = map(_number, array) if array.ndim == 1 else map(_braced, array)
    return f"{{{', '.join(parts)}}}"


def _number(value: np.generic) -> str:
    """The shortest text that reads back as the same value."""
    return str(value) if value.dtype == np.uint8 else f"{value!s}f"
