"""The model card of a bundle, in Markdown, from its contract and report alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]


def model_card(contract: Facts, report: Facts) -> str:
    """What the policy is, how it was made, what it is worth, how to run it, and what not to expect."""
    source, target = contract["source"], contract["target"]
    parts = [
        f"# {contract['environment']['id']} policy, {contract['scheme']}, {target['format']}",
        f"A {source['network']} policy trained for {source['env_steps']:,} environment steps (run `{source['run']}`, "
        f"policy version {source['policy_version']}), compressed as `{contract['scheme']}`, exported on "
        f"{contract['created']}.",
        "## Size and speed",
        _sizes(contract, report),
        "## Return",
        _returns(report["returns"]),
        "## Parity with the trained policy",
        _parity(report),
        "## Inputs and outputs",
        _interface(contract),
        "## Running it",
        _running(target),
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
        f"one observation takes {latency['model']['p50_us']:.1f} µs against {latency['fp32_onnx']['p50_us']:.1f} in "
        f"the median, {latency['speed_up_p50']:.2f}x as fast",
        f"on real inputs {mismatch['relative']:.2e} away from the trained policy, KL {mismatch['kl']:.1e} nats, "
        f"{report['agreement']} {mismatch['greedy_agreement']:.1%}",
    ]
    if returns is not None:
        lines.append(
            f"mean return {returns['model']['mean']:.5g} against {returns['fp32']['mean']:.5g} on the same seeds, "
            f"difference {_interval(returns['difference'])}: {returns['verdict']}"
        )
        lines.append(f"worst episode {returns['model']['worst']:.5g} against {returns['fp32']['worst']:.5g}")
    return "\n".join(lines)


def _smaller(ratio: float, times: str) -> str:
    return f"{ratio:.2f}{times} smaller" if ratio >= 1 else f"{1 / ratio:.2f}{times} larger"


def _sizes(contract: Facts, report: Facts) -> str:
    sizes, latency, machine = report["bytes"], report["latency"], report["machine"]
    lines = [
        "| | bytes | p50 µs | p95 µs | p99 µs |",
        "|---|---|---|---|---|",
        _speed(f"{contract['scheme']} as {contract['target']['format']}", sizes["model"], latency["model"]),
        _speed("fp32 as ONNX", sizes["fp32"], latency["fp32_onnx"]),
        "",
        f"{_smaller(sizes['ratio'], '×')}, {latency['speed_up_p50']:.2f}× as fast in the median; one observation a "
        f"call, one thread of {machine['cpu']}. `accel verify` measures it on another machine.",
    ]
    compiled = contract["target"].get("compiled")
    if compiled:
        lines += [
            "",
            f"Compiled by {compiled['compiler']} with {compiled['flags']}: {compiled['code_bytes']:,} bytes of code "
            f"and constants, {compiled['static_bytes']:,} of static memory, {compiled['stack_bytes']} of stack.",
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
        f"{len(returns['model']['returns'])} episodes each, {returns['acted']}, on the same seeds (of "
        f"{returns['seed']}), the compressed policy on {returns['engine']}. Difference by seed: "
        f"{_interval(returns['difference'])}: **{returns['verdict']}**. An interval that "
        f"lies within {100 * returns['margin']:.3g} % of the magnitude of full precision's mean counts as no loss.",
    ]
    return "\n".join(lines)


def _interval(interval: Facts | None) -> str:
    return "-" if interval is None else f"{interval['estimate']:.4g} [{interval['low']:.4g}, {interval['high']:.4g}]"


def _parity(report: Facts) -> str:
    lines = [
        "| from → to | inputs | batch | relative difference | greatest difference of an output | KL, nats | "
        f"{report['agreement']} |",
        "|---|---|---|---|---|---|---|",
    ]
    alike: dict[tuple[str, str], list[str]] = {}
    for row in report["parity"]:
        figures = f"{row['relative']:.2e} | {row['greatest']:.2e} | {row['kl']:.2e} | {row['greedy_agreement']:.1%}"
        alike.setdefault((f"{row['stage']} | {row['inputs']}", figures), []).append(str(row["batch"]))
    lines += [f"| {start} | {', '.join(batches)} | {figures} |" for (start, figures), batches in alike.items()]
    lines += [
        "",
        "The relative difference is the root mean square over that of the parameters' deviation from their mean, "
        "without unit. The greatest has the output's own unit: nats for logits; for continuous actions the action's, "
        "before tanh where there is one, and nats for log-deviations.",
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
        f"- Observations: {observation['layout']}. Normalisation, inside the graph: "
        f"{observation['normalisation']['method']}.",
        f"- Actions ({action['kind']}): {action['post_processing']}.",
        "- Opset: " + ", ".join(f"{domain} {version}" for domain, version in contract["model"]["opset"].items()) + ".",
        f"- CPU features assumed: {_features(contract['target'])}; by `run_policy.py`: {_features(contract['model'])}.",
    ]
    for state in contract["recurrent_state"]:
        lines.append(f"- Recurrent state: `{state['input']}` gets `{state['output']}`; {state['rule']}.")
    return "\n".join(lines)


def _shape(sizes: list[object]) -> str:
    return " × ".join(map(str, sizes))


def _features(part: Facts) -> str:
    return ", ".join(part["cpu_features"]) or "none"


def _running(target: Facts) -> str:
    text = (
        "`run_policy.py` needs Python, numpy and onnxruntime only:\n\n"
        "```\npython run_policy.py --verify   # files, test vectors, latency\n"
        "python run_policy.py --play     # with gymnasium and the environment\n"
        'echo \'{"observation": [...], "first": true}\' | python run_policy.py --stdin\n```\n\n'
    )
    if target["format"] not in ("onnx", "ort"):
        text += (
            f"It runs and checks `model.onnx` on onnxruntime, not the files of target {target['format']}: "
            "`accel verify` checks those.\n\n"
        )
    if target["format"] == "openvino":
        settings = ", ".join(f"{key}={value}" for key, value in target["settings"].items())
        return text + f"`model.xml` and `model.bin` are OpenVINO's; compile them with {settings}."
    if target["format"] == "c":
        check = target["check"]
        return text + (
            f"Call `{target['function']}` of `policy.h`; it takes one observation, needs libm and no heap. On the "
            f"device, `check.c` runs it on {check['rows']} test vectors, which `vectors.h` holds as constants, prints "
            "the greatest difference, and exits with 0 where all is within the bound and with 1 otherwise:\n\n"
            f"```\n{check['build']} && {check['run']}\n```\n\nFor a device, put its own compiler in the place of gcc. "
            "`accel verify` does the same where there is a C compiler."
        )
    return text + "`contract.json` says all that another program needs."


def _limits(contract: Facts) -> str:
    return (
        f"The policy knows {contract['environment']['id']} as it was in training and nothing else; its return "
        "elsewhere is unknown. Outputs of another CPU or engine may differ from the test vectors by "
        f"{contract['vectors']['bound']:g} of their spread; more than that is an error."
    )
