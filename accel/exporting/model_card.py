"""The model card of a bundle, in Markdown, from its contract and report alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Facts = Mapping[str, Any]

_FILES = MappingProxyType(
    {
        "contract.json": "inputs, outputs, actions, environment, versions, for other programs",
        "model.onnx": "the compressed policy, for onnxruntime",
        "model.ort": "the compressed policy, in onnxruntime's own format",
        "model.xml": "the compressed policy, for OpenVINO",
        "model.bin": "its weights",
        "policy.c": "the compressed policy in C99",
        "policy.h": "its prototype",
        "check.c": "a program that holds `policy.c` to the test vectors, on the device",
        "vectors.h": "test vectors for it",
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
_ACTED = MappingProxyType({"greedy": "taking the most likely actions", "sampled": "sampling actions"})
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
    source, target = contract["source"], contract["target"]
    # Policies from elsewhere have no versions, and may not tell how long they were trained.
    trained = f" trained for {source['env_steps']:,} environment steps" if source["env_steps"] else ""
    which = f", seed {source['seed']}, policy version {source['policy_version']}" if source["policy_version"] else ""
    parts = [
        f"# {contract['environment']['id']} policy, {contract['scheme']}, {target['format']}",
        f"A policy (network `{source['network']}`){trained} (`{source['run']}`{which}), compressed as "
        f"`{contract['scheme']}`, exported on {contract['created']}.",
        "## Size and speed",
        _sizes(contract, report),
        "## Return",
        _returns(report["returns"]),
        _gate(report["gate"]),
        "## Parity with the trained policy",
        _parity(contract, report),
        "## Inputs and outputs",
        _interface(contract),
        "## Running it",
        _running(target),
        "## Files",
        _files(contract),
        "## Limits",
        _limits(contract),
    ]
    return "\n\n".join(parts) + "\n"


def summary(contract: Facts, report: Facts) -> str:
    """The report in a few lines."""
    sizes, latency, mismatch, returns = (report[key] for key in ("bytes", "latency", "mismatch", "returns"))
    name = f"{contract['scheme']} as {contract['target']['format']}"
    lines = [
        f"{name}: {sizes['model']:,} bytes against {sizes['fp32']:,} of fp32 as ONNX, {_smaller(sizes['ratio'], 'x')}",
        f"one observation takes {latency['model']['p50_us']:.1f} µs against {latency['fp32_onnx']['p50_us']:.1f} of "
        f"fp32 as ONNX in the median, {_faster(latency['speed_up_p50'], 'x')}",
        f"relative difference from the trained policy on real inputs {mismatch['relative']:.2e}, KL "
        f"{mismatch['kl']:.1e} nats, {report['agreement']} in {mismatch['greedy_agreement']:.1%}",
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


def _sizes(contract: Facts, report: Facts) -> str:
    sizes, latency, machine = report["bytes"], report["latency"], report["machine"]
    lines = [
        "| | bytes | p50 µs | p95 µs | p99 µs |",
        "|---|---|---|---|---|",
        _speed(f"{contract['scheme']} as {contract['target']['format']}", sizes["model"], latency["model"]),
        _speed("fp32 as ONNX", sizes["fp32"], latency["fp32_onnx"]),
        "",
        f"{_smaller(sizes['ratio'], '×')}, {_faster(latency['speed_up_p50'], '×')} in the median; one observation a "
        f"call, one thread of {machine['cpu']}. `accel verify` measures it on another machine.",
    ]
    compiled = contract["target"].get("compiled")
    if compiled:
        stack = compiled["stack_bytes"]
        lines += [
            "",
            f"Compiled by {compiled['compiler']} with {compiled['flags']}: {compiled['code_bytes']:,} bytes of code "
            f"and constants, {compiled['static_bytes']:,} of static memory, "
            f"{'an unknown size' if stack is None else f'{stack:,}'} of stack.",
        ]
    return "\n".join(lines)


def _speed(name: str, size: int, latency: Facts) -> str:
    return f"| {name} | {size:,} | {latency['p50_us']:.1f} | {latency['p95_us']:.1f} | {latency['p99_us']:.1f} |"


def _returns(returns: Facts | None) -> str:
    if returns is None:
        return "Not measured."
    lines = ["| | mean return | 95 % interval | worst episode |", "|---|---|---|---|"]
    for name, key in (("compressed", "model"), ("full precision", "fp32")):
        played = returns[key]
        interval = played["interval"]
        ends = "-" if interval is None else f"{interval['low']:.4g} to {interval['high']:.4g}"
        lines.append(f"| {name} | {played['mean']:.6g} | {ends} | {played['worst']:.6g} |")
    lines += [
        "",
        f"{len(returns['model']['returns'])} episodes each, {_ACTED[returns['acted']]}, on the same seeds, which "
        f"derive from {returns['seed']}; the compressed policy ran on {_ENGINES[returns['engine']]}. Compressed − full "
        f"precision by seed, with its 95 % interval: {_interval(returns['difference'])}: **{returns['verdict']}**. An "
        f"interval that lies within {100 * returns['margin']:.3g} % of the magnitude of full precision's mean counts "
        "as no loss.",
    ]
    if note := _all_alike(returns):
        lines += ["", note[0].upper() + note[1:] + "."]
    return "\n".join(lines)


def _gate(gate: Facts) -> str:
    """The bounds that the export checked."""
    bounds = [f"{name.replace('_', '-')} {bound:g}" for name, bound in gate.items() if bound is not None]
    if not bounds:
        return "No bound was set on what compression may cost (`--max-return-loss`, `--max-mismatch`)."
    return f"The bundle holds what was asked of it: {', '.join(bounds)}."


def _interval(interval: Facts | None) -> str:
    return "-" if interval is None else f"{interval['estimate']:.4g} [{interval['low']:.4g}, {interval['high']:.4g}]"


def _parity(contract: Facts, report: Facts) -> str:
    lines = [
        "| from → to | inputs | batch | relative difference | greatest difference of an output | KL, nats | "
        f"{report['agreement']} |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {"torch": "torch", "fp32 onnx": "fp32 as ONNX"}
    ours = f"{contract['scheme']} as {contract['target']['format']}"
    alike: dict[tuple[str, str], list[str]] = {}
    for row in report["parity"]:
        figures = f"{row['relative']:.2e} | {row['greatest']:.2e} | {row['kl']:.2e} | {row['greedy_agreement']:.1%}"
        stage = " → ".join(names.get(part, ours) for part in row["stage"].split(" -> "))
        alike.setdefault((f"{stage} | {row['inputs']}", figures), []).append(str(row["batch"]))
    lines += [f"| {start} | {', '.join(batches)} | {figures} |" for (start, figures), batches in alike.items()]
    lines += [
        "",
        f"Up to {max(row['rows'] for row in report['parity'])} inputs of each kind: real ones are from episodes that "
        "the policy played by sampling, recurrent states included; random ones are uniform pixels, or normal with the "
        "real ones' mean and thrice their deviation, so mostly further out than training went. Batches of equal "
        "figures share a line.",
        "",
        "The relative difference is the root mean square over that of the parameters' deviation from their mean, "
        "without unit. The greatest has the output's own unit: nats for logits; for continuous actions the action's, "
        "before tanh where there is one, and nats for log-deviations. KL is KL(first ‖ second) of the action "
        "distributions.",
    ]
    return "\n".join(lines)


def _interface(contract: Facts) -> str:
    lines = ["| | name | dtype | shape |", "|---|---|---|---|"]
    for kind in ("inputs", "outputs"):
        for tensor in contract[kind]:
            lines.append(f"| {kind[:-1]} | `{tensor['name']}` | {tensor['dtype']} | {_shape(tensor['shape'])} |")
    observation, action = contract["observation"], contract["action"]
    lines += [
        "",
        f"- Observations: {_layout(observation)}. Normalisation, inside the graph: "
        f"{observation['normalisation']['method']}.",
        f"- Actions ({action['kind']}, {_choices(action)}): {action['post_processing']}.",
        "- Opset: " + ", ".join(f"{domain} {version}" for domain, version in contract["model"]["opset"].items()) + ".",
        f"- {_runtime(contract['model'])}",
        f"- {_cpu(contract)}",
    ]
    for state in contract["recurrent_state"]:
        lines.append(f"- Recurrent state: `{state['input']}` gets `{state['output']}`; {state['rule']}.")
    return "\n".join(lines)


def _layout(observation: Facts) -> str:
    if "parts" not in observation:
        return str(observation["layout"])
    parts = [f"`{part['name']}` is entry {part['path']}, {part['layout']}" for part in observation["parts"]]
    return f"a dictionary, one input for each entry; {'; '.join(parts)}"


def _shape(sizes: list[object]) -> str:
    return " × ".join(map(str, sizes))


def _choices(action: Facts) -> str:
    if action["kind"] == "gaussian":
        return f"low {action['low']}, high {action['high']}"
    return f"sizes {action['sizes']}, start {action['start']}"


def _runtime(model: Facts) -> str:
    """The least onnxruntime, and whether others can run the model."""
    least = f"`model.onnx` needs onnxruntime {_LEAST_RUNTIME[model['ir_version']]} or newer"
    own = [name for name in model["operators"] if "." in name]
    return f"{least}; {', '.join(own)} are its own operators." if own else f"{least}, and has standard operators only."


def _cpu(contract: Facts) -> str:
    """CPU features that the integer kernels need."""
    needed = ", ".join(contract["model"]["cpu_features"])
    if not needed:
        return "No feature of the CPU is assumed."
    told = f"assumes a CPU with {needed}, and `run_policy.py` refuses others; `accel export --cpu` chooses the CPU"
    if contract["target"]["cpu_features"]:
        return f"The model {told}."
    return f"No feature of the CPU is assumed by target {contract['target']['format']}; `model.onnx` {told}."


def _files(contract: Facts) -> str:
    brought = {*contract["target"]["files"], "model.onnx" if contract["target"]["format"] != "ort" else "model.ort"}
    own = {"model.onnx", "model.ort", "model.xml", "model.bin", "policy.c", "policy.h", "check.c", "vectors.h"}
    return "\n".join(f"- `{name}`: {what}." for name, what in _FILES.items() if name in brought or name not in own)


def _running(target: Facts) -> str:
    others = {"openvino": _run_openvino, "c": _run_c}
    own = others[target["format"]](target) + "\n\n" if target["format"] in others else ""
    text = (
        "`run_policy.py` needs Python, numpy and onnxruntime only:\n\n"
        "```\npython run_policy.py --verify   # files, test vectors, latency\n"
        "python run_policy.py --play     # with gymnasium and the environment\n"
        'echo \'{"observation": [...], "first": true}\' | python run_policy.py --stdin\n```'
    )
    text += (
        "\n\n`example.py` is a short loop on onnxruntime to start a program of your own from. The "
        "metadata of the ONNX models says what observations, actions and recurrent state mean, as `contract.json` does."
    )
    if own:
        text += (
            f"\n\nIt runs and checks `model.onnx` on onnxruntime, not the files of target {target['format']}: `accel "
            f"verify{' --run-native-check' if target['format'] == 'c' else ''}` checks those."
        )
    return own + text


def _run_openvino(target: Facts) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in target["settings"].items())
    return f"`model.xml` and `model.bin` are OpenVINO's; compile them with {settings}."


def _run_c(target: Facts) -> str:
    check = target["check"]
    return (
        f"Call `{target['function']}` of `policy.h`: one observation a call, inputs first, outputs behind them; it "
        "needs libm and no heap, and does not look whether inputs are finite. Check it on the device first:\n\n"
        f"```\n{check['build']} && {check['run']}\n```\n\n"
        f"with the device's own compiler in the place of gcc. It runs {check['rows']} test vectors, prints the "
        "greatest difference, and exits with 0 where all is within the bound, with 1 otherwise. `accel verify "
        "--run-native-check` does the same where there is a C compiler; plain `accel verify` runs no code of a bundle."
    )


def _limits(contract: Facts) -> str:
    return (
        f"The policy knows {contract['environment']['id']} as it was in training and nothing else; its return "
        "elsewhere is unknown, and it does not notice observations unlike those of training. Outputs of another CPU or "
        f"engine may differ from the test vectors by {contract['vectors']['bound']:g} of their spread; more than that "
        "is an error."
    )
