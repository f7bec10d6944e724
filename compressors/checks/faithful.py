"""Check that a full-precision artifact computes what its module computes, on real rows.

The exporter follows one example. A branch on a value, a row that depends on its neighbours or a call that keeps state
is invisible there. So the module answers each row in a batch, alone and in another order, and the artifact must give
the same outputs each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from accel.compressors.arrays import Array
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.checks.verify import check_outputs, module_outputs, run_artifact
from accel.compressors.errors import VerificationError

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-4
"""Greatest difference of an output, relative to one plus its greatest value over all rows."""
ALONE_ROWS = 64
_ORDER_SEED = 0

Tensors = Mapping[str, "torch.Tensor"]


def check_faithful(artifact: CompressedPolicy, module: torch.nn.Module, inputs: Mapping[str, Array]) -> None:
    """Compare an artifact in full precision with its module.

    Args:
        artifact: ``fp32``, of this module and these weights.
        module: on the CPU, in evaluation mode.
        inputs: real inputs by name, [N, *shape], N ≥ 2; the first ``ALONE_ROWS`` are answered alone too.
    Raises:
        VerificationError: an output differs, or the module answers a row differently alone, in a batch or in another
            order; names the row, the output and, where it can be found, the layer.
    """
    import torch

    found = run_artifact(artifact, inputs)
    rows = {spec.name: torch.from_numpy(np.ascontiguousarray(inputs[spec.name])) for spec in artifact.inputs}
    count = len(inputs[artifact.inputs[0].name])
    order = np.random.default_rng(_ORDER_SEED).permutation(count)
    together = module_outputs(module, rows.values())
    alone = [module_outputs(module, _select(rows, slice(i, i + 1))) for i in range(min(count, ALONE_ROWS))]
    shuffled = module_outputs(module, _select(rows, torch.from_numpy(order)))
    check_outputs(artifact, found, together)
    for k, spec in enumerate(artifact.outputs):
        limit = TOLERANCE * (1.0 + float(np.abs(together[k]).max()))
        ways = {
            "beside the others": together[k],
            "alone": np.concatenate([answer[k] for answer in alone]),
            "in another order": shuffled[k][np.argsort(order)],
        }
        for way, wanted in ways.items():
            difference = np.abs(found[k][: len(wanted)] - wanted).reshape(len(wanted), -1).max(axis=1)
            if not (difference <= limit).all():
                row = int(np.flatnonzero(~(difference <= limit))[0])
                raise VerificationError(
                    f"the exported graph is not the policy: row {row} of {count} observations, answered {way}, differs "
                    f"by {difference[row]:.3g} in output {spec.name!r}, where {limit:.3g} is rounding; "
                    f"{_explain(module, rows, row)}; compute each row from its own inputs, parameters and buffers, by "
                    "torch operations without branches on values"
                )


def check_source(artifact: CompressedPolicy, inputs: Mapping[str, Array], wanted: Sequence[Array]) -> None:
    """Compare an artifact in full precision with the answers of the program that its module was made from.

    Args:
        artifact: ``fp32``.
        inputs: real inputs by name, [N, *shape].
        wanted: the program's answers [N, ...] for each output; of the first, the leading numbers.
    Raises:
        VerificationError: an output differs; names the row and the output.
    """
    for spec, found, answers in zip(artifact.outputs, run_artifact(artifact, inputs), wanted, strict=True):
        rounding = 2.0**-7 if answers.dtype == np.float16 else TOLERANCE
        limit = rounding * (1.0 + float(np.abs(answers).max()))
        shown = found[:, : answers.shape[1]]
        alike = shown.shape == answers.shape
        agrees = np.isclose(shown, answers if alike else np.nan, rtol=0, atol=limit).reshape(len(found), -1).all(axis=1)
        if not agrees.all():
            row = int(np.argmin(agrees))
            raise VerificationError(
                f"the exported graph is not the file's program: row {row} of {len(found)} observations gives "
                f"{found[row]} in output {spec.name!r}, and {answers[row]} there; export the program in single "
                "precision, for any number of rows, without branches on values"
            )


def _select(rows: Tensors, which: slice | torch.Tensor) -> list[torch.Tensor]:
    return [values[which] for values in rows.values()]


def _explain(module: torch.nn.Module, rows: Tensors, row: int) -> str:
    """Which layer makes the difference: one that acts on this row only, or that sees the other rows."""
    with _layer_outputs(module) as usual:
        module_outputs(module, (values[:1] * 0 for values in rows.values()))
    with _layer_outputs(module) as single:
        module_outputs(module, _select(rows, slice(row, row + 1)))
    with _layer_outputs(module) as together:
        module_outputs(module, rows.values())
    for other in (single, together):
        if branched := sorted(usual.keys() ^ other.keys()):
            return f"layer {branched[0]!r} acts on some observations and not on others"
    for name, alone in single.items():
        among = together[name]
        if among.shape[1:] != alone.shape[1:] or len(among) != len(next(iter(rows.values()))):
            continue
        if np.abs(among[row] - alone[0]).max(initial=0.0) > TOLERANCE * (1.0 + np.abs(among).max(initial=0.0)):
            return f"layer {name!r} answers this row differently alone and among others"
    return "no single layer shows it, so it is in the code between them"


@contextmanager
def _layer_outputs(module: torch.nn.Module) -> Iterator[dict[str, Array]]:
    """Meanwhile filled with the last output of each layer without children that is called, by name."""
    import torch

    outputs: dict[str, Array] = {}

    def keep(name: str) -> object:
        def hook(_layer: torch.nn.Module, _inputs: object, output: object) -> None:
            outputs[name] = output.numpy() if isinstance(output, torch.Tensor) else np.zeros((0,))

        return hook

    leaves = [(name, layer) for name, layer in module.named_modules() if name and not list(layer.children())]
    hooks = [layer.register_forward_hook(keep(name)) for name, layer in leaves]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
