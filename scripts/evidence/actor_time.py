#!/usr/bin/env python
"""Actor time per million environment steps, refresh times, and trained policies under every scheme, then rendered.

    python scripts/evidence/actor_time.py                      measure what is missing, then render
    python scripts/evidence/actor_time.py --budget-s 540       as much as fits; the same command goes on
    python scripts/evidence/actor_time.py --run RUN --run RUN  also mismatch and returns of these runs' policies
    python scripts/evidence/actor_time.py --only 'trained-*'   these cases alone; --list has their names
    python scripts/evidence/actor_time.py --render             render what there is
    python scripts/evidence/actor_time.py --quiet 0.95         measure again where others took part of the core

Every case is one command; its rows (each with command, commit, machine and versions) and its text stay under
results/actor_time/rows. A case that has rows is left alone. Status 3: the budget is used and cases are left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from render_actor_time import render  # noqa: E402

SCHEMES = (
    "fp32,fp16,int8,int8(per_channel),int8-dynamic,int4,prune(0.5),prune(0.5)+int8,lowrank(0.25),lowrank(0.25)+int8,"
    "distill(64x2)+int8"
)
RECURRENT_SCHEMES = "fp32,int8-dynamic,int8"
# case: environment, network, schemes, measuring seconds
ACTORS = {
    "cartpole-64x2": ("CartPole-v1", "mlp:64x2", SCHEMES, 20),
    "cartpole-64x2-lstm64": ("CartPole-v1", "mlp:64x2+lstm:64", RECURRENT_SCHEMES, 10),
    "lunarlander-256x2": ("LunarLander-v3", "mlp:256x2", SCHEMES, 20),
    "halfcheetah-256x2": ("HalfCheetah-v5", "mlp:256x2", SCHEMES, 20),
    "halfcheetah-512x3": ("HalfCheetah-v5", "mlp:512x3", SCHEMES, 25),
    "halfcheetah-2048x3": ("HalfCheetah-v5", "mlp:2048x3", SCHEMES, 35),
    "pong-nature-cnn": ("ALE/Pong-v5", "nature-cnn", SCHEMES, 35),
    "pong-impala-resnet": ("ALE/Pong-v5", "impala-resnet", SCHEMES, 60),
}
REFRESHED = "mlp:64x2,mlp:256x2,mlp:512x3,mlp:2048x3,nature-cnn,impala-resnet"
SET_UP_S, STUDY_S = 45.0, 90.0
"""What a benchmark takes beside measuring, and what playing takes: with less than that left none is begun."""


@dataclass(frozen=True)
class Case:
    """One command; its rows go to a file that is named after the case.

    Attributes:
        words: the command, without where its rows go.
        needs_s: with less time left it is not begun.
    """

    name: str
    words: tuple[str, ...]
    needs_s: float


def benchmarks(scale: float) -> list[Case]:
    """Every ``accel bench``; ``scale`` multiplies measuring time."""
    accel = ("-m", "accel", "bench")
    cases = []
    for name, (env, network, schemes, seconds) in ACTORS.items():
        words = ("actor", f"--env={env}", f"--network={network}", "--envs-per-actor=1,8", f"--schemes={schemes}")
        lasts_s = seconds * scale
        cases.append(Case(f"actor-{name}", (*accel, *words, f"--seconds={lasts_s:g}"), lasts_s + SET_UP_S))
    words = ("refresh", f"--network={REFRESHED}", f"--schemes={SCHEMES}", "--send=mpi", f"--seconds={60 * scale:g}")
    return [*cases, Case("refresh", (*accel, *words), 60 * scale + 2 * SET_UP_S)]


def studies(run: Path, episodes: int | None, directory: Path) -> Iterator[Case]:
    """Mismatch and returns of one run's policy, a case a scheme; full precision goes first and says how all act.

    Students of image policies are left out: two thousand lessons take longer than everything else together.
    """
    network = tomllib.loads((run / "config.toml").read_text())["network"]
    schemes = [scheme for scheme in SCHEMES.split(",") if network.startswith("mlp") or "distill" not in scheme]
    names = {scheme: f"trained-{label(run)}-{re.sub(r'[^a-z0-9._]+', '-', scheme).strip('-')}" for scheme in schemes}
    full = directory / f"{names['fp32']}.json"
    for scheme in schemes:
        words = ["scripts/evidence/trained_policies.py", shown(run), f"--scheme={scheme}"]
        words += [] if episodes is None else [f"--episodes={episodes}"]
        if scheme != "fp32" and full.exists():
            words.append(f"--actions={json.loads(full.read_text())[0]['actions']}")
        yield Case(names[scheme], tuple(words), STUDY_S)


def label(run: Path) -> str:
    """What rows call a run: ``cartpole-int8-s0`` for RUNS/cartpole/int8-s0."""
    return f"{run.parent.name}-{run.name}"


def shown(path: Path) -> str:
    """A path as commands have it, from the project's root where it lies there."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def measure(case: Case, directory: Path, remaining_s: float) -> bool:
    """Run one case; its files appear only when it has succeeded. False: the time was up before it ended."""
    rows = directory / f"{case.name}.json"
    command = [sys.executable, *case.words, f"--json={shown(rows)}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=PROJECT, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=None if remaining_s == float("inf") else remaining_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it may have started
            process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{case.name} ended with status {process.returncode}")
    if text:
        (directory / f"{case.name}.txt").write_text(text)
    return True


def is_done(path: Path, least_share: float) -> bool:
    """Whether a case has rows, and other processes left it at least so much of the core while it was timed."""
    if not path.exists():
        return False
    return min((row["cpu_share"] for row in json.loads(path.read_text()) if "cpu_share" in row), default=1.0) >= (
        least_share
    )


def work(cases: Iterable[Case], directory: Path, deadline: float, quiet: float) -> list[str]:
    """Measure what is missing until the deadline; returns the names of what is left."""
    left = []
    for case in cases:
        if is_done(directory / f"{case.name}.json", quiet):
            continue
        remaining_s = deadline - time.monotonic()
        if remaining_s < case.needs_s:
            left.append(case.name)
            continue
        print(f"== {case.name}", flush=True)
        if not measure(case, directory, remaining_s):
            print(f"   not finished within the {remaining_s:.0f} s that were left", flush=True)
            left.append(case.name)
    return left


def main() -> int:
    """Measure what is missing, then render; status 3 when the budget is used and something is left."""
    options = parse()
    deadline = time.monotonic() + options.budget_s
    directory = options.output / "rows"
    directory.mkdir(parents=True, exist_ok=True)

    def cases() -> Iterator[Case]:
        yield from benchmarks(options.scale)
        for run in options.run:
            yield from studies(run, options.episodes, directory)

    names = [case.name for case in cases()]
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in options.only)]
    if not chosen:
        raise SystemExit(f"no case is called {' or '.join(options.only)}; there are {', '.join(names)}")
    if options.list:
        for name in chosen:
            print(f"{'done' if is_done(directory / f'{name}.json', options.quiet) else 'left'} {name}")
        return 0
    wanted = (case for case in cases() if not options.render and case.name in chosen)
    left = work(wanted, directory, deadline, options.quiet)
    if any(directory.glob("*.json")):
        render(options.output)
    if left:
        print(f"{len(left)} cases are left, {', '.join(left[:3])} first: give the same command again")
    return 3 if left else 0


def parse() -> argparse.Namespace:
    """The command line, with absolute paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PROJECT / "results/actor_time", help="where rows and tables go")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="CASE", help="only these; * stands for anything")
    parser.add_argument(
        "--run", action="append", type=Path, default=[], metavar="RUN", help="a trained run; repeatable"
    )
    parser.add_argument("--episodes", type=int, help="of each trained policy, 20 at least; default: 48, images 20")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="stop after so long and keep what is done")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every benchmark's measuring time")
    parser.add_argument("--quiet", type=float, default=0.0, help="measure again what had less of a core than this")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--list", action="store_true", help="say what is done and what is left")
    options = parser.parse_args()
    options.output = options.output.resolve()
    options.run = [run.resolve() for run in options.run]
    if missing := [str(run) for run in options.run if not (run / "config.toml").is_file()]:
        parser.error(f"no run's directory: {', '.join(missing)}")
    if len({label(run) for run in options.run}) < len(options.run):
        parser.error("two runs have the same directory and name: rows are kept by these")
    return options


if __name__ == "__main__":
    sys.exit(main())
