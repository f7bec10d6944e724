"""The two walks of ARCHITECTURE.md, by execution: which product files run between ``env.step`` and ``optimizer.step``,
and between ``optimizer.step`` and the actor's first action with the new policy.

    python scripts/walks.py [TRAIN_OPTION ...]

Trains with mpirun, one learner and one actor, each process under ``sys.setprofile``, and joins what they did by the
clock of the machine. The schedule has to be one whose actors wait for the policy, as the default's is: otherwise the
actor steps on meanwhile. A file is on a walk if a function of it runs in more than half of the cycles after start-up;
the others, which intervals of time and episodes' ends bring, are listed apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
VARIABLE = "ACCEL_WALKS"
ENV_STEP, OPTIMIZER_STEP, LOAD = "env.step", "optimizer.step", "load"
START_UP = 0.3
"""Share of a run's cycles that are left out."""
# Records come by the clock, at a profiled run's pace in every cycle unless they are rare.
OPTIONS = (
    "--launcher", "mpirun", "--env", "CartPole-v1", "--total-env-steps", "80000", "--actors", "1", "--seed", "1",
    "--log-interval-s", "60",
)  # fmt: skip

# What each process of the job runs before anything else. It stands alone: it is written to a folder on PYTHONPATH.
HOOK = """
import os, sys, threading, time

def _walk(folder, project):
    products = tuple(os.path.join(project, name) + os.sep for name in ("accel", "compressors", "correctors", "monitor"))
    output = open(os.path.join(folder, str(os.getpid())), "wb", buffering=0)  # threads share it
    known, last = {}, [""]

    def place(code):
        path = os.path.realpath(code.co_filename)
        inside = path.startswith(products) and code.co_name != "<module>"
        return os.path.relpath(path, project) if inside else ""

    def marker(frame, code, file):
        if code.co_name == "step" and file.startswith("accel/envs/"):
            return "env.step"
        if code.co_name == "step" and file == "accel/algorithms/optimizers.py":
            return "optimizer.step"
        return "load" if code.co_name == "load" and file == "accel/acting/policy.py" else ""

    def note(frame, event, argument):
        if event != "call":
            return
        code = frame.f_code
        file = known.get(code)
        if file is None:
            file = known[code] = place(code)
        if file:
            mark = marker(frame, code, file) if code.co_name in ("step", "load") else ""
            if mark or file != last[0]:
                last[0] = file
                output.write(f"{time.perf_counter_ns()}\\t{file}\\t{mark}\\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)

_walk(*os.environ["ACCEL_WALKS"].split(os.pathsep))
"""


def trace(options: Iterable[str]) -> list[tuple[int, str, str]]:
    """Train; what ran in all processes: nanoseconds, file, and what the call marks, if anything, in order."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(HOOK)
        (Path(folder) / "calls").mkdir()
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        environment = os.environ | {"PYTHONPATH": path, VARIABLE: f"{folder}/calls{os.pathsep}{PROJECT}"}
        command = [sys.executable, "-m", "accel", "train", *OPTIONS, "--results-dir", f"{folder}/runs", *options]
        subprocess.run(command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.DEVNULL)
        found = []
        for file in (Path(folder) / "calls").iterdir():
            lines = file.read_text().splitlines()[:-1]
            found += [line.split("\t") for line in lines]
    return sorted((int(time), file, mark) for time, file, mark in found)


def walks(calls: list[tuple[int, str, str]]) -> tuple[list[set[str]], list[set[str]]]:
    """The files of every cycle: from the last ``env.step`` before it to an ``optimizer.step``, and from the last
    ``optimizer.step`` before a policy is loaded to the next ``env.step``."""
    observation: list[set[str]] = []
    policy: list[set[str]] = []
    stepped = optimised = -1
    loaded = False
    for i, (_, _, mark) in enumerate(calls):
        if mark == OPTIMIZER_STEP:
            if stepped >= 0:
                observation.append({file for _, file, _ in calls[stepped : i + 1]})
            stepped, optimised, loaded = -1, i, False
        elif mark == LOAD:
            loaded = optimised >= 0
        elif mark == ENV_STEP:
            if loaded:
                policy.append({file for _, file, _ in calls[optimised:i]})
            stepped, optimised, loaded = i, -1, False
    return observation, policy


def main() -> None:
    """Print both walks."""
    _, options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()
    for name, cycles in zip(
        ("one observation, env.step to optimizer.step", "one policy, optimizer.step to the first action with it"),
        walks(trace(options)),
        strict=True,
    ):
        cycles = cycles[int(START_UP * len(cycles)) :]
        counts = Counter(file for files in cycles for file in files)
        always = sorted(file for file, count in counts.items() if count > len(cycles) / 2)
        print(f"{name}: {len(always)} files in most of {len(cycles)} cycles")
        print(*(f"    {file}" for file in always), sep="\n")
        print("  at times:", *(f"{file} ({count})" for file, count in sorted(counts.items()) if file not in always))


if __name__ == "__main__":
    main()
