"""The model card of a bundle, in Markdown, from its contract and report alone; the text is in ``templates``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader

Facts = Mapping[str, Any]

_FILES = MappingProxyType(
    {
        "model.onnx": "the compressed policy, for onnxruntime",
        "model.ort": "the compressed policy, in onnxruntime's own format",
        "model.xml": "the compressed policy, for OpenVINO",
        "model.bin": "its weights",
        "policy.c": "the compressed policy in C99",
        "policy.h": "its prototype",
        "check.c": "a program that holds `policy.c` to the test vectors, on the device",
        "vectors.h": "test vectors for it",
    }
)
_OTHER_FILES = MappingProxyType(
    {
        "contract.json": "inputs, outputs, actions, environment, versions, for other programs",
        "fp32.onnx": "the policy in full precision, in standard operators",
        "vectors.npz": "test vectors: `input/NAME`; answers `output/NAME`, and `torch/NAME` before compression",
        "run_policy.py": "runs and checks the policy in Python",
        "example.py": "a short example loop in Python",
        "report.json": "every measurement of this page, with all returns",
        "SHA256SUMS": "checksums, for `sha256sum --check SHA256SUMS`",
    }
)
# oldest release that reads a version of ONNX's format
_LEAST_RUNTIME = MappingProxyType({8: "1.16", 10: "1.18"})
_ENGINES = MappingProxyType(
    {
        "onnx": "onnxruntime",
        "ort": "onnxruntime",
        "openvino": "OpenVINO",
        "c": "the compiled C",
        "onnxruntime": "onnxruntime, as its target is too slow here; parity compares the two",
    }
)


def model_card(contract: Facts, report: Facts) -> str:
    """The policy, how it was made, its measured quality, how to run it, and its limits."""
    environment = Environment(
        loader=PackageLoader("accel.exporting"),
        autoescape=False,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"smaller": _smaller, "faster": _faster, "interval": _interval}
    model, returns = contract["model"], report["returns"]
    return environment.get_template("MODEL_CARD.md.j2").render(
        **contract,
        **report,
        ours=_name(contract),
        alike=None if returns is None else _all_alike(returns),
        bounds=[f"{name.replace('_', '-')} {bound:g}" for name, bound in report["gate"].items() if bound],
        engines=_ENGINES,
        least_runtime=_LEAST_RUNTIME[model["ir_version"]],
        own_operators=[name for name in model["operators"] if "." in name],
        listed_files={name: what for name, what in _FILES.items() if name in contract["target"]["files"]}
        | {model["path"]: _FILES[model["path"]]}
        | _OTHER_FILES,
    )


def _name(contract: Facts) -> str:
    return f"{contract['scheme']} as {contract['target']['format']}"


def summary(contract: Facts, report: Facts) -> str:
    """The report in a few lines."""
    sizes, latency, mismatch, returns = (report[key] for key in ("bytes", "latency", "mismatch", "returns"))
    lines = [
        f"{_name(contract)}: {sizes['model']:,} bytes against {sizes['fp32']:,} of fp32 as ONNX, "
        f"{_smaller(sizes['ratio'], 'x')}",
        f"one observation takes {latency['model']['p50_us']:.1f} µs against {latency['fp32_onnx']['p50_us']:.1f} of "
        f"fp32 as ONNX in the median, {_faster(latency['speed_up_p50'], 'x')}",
        f"relative difference from the trained policy on real inputs {mismatch['relative']:.2e}",
        report["quality"]["verdict"],
        report["quality"]["cost"],
    ]
    if returns is None:
        lines.append("returns are not measured")
    else:
        lines.append(
            f"mean return {returns['model']['mean']:.5g} against {returns['fp32']['mean']:.5g} of fp32 on the same "
            f"seeds, difference {_interval(returns['difference'])}: {returns['verdict']}"
        )
        lines.append(f"worst episode {returns['model']['worst']:.5g} against {returns['fp32']['worst']:.5g}")
        if note := _all_alike(returns):
            lines.append(note)
    return "\n".join(lines)


def _smaller(ratio: float, times: str) -> str:
    return _compared(ratio, times, "as large as fp32", "smaller", "larger")


def _faster(ratio: float, times: str) -> str:
    return _compared(ratio, times, "as fast as fp32", "faster", "slower")


def _compared(ratio: float, times: str, alike: str, above: str, below: str) -> str:
    """A ratio in words; ``equal`` where the digits shown are 1."""
    factor = f"{max(ratio, 1 / ratio):.2f}"
    if float(factor) == 1:
        return alike
    return f"{factor}{times} {above if ratio > 1 else below}"


def _all_alike(returns: Facts) -> str | None:
    """Equal returns everywhere are mostly the environment's maximum, at which policies cannot be compared."""
    seen = {*returns["model"]["returns"], *returns["fp32"]["returns"]}
    if len(seen) > 1 or len(returns["model"]["returns"]) < 2:
        return None
    return (
        f"every episode of both returned {seen.pop():.6g}: if that is the most that the environment gives, its returns "
        "cannot tell the two apart, and parity can"
    )


def _interval(interval: Facts | None) -> str:
    return "-" if interval is None else f"{interval['estimate']:.4g} [{interval['low']:.4g}, {interval['high']:.4g}]"
