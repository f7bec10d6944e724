#!/usr/bin/env python
"""Bytes, mismatch and return of exported policies by scheme, over trained seeds: the smallest at no shown loss.

    python scripts/evidence/exported_schemes.py pendulum --seeds 0 1 2 3 4         (about a minute a seed)
    python scripts/evidence/exported_schemes.py --summary

Each seed is trained in full precision, which the schemes of ``AFTER`` then compress, and once with each of ``DURING``,
whose last artifact is played. Greedy episodes, the same ones for every policy. ``OUT/exported.json.gz`` has every
return; what is there is not made again. C is compiled for this machine (gcc -O2); bytes are code and constants.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.policies import MeasuredPolicy  # noqa: E402
from accel.compressors.errors import CompressorError  # noqa: E402
from accel.errors import AccelError  # noqa: E402
from accel.exporting.build import export  # noqa: E402
from accel.monitor.statistics import mean_interval  # noqa: E402
from accel.runs.evaluation import compress_run, evaluate  # noqa: E402
from accel.runs.loading import load_run  # noqa: E402
from accel.runs.playing import collect_inputs  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402
from accel.system.timing import torch_threads  # noqa: E402
from scripts.evidence.samples import RUNS, arguments, read_samples, train, write_samples  # noqa: E402

EPISODES, ROWS, MISMATCH_SEED = 20, 4096, 1
FIRST_SEED = 10_000  # of the episodes
MARGIN = 0.05  # of the distance of full precision's return from random actions'
AFTER = (
    *("fp32", "fp16", "int8", "int4", "int8(w4)", "int8(w3)"),
    *("prune(0.5)+int8", "prune(0.5)+int4", "lowrank(0.25)+int8", "distill(16x2)+int8"),
    *("distill(32x2)+int8", "int8(x8)", "int8(w4,x8)", "int8(w3,x8)"),
)
DURING = ("int8(w3)", "qat(w3)", "qat(w4)")
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is trained, the return of uniformly random actions there, and what is trained with rounding."""

    arguments: tuple[str, ...]
    random_return: float
    during: tuple[str, ...] = ()


CASES: Mapping[str, Case] = {
    "pendulum": Case(
        (
            *("--algorithm", "d4pg", "--env", "Pendulum-v1", "--network", "mlp:64x2", "--batch-size", "64"),
            *("--samples-per-insert", "32", "--envs-per-actor", "4", "--total-env-steps", "12000"),
        ),
        -1168.0,
        DURING,
    ),
    "cartpole": Case(
        ("--algorithm", "ppo", "--env", "CartPole-v1", "--network", "mlp:64x2", "--total-env-steps", "60000"), 20.0
    ),
    "lunarlander": Case(("--preset", "lunarlander", "--total-env-steps", "600000", "--stop-at-return", "none"), -215.0),
    "hopper": Case(("--env", "Hopper-v5", "--total-env-steps", "100000"), 18.0),
    "halfcheetah": Case(("--env", "HalfCheetah-v5", "--total-env-steps", "300000", "--stop-window", "20"), -280.0),
}


def main() -> int:
    """Make the rows that are missing, one seed after another, and the table."""
    parser = arguments(__doc__, "earned-places")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: none is measured")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs-dir", type=Path, default=RUNS / "earned-places" / "runs")
    parser.add_argument("--summary", action="store_true", help="print the table")
    options = parser.parse_args()
    samples = options.out / "exported.json.gz"
    rows: list[Row] = read_samples(samples).get("rows", [])
    for seed in options.seeds:
        for name in options.cases:
            for row in measure(name, seed, options.runs_dir, rows):
                rows.append(row)
                options.out.mkdir(parents=True, exist_ok=True)
                write_samples(samples, {"rows": rows})
                print(name, seed, row["scheme"], row.get("model_bytes"), row.get("refused"), flush=True)
    if options.summary:
        print("\n".join(table(rows)))
    return 0


