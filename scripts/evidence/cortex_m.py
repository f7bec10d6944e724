"""Schemes on an emulated Cortex-M4: bytes, instructions a call and returns of policies as C, trained with and without.

    python scripts/evidence/cortex_m.py [--seeds 0 1 2 3 4]      (about a minute a row)

Each seed is trained on CartPole-v1 in full precision, from which schemes without training are exported, and once with
each scheme that the learner trains with. A bundle's own check program runs on QEMU's mps2-an386, where every call of
the policy is counted: instructions, not cycles. Needs qemu-system-arm and gcc-arm-none-eabi; goes on where it stopped.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel.compressors.errors import CompressorError
from accel.errors import AccelError
from accel.exporting.build import export
from accel.monitor.statistics import student_t_quantile
from accel.system.machine import describe_machine
from scripts.evidence.samples import arguments, read_samples, write_samples

BOARD = Path(__file__).parent / "cortex_m"
CPU = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-O2")
LIBRARIES = ("-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs", "-u", "_printf_float")
QEMU = ("qemu-system-arm", "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none")
COUNTING = ("-icount", "shift=0", "-semihosting-config", "enable=on,target=native")
EPISODES = 20
AFTER = (
    *("fp32", "int8", "int8(x8)", "int8(w4,x8)", "int8(w3,x8)", "int8(w2,x8)"),
    *("prune(0.5)+int8", "lowrank(0.25)+int8", "distill(16x2)+int8"),
)
DURING = (
    *("qat(x8)", "qat(w4,x8)", "qat(w3,x8)", "qat(w2,x8)"),
    *("qat(w3,x6)", "qat(w3,x4)", "qat(w2,x6)"),
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Counted:
    """A C bundle on the board: bytes of the policy's code and constants, its stack, and instructions of one call."""

    code_bytes: int
    stack_bytes: int
    instructions: int


def count(bundle: Path) -> Counted:
    """Compile a C bundle for the board and run its check there. Raises RuntimeError where that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for name in ("policy.c", "policy.h", "check.c", "vectors.h"):
            shutil.copyfile(bundle / name, here / name)
        counting = ("-Dmain=check_main", "-include", "policy.h", "-include", str(BOARD / "count.h"))
        _run(here, "arm-none-eabi-gcc", *CPU, "-std=c99", "-fstack-usage", "-c", "policy.c")
        _run(here, "arm-none-eabi-gcc", *CPU, "-std=c99", *counting, "-c", "check.c")
        _run(here, "arm-none-eabi-gcc", *CPU, "-std=gnu99", "-c", str(BOARD / "firmware.c"))
        objects = ("firmware.o", "check.o", "policy.o", "-lm", "-o", "board.elf")
        _run(here, "arm-none-eabi-gcc", *CPU, *LIBRARIES, "-T", str(BOARD / "mps2.ld"), *objects)
        code_bytes = int(_run(here, "arm-none-eabi-size", "policy.o").splitlines()[1].split()[0])
        frames = re.findall(r":(\w+)\t(\d+)\t", (here / "policy.su").read_text())
        own = sum(int(size) for name, size in frames if name == "policy")
        deepest = max((int(size) for name, size in frames if name != "policy"), default=0)
        said = _run(here, *QEMU, *COUNTING, "-kernel", "board.elf")
    found = re.search(r"instructions a call: (\d+), calls: \d+, check: pass", said)
    if found is None:
        raise RuntimeError(f"the board says {said!r}")
    return Counted(code_bytes, own + deepest, int(found.group(1)))


def main() -> None:
    """Measure the rows that are missing, and write the table."""
    parser = arguments(__doc__, "cortex_m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    rows_path = options.out / "rows.json.gz"
    rows: list[Row] = read_samples(rows_path).get("rows", [])
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            for trained, scheme in cells():
                if any((row["seed"], row["trained"], row["scheme"]) == (seed, trained, scheme) for row in rows):
                    continue
                rows.append(measure(seed, trained, scheme, Path(scratch)))
                write_samples(rows_path, {"rows": rows})
                print(json.dumps({key: rows[-1].get(key) for key in ("seed", "trained", "scheme", "refused")}))
                (options.out / "README.md").write_text(page(rows))


def cells() -> Iterator[tuple[str, str]]:
    """(scheme that was trained with, scheme that is exported)."""
    yield from (("fp32", scheme) for scheme in AFTER)
    yield from ((scheme, scheme) for scheme in DURING)


def measure(seed: int, trained: str, scheme: str, scratch: Path) -> Row:
    """One row; trains where the seed's run with that scheme is not there yet."""
    name = f"{re.sub('[^a-z0-9]+', '-', trained)}-{seed}"
    words = ["train", "--preset", "quickstart", "--compressor", trained, "--seed", str(seed), "--name", name]
    words += ["--total-env-steps", "4000000", "--results-dir", str(scratch)]
    run = scratch / name
    if not run.exists():
        subprocess.run([sys.executable, "-m", "accel", *words], check=True, capture_output=True)
    row: Row = {"seed": seed, "trained": trained, "scheme": scheme, "train": shlex.join(["accel", *words])}
    row |= {"machine": describe_machine(), "command": shlex.join(["python", *sys.argv])}
    bundle = scratch / f"{name}-bundle"
    try:
        exported = export(run, bundle, scheme=scheme, format="c", episodes=EPISODES)
    except (AccelError, CompressorError) as error:
        return row | {"refused": str(error)}
    counted = count(bundle)
    shutil.rmtree(bundle)
    returns: Any = exported.report["returns"]
    row |= {"code_bytes": counted.code_bytes, "stack_bytes": counted.stack_bytes, "instructions": counted.instructions}
    row |= {"packed": exported.contract["target"]["packed_weight_bits"], "returns": returns["model"]["returns"]}
    return row | {"fp32_returns": returns["fp32"]["returns"], "mismatch": exported.report["mismatch"]}


