#!/usr/bin/env python
"""Actor time per million environment steps, refresh times, and trained policies under every scheme, then rendered.

    python scripts/evidence/actor_time.py                      measure what is missing, then render
    python scripts/evidence/actor_time.py --budget-s 540       as much as fits; the same command goes on
    python scripts/evidence/actor_time.py --run RUN --run RUN  also mismatch and returns of these runs' policies
    python scripts/evidence/actor_time.py --only 'trained-*'   these cases alone; --list has their names
    python scripts/evidence/actor_time.py --render             render what there is
    python scripts/evidence/actor_time.py --quiet 0.95         measure again where others took part of the core

Every case is one command; its rows (each with command, commit, machine and versions) and its text stay under
results/actor_time/rows. Cases that have rows are skipped. Status 3: the budget is used and cases remain.
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

import numpy as np  # noqa: E402

from accel.bench.plots import figure  # noqa: E402
from accel.monitor.divergence import GREEDY_TOLERANCE  # noqa: E402
from accel.monitor.statistics import Interval, mean_interval  # noqa: E402
from accel.reports.plotting import save  # noqa: E402

Row = dict[str, Any]
Key = tuple[object, ...]

FULL_PRECISION = "fp32"
PAPER_RATIO = 4.13
HALVES = "fp16"
REPLACEMENTS = ("distill",)
REDUCTIONS = ("prune", "lowrank", *REPLACEMENTS)
LEAST_POLICY_SHARE = 1 / 3
QUIET = 0.9
SCHEMES = (
    "fp32,fp16,int8,int8(per_channel),int4,prune(0.5),prune(0.5)+int8,lowrank(0.25),lowrank(0.25)+int8,"
    "distill(64x2)+int8"
)
RECURRENT_SCHEMES = "fp32,int8"
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
"""Seconds that a benchmark takes beyond measuring, and that playing takes; with less time left none is started."""


@dataclass(frozen=True)
class Benchmark:
    """One command; its rows go to a file that is named after the case.

    Attributes:
        words: the command, without its output file. needs_s: with less time left it is not started.
    """

    name: str
    words: tuple[str, ...]
    needs_s: float


def benchmarks(scale: float) -> list[Benchmark]:
    """Every ``accel bench``; ``scale`` multiplies measuring time."""
    accel = ("-m", "accel", "bench")
    cases = []
    for name, (env, network, schemes, seconds) in ACTORS.items():
        words = ("actor", f"--env={env}", f"--network={network}", "--envs-per-actor=1,8", f"--schemes={schemes}")
        lasts_s = seconds * scale
        cases.append(Benchmark(f"actor-{name}", (*accel, *words, f"--seconds={lasts_s:g}"), lasts_s + SET_UP_S))
    words = ("refresh", f"--network={REFRESHED}", f"--schemes={SCHEMES}", f"--seconds={60 * scale:g}")
    return [*cases, Benchmark("refresh", (*accel, *words), 60 * scale + 2 * SET_UP_S)]


def studies(run: Path, episodes: int | None, directory: Path) -> Iterator[Benchmark]:
    """Mismatch and returns of one run's policy, one case per scheme; full precision goes first and decides between
    greedy and sampled actions. Students of image policies are left out, as 2,000 distillation steps take longer than
    all other cases.
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
        yield Benchmark(names[scheme], tuple(words), STUDY_S)


def label(run: Path) -> str:
    """What rows call a run: ``cartpole-int8-s0`` for RUNS/cartpole/int8-s0."""
    return f"{run.parent.name}-{run.name}"