def measure(name: str, seed: int, runs: Path, rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of one seed that are missing."""
    done = {(row["case"], row["seed"], row["trained_with"], row["scheme"]) for row in rows}
    case = CASES[name]
    for trained_with, schemes in (("fp32", AFTER), *((scheme, (scheme,)) for scheme in case.during)):
        missing = [scheme for scheme in schemes if (name, seed, trained_with, scheme) not in done]
        if not missing:
            continue
        run, command = trained(case, name, trained_with, seed, runs)
        about = {"case": name, "seed": seed, "trained_with": trained_with, "command": command}
        about |= {"machine": describe_machine(read_machine())}
        with torch_threads():
            for scheme in missing:
                yield about | play(run, scheme, last=trained_with != "fp32")


def trained(case: Case, name: str, scheme: str, seed: int, runs: Path) -> tuple[Path, str]:
    """The run's directory, trained unless it is there, and its command."""
    run = runs / f"{name}-{scheme}-s{seed}"
    words = [*case.arguments, "--compressor", scheme, "--actors", "0", "--learner-threads", "1", "--seed", str(seed)]
    return run, train(words, run)


def play(run: Path, scheme: str, *, last: bool) -> Row:
    """Bytes of the model, of its C, and the episodes of it, or of the run's last artifact; or why it is refused."""
    try:
        if last:
            played = evaluate(run, artifact=run / "policy" / "final.accel", episodes=EPISODES, seed=FIRST_SEED)
        else:
            played = evaluate(run, scheme=scheme, episodes=EPISODES, seed=FIRST_SEED)
    except CompressorError as error:
        return {"scheme": scheme, "refused": str(error)}
    if played.scheme != scheme:
        return {"scheme": scheme, "refused": f"withheld in training, where {played.scheme} stood in at the end"}
    found: Row = {"scheme": scheme, "model_bytes": played.policy_bytes, "returns": played.episodes.returns.tolist()}
    found |= {} if last else {name: mismatch(run, scheme)[name] for name in ("kl", "greedy_agreement")}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            bundle = export(run, Path(scratch, "c"), scheme=scheme, format="c", episodes=0)
            found["c_bytes"] = bundle.contract["target"]["compiled"]["code_bytes"]
        except (AccelError, CompressorError) as error:
            found["c_refused"] = str(error)
    return found


def mismatch(path: Path, scheme: str) -> Mapping[str, Any]:
    """Of a scheme from full precision, on inputs that the trained policy meets in episodes of other seeds."""
    run = load_run(path)
    inputs = collect_inputs(run, ROWS, MISMATCH_SEED)
    return MeasuredPolicy(run, "trained", "environment", inputs, inputs).mismatch_of(compress_run(run, scheme, 0))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Per case and scheme: bytes, the mean over seeds, and the difference from full precision by seed."""
    yield "| case | trained with | scheme | seeds | ONNX bytes | C bytes | KL | return [range] | − fp32 [95 %] | loss |"
    yield "|---|---|---|---:|---:|---:|---:|---|---|---|"
    for name, case in CASES.items():
        played = [row for row in rows if row["case"] == name and "returns" in row]
        full = {row["seed"]: mean(row["returns"]) for row in played if row["scheme"] == "fp32"}
        kinds = dict.fromkeys((row["trained_with"], row["scheme"]) for row in played)
        for trained_with, scheme in kinds:
            own = [row for row in played if (row["trained_with"], row["scheme"]) == (trained_with, scheme)]
            own = [row for row in own if row["seed"] in full]
            if own:
                cells = " | ".join(_cells(own, full, case.random_return))
                yield f"| {name} | `{trained_with}` | `{scheme}` | {len(own)} | {cells} |"


def _cells(rows: Sequence[Row], full: Mapping[int, float], random_return: float) -> Iterator[str]:
    for key in ("model_bytes", "c_bytes"):
        sizes = [row[key] for row in rows if key in row]
        yield f"{median(sizes):,.0f}" if sizes else "–"
    divergences = [row["kl"] for row in rows if row.get("kl") is not None]
    yield f"{median(divergences):.2g}" if divergences else "–"
    scores = [mean(row["returns"]) for row in rows]
    yield f"{mean(scores):.5g} [{min(scores):.5g}, {max(scores):.5g}]"
    baselines = [full[row["seed"]] for row in rows]
    differences = [score - baseline for score, baseline in zip(scores, baselines, strict=True)]
    yield from _difference(differences, mean(baselines) - random_return)


def _difference(differences: Sequence[float], gain: float) -> tuple[str, str]:
    found = mean_interval(differences) if len(differences) > 1 and any(differences) else None
    if found is None:
        return f"{mean(differences):+.4g}", "none: the same returns" if not any(differences) else "one seed"
    text = f"{mean(differences):+.4g} [{found.low:+.4g}, {found.high:+.4g}]"
    if found.low > -MARGIN * gain:
        return text, f"below {MARGIN:.0%}"
    return text, "lower" if found.high < 0 else f"up to {-found.low / gain:.0%}"


if __name__ == "__main__":
    sys.exit(main())
