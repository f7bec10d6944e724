"""Actor time per million environment steps, refresh times and mismatch: measured case by case, then rendered.

    python scripts/evidence/actor_time.py                  measure what is missing, then render (about ten minutes)
    python scripts/evidence/actor_time.py --render         render what there is
    python scripts/evidence/actor_time.py --run RUN ...    also the mismatch of these runs' trained policies
    python scripts/evidence/actor_time.py --quiet 0.95     measure again where other processes took part of the core

Every case is one ``accel bench`` command; its rows (each with command, commit, machine and versions) and its text stay
under results/actor_time/rows. A case that has rows is left alone, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from render_actor_time import render

SCHEMES = (
    "fp32,fp16,int8,int8(per_channel),int8-dynamic,int4,prune(0.5),prune(0.5)+int8,lowrank(0.25),lowrank(0.25)+int8,"
    "distill(64x2)+int8"
)
# case: environment, network, measuring seconds
ACTORS = {
    "cartpole-64x2": ("CartPole-v1", "mlp:64x2", 20),
    "lunarlander-256x2": ("LunarLander-v3", "mlp:256x2", 20),
    "halfcheetah-256x2": ("HalfCheetah-v5", "mlp:256x2", 20),
    "halfcheetah-512x3": ("HalfCheetah-v5", "mlp:512x3", 25),
    "halfcheetah-2048x3": ("HalfCheetah-v5", "mlp:2048x3", 35),
    "pong-nature-cnn": ("ALE/Pong-v5", "nature-cnn", 35),
    "pong-impala-resnet": ("ALE/Pong-v5", "impala-resnet", 60),
}
REFRESHED = "mlp:64x2,mlp:256x2,mlp:512x3,mlp:2048x3,nature-cnn,impala-resnet"


def commands(scale: float, runs: list[Path]) -> dict[str, list[str]]:
    """The ``accel bench`` arguments of every case."""
    cases = {
        f"actor-{name}": [
            "actor", f"--env={env}", f"--network={network}", "--envs-per-actor=1,8", f"--schemes={SCHEMES}",
            f"--seconds={seconds * scale:g}",
        ]
        for name, (env, network, seconds) in ACTORS.items()
    }  # fmt: skip
    cases["refresh"] = [
        "refresh",
        f"--network={REFRESHED}",
        f"--schemes={SCHEMES}",
        "--send=mpi",
        f"--seconds={60 * scale:g}",
    ]
    for run in runs:
        cases[f"policy-{run.name}"] = [
            "policy", f"--run={run}", f"--schemes={SCHEMES}", "--batch=1,8", "--runtimes=torch,onnxruntime",
            f"--seconds={10 * scale:g}",
        ]  # fmt: skip
    return cases


def measure(name: str, arguments: list[str], directory: Path, plots: bool) -> None:
    """Run one case; its files appear only when it has succeeded."""
    command = [sys.executable, "-m", "accel", "bench", *arguments, f"--json={directory / name}.json"]
    if plots:
        command.append(f"--plot={directory / name}.png")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name}: accel bench ended with status {done.returncode}")
    (directory / f"{name}.txt").write_text(done.stdout)


def is_quiet(path: Path, least: float) -> bool:
    """Whether a case has rows, and other processes left it at least so much of the core."""
    if not path.exists():
        return False
    return min(row["cpu_share"] for row in json.loads(path.read_text())) >= least


def main() -> None:
    """Measure what is missing, then render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/actor_time"), help="where rows and tables go")
    parser.add_argument(
        "--only", nargs="*", metavar="CASE", help="only these cases; their names are printed as they run"
    )
    parser.add_argument("--run", nargs="*", type=Path, default=[], metavar="RUN", help="trained runs, for mismatch")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every case's measuring time")
    parser.add_argument("--quiet", type=float, default=0.0, help="measure again what had less of a core than this")
    parser.add_argument("--plots", action="store_true", help="also draw every case by itself")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    options = parser.parse_args()
    directory = options.output / "rows"
    directory.mkdir(parents=True, exist_ok=True)
    cases = commands(options.scale, options.run)
    unknown = sorted(set(options.only or ()) - set(cases))
    if unknown:
        raise SystemExit(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    for name, arguments in cases.items():
        wanted = not options.render and (options.only is None or name in options.only)
        if wanted and not is_quiet(directory / f"{name}.json", options.quiet):
            print(f"== {name}", flush=True)
            measure(name, arguments, directory, options.plots)
    render(options.output)


if __name__ == "__main__":
    main()
