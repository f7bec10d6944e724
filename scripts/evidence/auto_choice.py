"""What ``--compressor auto`` chooses in its first seconds, where the policy is large and where it is small.

    python scripts/evidence/auto_choice.py [--cases 2048x3 64x2] [--out results/auto_choice]     (a minute a case)

Each case is one training run, cut off by the clock. ``runs.json`` gets its command, decisions and levels by training
second, with the commit and the machine; ``README.md`` the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

import training_runs  # noqa: E402

from accel.monitor.decisions import read_decisions  # noqa: E402
from accel.runs.summary import Summary  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402

_CPU_FLAGS = set(Path("/proc/cpuinfo").read_text().split())
_PRECISION = "bf16" if _CPU_FLAGS & {"avx512_bf16", "amx_bf16"} else "none"  # elsewhere the learner refuses bf16
_LARGE = (  # of an option that is given twice, the last one counts
    *training_runs.read_cases(Path(__file__).with_name("cases.toml"))["halfcheetah-2048x3"].arguments,
    "--mixed-precision", _PRECISION, "--stop-at-return", "none", "--total-env-steps", "100000000",
)  # fmt: skip
CASES = {
    "2048x3": (*_LARGE, "--max-seconds", "45"),
    "2048x3, checks made to fail": (*_LARGE, "--max-publish-kl", "8e-7", "--max-seconds", "45"),
    "IMPALA-ResNet": (
        "--preset", "pong", "--network", "impala-resnet", "--total-env-steps", "100000000", "--max-seconds", "45",
    ),
    "64x2": (
        "--preset", "quickstart", "--stop-at-return", "none", "--total-env-steps", "1000000000", "--max-seconds", "20",
    ),
}  # fmt: skip


def main() -> None:
    """Run the cases, one after the other, and write what they chose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("results/auto_choice"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs = {case: run(case, Path(directory)) for case in options.cases}
    options.out.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(read_machine())
    content = {"command": sys.argv, "load_average": os.getloadavg(), "machine": machine, "runs": runs}
    (options.out / "runs.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.out / "README.md").write_text(page(runs))


def run(case: str, directory: Path) -> dict[str, object]:
    """One run's command, decisions, levels by second, and the end of its summary."""
    name = "".join(letter if letter.isalnum() else "-" for letter in case)
    command = ["accel", "train", *CASES[case], "--compressor", "auto", "--results-dir", str(directory), "--name", name]
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (directory / name / "metrics.jsonl").read_text().splitlines()]
    summary = Summary.read(directory / name)
    return {
        "command": command,
        "decisions": [decision.to_json() for decision in read_decisions(directory / name)[0]],
        "levels": [[round(r["elapsed_s"], 2), r["level"], round(r["env_steps_per_s"])] for r in records],
        "scheme": summary.scheme,
        "comparison": summary.to_json()["comparison"],
        "training_s": summary.training_s,
    }


def page(runs: dict[str, dict[str, object]]) -> str:
    """The table: what acted first in place of fp32, and when; what acted at the end, and why."""
    rows = [["case", "first level but fp32", "at the end", "last decision"], ["---"] * 4]
    for case, found in runs.items():
        levels: list[list[object]] = found["levels"]  # type: ignore[assignment]
        taken = next((level for level in levels if level[1] != "fp32"), None)
        decisions: list[dict[str, object]] = found["decisions"]  # type: ignore[assignment]
        first = "–" if taken is None else f"{taken[1]} after {taken[0]} s"
        rows.append([case, first, str(levels[-1][1]), str(decisions[-1]["reason"]) if decisions else "none"])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# What auto chooses in its first seconds

`python scripts/evidence/auto_choice.py`; commands, decisions, levels by second, commit and machine are in `runs.json`.
One run a case, cut off by the clock; seconds are of training, as the records have them.

{table}
"""


if __name__ == "__main__":
    main()