def page(rows: Sequence[Row]) -> str:
    """The table, and how it was made."""
    lines = ["| trained with | exported as | bytes | stack | instructions a call | return [95 %] | worst seed |"]
    lines.append("|---|---|---|---|---|---|---|")
    for trained, scheme in cells():
        found = [r for r in rows if (r["trained"], r["scheme"]) == (trained, scheme) and "refused" not in r]
        if found:
            size, stack, calls = (int(np.median([r[key] for r in found])) for key in _FIGURES)
            means = [float(np.mean(r["returns"])) for r in found]
            cells_ = (trained, scheme, f"{size:,}", f"{stack:,}", f"{calls:,}", _interval(means), f"{min(means):.4g}")
            lines.append(f"| {' | '.join(cells_)} |")
    seeds = sorted({row["seed"] for row in rows})
    refused = sorted({f"- `{row['scheme']}`: {row['refused']}" for row in rows if "refused" in row})
    commits = sorted({f"{row['machine']['commit']}, {row['machine']['cpu']}" for row in rows})
    return "\n".join([_HEAD.format(seeds=seeds, episodes=EPISODES), *lines, "", *refused, "", *commits, ""])


_FIGURES = ("code_bytes", "stack_bytes", "instructions")
_HEAD = """# Policies as C on an emulated Cortex-M4

`python scripts/evidence/cortex_m.py`; samples and commands are in `rows.json`. CartPole-v1, `mlp:64x2` with tanh, seeds
{seeds}, {episodes} greedy episodes each, played by the same C compiled for this machine. `bytes` are the policy's code
and constants, without libm's tanh, compiled for a Cortex-M4 with a floating-point unit (gcc -O2); `instructions` are
counted by QEMU (mps2-an386, -icount), to 40 a call, and are no cycles: a division or a load that waits takes more than
one. Medians over seeds; the interval is Student's t. Each policy passes its bundle's check there.
"""


def _interval(means: Sequence[float]) -> str:
    mean = float(np.mean(means))
    if len(means) < 2:
        return f"{mean:.4g}"
    half = student_t_quantile(0.975, len(means) - 1) * float(np.std(means, ddof=1)) / len(means) ** 0.5
    return f"{mean:.4g} [{mean - half:.4g}, {mean + half:.4g}]"


def _run(directory: Path, *command: str) -> str:
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}  # QEMU writes what the board says to the latter
    done = subprocess.run(command, cwd=directory, **both, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} fails: {done.stdout[-500:]}")
    return done.stdout


if __name__ == "__main__":
    main()