def shown(path: Path) -> str:
    """A path as written in commands: relative to the project's root if inside it."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def measure(case: Benchmark, directory: Path, remaining_s: float) -> bool:
    """Run one case; its files appear only when it has succeeded. Returns False if the time ran out."""
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
            os.killpg(process.pid, signal.SIGKILL)  # including ranks that it may have started
            process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{case.name} ended with status {process.returncode}")
    if text:
        (directory / f"{case.name}.txt").write_text(text)
    return True


def is_done(path: Path, least_share: float) -> bool:
    """Whether a case has rows, measured with at least this share of a core."""
    if not path.exists():
        return False
    return min((row["cpu_share"] for row in json.loads(path.read_text()) if "cpu_share" in row), default=1.0) >= (
        least_share
    )


def work(cases: Iterable[Benchmark], directory: Path, deadline: float, quiet: float) -> list[str]:
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

    def cases() -> Iterator[Benchmark]:
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


def render(output: Path) -> None:
    """Write ``README.md`` and ``actor_time.png`` from the rows under ``output``."""
    directory = output / "rows"
    actors = _read(directory.glob("actor-*.json"))
    refreshes = _read(directory.glob("refresh*.json"))
    trained = _read(directory.glob("trained-*.json"))
    rows = actors + refreshes + trained
    if not rows:
        raise SystemExit(f"there are no rows under {directory}: measure first")
    sections = ["# Actor time, refresh times and trained policies", _conditions(rows)]
    if actors:
        sections += [_actor_section(actors), _split_section(actors)]
        title = f"Actor time (behind: times as fast as torch eager)\n{_conditions(actors)}".replace("*", "")
        save(figure("actor", actors, heading=title, unit="µs per environment step"), output / "actor_time.png")
        sections.append("![Actor time per environment step](actor_time.png)")
    if refreshes:
        sections.append(_refresh_section(refreshes))
    if trained:
        sections.append(_trained_section(trained))
    sections.append(_commands(rows))
    (output / "README.md").write_text("\n\n".join(sections) + "\n")
    print(f"wrote {output / 'README.md'}")


def _actor_section(rows: Sequence[Row]) -> str:
    schemes = _ordered(row["scheme"] for row in rows if row["runtime"] == "onnxruntime")
    heads = ["environment", "network", "envs", "alone", "torch eager", "onnxruntime fp32", *schemes]
    heads += ["best whole", "× torch", "× fp32", "best", "× torch", "× fp32", "limit", "policy's share on torch"]
    lines, passed, possible, counted = [], 0, 0, 0
    for cells in _groups(rows, ("env", "network", "envs")):
        on_onnxruntime = {row["scheme"]: row for row in cells if row["runtime"] == "onnxruntime"}
        sessions = on_onnxruntime | {row["scheme"]: row for row in cells if row["runtime"] == "native"}
        torch = next(row for row in cells if row["runtime"] == "torch")
        total = torch["us_per_env_step"]
        limit, share = total / torch["env_only_us"], torch["policy_us"] / total
        whole, best = (_fastest(sessions.values(), excluded) for excluded in (REDUCTIONS, REPLACEMENTS))
        if share >= LEAST_POLICY_SHARE:
            counted += 1
            passed += best["speedup_torch"] > PAPER_RATIO
            possible += limit > PAPER_RATIO
        line = [torch["env"], torch["network"], torch["envs"], _time(torch["env_only_us"]), _time(total)]
        line.append(_time(on_onnxruntime[FULL_PRECISION]["us_per_env_step"]))
        line += [_time(sessions[scheme]["us_per_env_step"]) if scheme in sessions else "–" for scheme in schemes]
        for chosen in (whole, best):
            line += [chosen["scheme"], f"{chosen['speedup_torch']:.2f}", f"{chosen['speedup_fp32']:.2f}"]
        lines.append([*line, f"{limit:.2f}", f"{share:.0%}"])
    text = (
        "## Seconds per million environment steps\n\n"
        "One actor process on one thread, the real loop; the same figure is µs per environment step. `alone`: the "
        "environment stepped by random actions, without a policy. A scheme's column is of compiled kernels where these "
        "run it, else of onnxruntime, as an actor chooses; `× fp32` is against onnxruntime's fp32. `best whole`: the "
        "fastest that keeps every unit of the network; `best`: the fastest but for distill, whose students are other "
        "networks, untrained here. fp16 computes as fp32 does, and is neither. `limit`: torch eager over the "
        "environment alone, which no policy can pass. A dash: the scheme refuses the network, as "
        "the text under rows/ explains, or was not asked for, as most are not with an LSTM.\n\n"
    )
    verdict = (
        f"\n\nThe policy is at least a third of actor time on torch eager in {counted} of {len(lines)} cells. The "
        f"environment would allow dividing actor time by more than {PAPER_RATIO} in {possible} of them; the best "
        f"scheme does so in {passed}."
    )
    return text + _table(heads, lines) + verdict


def _fastest(rows: Iterable[Row], excluded: tuple[str, ...]) -> Row:
    return min(
        (r for r in rows if not str(r["scheme"]).startswith((HALVES, *excluded))), key=lambda r: r["us_per_env_step"]
    )


def _split_section(rows: Sequence[Row]) -> str:
    heads = [
        "environment", "network", "envs", "runtime", "scheme", "µs", "10–90 %", "environment", "policy", "overhead",
        "alone ÷ actor", "Python µs a vector step", "core",
    ]  # fmt: skip
    lines = [
        [
            row["env"], row["network"], row["envs"], row["runtime"], row["scheme"], _time(row["us_per_env_step"]),
            f"{_time(row['us_per_env_step_low'])}–{_time(row['us_per_env_step_high'])}", _time(row["env_us"]),
            _time(row["policy_us"]), _time(row["overhead_us"]), f"{row['env_share']:.2f}",
            "–" if row["python_us_per_vector_step"] is None else f"{row['python_us_per_vector_step']:.1f}",
            f"{row['cpu_share']:.0%}",
        ]
        for row in rows
    ]  # fmt: skip
    return "## Where the time goes\n\nµs per environment step, medians and what they are made of.\n\n" + _table(
        heads, lines
    )


def _refresh_section(rows: Sequence[Row]) -> str:
    heads = [
        "network", "parameters", "scheme", "bind ms", "requantise ms", "serialise ms", "load ms",
        "learner's ms per million parameters",
        "schedule ms", "upkeep ms", "bytes", "call µs", "saves µs a step", "pays from steps", "on one core",
    ]  # fmt: skip
    lines = [
        [
            row["network"], f"{row['parameters']:,}", row["scheme"],
            *(_time(row[f"{name}_ms"]) for name in ("bind", "requantise", "serialise", "load")),
            f"{row['refresh_ms_per_million_parameters']:.2f}",
            *(_time(row.get(name)) for name in ("schedule_ms", "upkeep_ms")), f"{row['bytes']:,}", _time(row["us"]),
            f"{row['saving_us_per_env_step']:.2f}",
            *(_steps(row, name) for name in ("break_even_env_steps", "break_even_shared_env_steps")),
        ]
        for row in rows
    ]  # fmt: skip
    envs = rows[0]["envs"]
    text = (
        f"## Refresh\n\nFrom new weights to a loaded policy; {envs} environments an actor. `pays from`: environment "
        "steps between two refreshes from which on the faster call makes up for the slower refresh, on the actor, and "
        "where one core does everything else too, against fp32. `schedule` and `upkeep`: a publication's "
        "share, at default intervals, of students' training, selections, calibrations and looks for drift, which "
        "a worker's thread does beside the learner, and of copies, predictions and checks, for which the learner "
        "waits.\n\n"
    )
    return text + _table(heads, lines)


def _trained_section(rows: Sequence[Row]) -> str:
    heads = [
        "run", "environment", "network", "scheme", "bytes", "KL, nats", "ESS", "greedy actions agree", "mean return",
        "95 %", "− fp32, same seeds", "95 %", "told apart", "episodes", "actions",
    ]  # fmt: skip
    lines = []
    for cells in _groups(rows, ("run",)):
        full = next((row for row in cells if row["scheme"] == FULL_PRECISION), None)
        for row in sorted(cells, key=lambda row: row["scheme"] != FULL_PRECISION):
            line = [row["run"], row["env"], row["network"], row["scheme"]]
            lines.append([*line, *(["refused", *["–"] * 10] if "refused" in row else _trained_cells(row, full))])
    text = (
        "## Trained policies\n\nOne run a block, compressed after training, without fine-tuning (a student of distill "
        "was trained; image policies have none here). KL(fp32‖scheme), effective sample size and agreement of "
        f"greedy actions (the same choice; of continuous actions, every mean within {GREEDY_TOLERANCE:g} standard "
        "deviations) over observations that the policy meets, none of which calibrated it. Returns are of seeded "
        "episodes, the same for every scheme; sampled actions where greedy games repeat each other. The difference is "
        "paired by seed, with Student's 95 % interval; `told apart`: whether that interval leaves zero out. Every "
        "return is under rows/.\n\n"
    )
    return text + _table(heads, lines)


def _trained_cells(row: Row, full: Row | None) -> list[str]:
    cells = [f"{row['bytes']:,}", f"{row['kl']:.2e}", f"{row['ess']:.4f}", f"{row['greedy_agreement']:.1%}"]
    cells += [f"{row['return']:.4g}", f"{row['return_low']:.4g} to {row['return_high']:.4g}"]
    found = None if full is None or row is full else _paired(row, full)
    if found is None:
        cells += ["–", "–", "–"]
    else:
        apart = found.low > 0 or found.high < 0
        cells += [f"{found.estimate:+.4g}", f"{found.low:+.4g} to {found.high:+.4g}", "yes" if apart else "no"]
    repeated = "" if row["distinct_games"] == row["episodes"] else f", {row['distinct_games']} different"
    return [*cells, f"{row['episodes']}{repeated}", str(row["actions"])]


def _paired(row: Row, full: Row) -> Interval | None:
    """Mean difference by seed, where both played the same episodes in the same way."""
    if any(row[name] != full[name] for name in ("actions", "episodes", "seed")):
        return None
    return mean_interval(np.subtract(row["returns"], full["returns"]))


def _conditions(rows: Sequence[Row]) -> str:
    row = rows[0]
    versions = ", ".join(f"{name} {row[name]}" for name in ("python", "torch", "onnxruntime", "numpy", "gymnasium"))
    commits = _ordered(f"{str(r['commit'])[:10]}{' (with changes)' if r['dirty'] else ''}" for r in rows)
    least = min((r["cpu_share"] for r in rows if "cpu_share" in r), default=1.0)
    quiet = "" if least >= QUIET else " **Other processes were at work: measure again on a quiet machine.**"
    return (
        f"{row['cpu']}, {row['cores']} cores ({row['int8_flags']}); {versions}; one thread each, no spinning; commit "
        f"{', '.join(commits)}. Everything compared takes turns; medians. Least share of a core: {least:.0%}.{quiet}"
    )


def _commands(rows: Sequence[Row]) -> str:
    return "## Commands\n\n```\n" + "\n".join(_ordered(row["command"] for row in rows)) + "\n```"


def _steps(row: Row, name: str) -> str:
    if row["scheme"] == "fp32":
        return "–"
    return "never" if row[name] is None else f"{row[name]:,.0f}"


def _time(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    parts = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in parts)


def _read(paths: Iterable[Path]) -> list[Row]:
    return [row for path in sorted(paths) for row in json.loads(path.read_text())]


def _ordered(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _groups(rows: Sequence[Row], columns: Sequence[str]) -> list[list[Row]]:
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return list(groups.values())


if __name__ == "__main__":
    sys.exit(main())
