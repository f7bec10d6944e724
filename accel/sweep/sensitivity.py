"""Why a sweep's front is what it is: every layer compressed alone under every option, and what that costs and saves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from accel.json_object import Json
from accel.sweep.choices import LayerChoice, SchemeSpace
from accel.sweep.measure import Workbench
from compressors.errors import SchemeError, UnsupportedLayerError

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class SensitivityRow:
    """One layer compressed alone, the others in single precision.

    Attributes:
        layer: its name. shape: of its weight as a matrix, such as ``256x17``.
        choice: what was done to it, such as ``int8`` or ``prune 0.5``.
        scheme: the text that does it.
        kl: mean KL(fp32 || compressed), nats. agreement: share of equal greedy actions, None for Box actions.
        latency_us, fp32_latency_us: measured in turns.
        bytes: size of the artifact. refusal: why the scheme cannot be built, None where it can; figures are then None.
    """

    layer: str
    shape: str
    choice: str
    scheme: str
    kl: float | None = None
    agreement: float | None = None
    latency_us: float | None = None
    fp32_latency_us: float | None = None
    bytes: int | None = None
    refusal: str | None = None


def measure_sensitivity(space: SchemeSpace, bench: Workbench) -> list[SensitivityRow]:
    """A row for every layer and option; takes a fraction of a second each."""
    rows: list[SensitivityRow] = []
    for layer, choice in space.alone():
        scheme = space.scheme({layer.name: choice})
        shape, text = f"{layer.outputs}x{layer.inputs}", _text(choice)
        try:
            found = bench.screen(bench.compress(scheme))
        except (SchemeError, UnsupportedLayerError) as error:
            rows.append(SensitivityRow(layer.name, shape, text, scheme, refusal=str(error)))
            continue
        rows.append(
            SensitivityRow(
                layer.name,
                shape,
                text,
                scheme,
                found["kl"],
                found.get("agreement"),
                found["policy_us"],
                found["fp32_us"],
                int(found["bytes"]),
            )
        )
    return rows


def sensitivity_json(rows: Sequence[SensitivityRow], fp32_bytes: int) -> Json:
    """Every row, plain."""
    return {"fp32_bytes": fp32_bytes, "rows": [asdict(row) for row in rows]}


def sensitivity_markdown(rows: Sequence[SensitivityRow], fp32_bytes: int, title: str) -> str:
    """A table, layer by layer."""
    lines = [
        f"# Sensitivity of {title}",
        "",
        "Each layer compressed alone, the others in fp32: mean KL(fp32 || compressed) over real observations, latency "
        "relative to fp32 measured in turns on this machine, and bytes saved. A layer whose KL is high is one to "
        "spare; one that saves neither time nor bytes is not worth touching.",
        "",
        "| layer | weight | option | KL [nats] | same action | latency / fp32 | bytes / fp32 |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    previous = ""
    for row in rows:
        layer, shape = (row.layer, row.shape) if row.layer != previous else ("", "")
        previous = row.layer
        if row.kl is None or row.latency_us is None or row.fp32_latency_us is None or row.bytes is None:
            lines.append(f"| {layer} | {shape} | {row.choice} | refused: {row.refusal} | | | |")
            continue
        agreement = "" if row.agreement is None else f"{row.agreement:.1%}"
        speed, size = row.latency_us / row.fp32_latency_us, row.bytes / fp32_bytes
        lines.append(f"| {layer} | {shape} | {row.choice} | {row.kl:.2g} | {agreement} | {speed:.2f} | {size:.2f} |")
    return "\n".join([*lines, ""])


def _text(choice: LayerChoice) -> str:
    if choice.pruned:
        return f"prune {choice.pruned:g}"
    return f"rank {choice.rank:g}" if choice.rank < 1.0 else choice.bits
