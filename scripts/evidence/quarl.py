#!/usr/bin/env python
"""Return after rounding a trained policy to 2 to 16 bits, and after training with the rounding: QuaRL's table, on ours.

    python scripts/evidence/quarl.py                            (an hour of one core)
    python scripts/evidence/quarl.py --algorithm ppo --seeds 1

QuaRL (Krishnan et al., arXiv:1910.01055) compares post-training quantisation (PTQ) with quantisation-aware training
(QAT) for DQN, A2C, PPO and DDPG. Here `dqn`, `a2c` and `ppo` play CartPole-v1 and `d4pg` plays Pendulum-v1. Each seed
is trained once in full precision, whose policy is then rounded: in simulation as ``accel bench bits`` does, and as the
int8 graph that actors get, whose weights may have fewer bits. It is trained again with each ``qat`` scheme, whose
artifact at the run's end is played. OUT/runs.json has every episode's return, the commands, commits and machines. A run
that is there is not made again: the command can be stopped and started.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.bench.subject import trained_subject  # noqa: E402
from accel.bench.timing import torch_threads  # noqa: E402
from accel.compressors.quantisation.study import Simulation  # noqa: E402
from accel.runs.evaluation import evaluate  # noqa: E402
from accel.runs.loading import load_run  # noqa: E402
from accel.runs.playing import play  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402

EPISODES = 30
FIRST_SEED = 10_000  # of the episodes, which are the same for every policy
FULL, SIMULATED = "32", ("16", "8", "6", "4", "3", "2")
GRAPH_OPTIONS = {"8": "", "4": "(w4)", "3": "(w3)", "2": "(w2)"}  # of int8 and qat, by the bits of weights
ROWS = ("PTQ, weights", "PTQ, weights and activations", "PTQ, int8 graph", "QAT, int8 graph")
COLUMNS = (FULL, *SIMULATED)


@dataclass(frozen=True)
class Case:
    """The environment, a length at which the algorithm has learned it, and what else differs from its defaults."""

    env: str
    steps: int
    options: tuple[str, ...] = ()


SMALL_D4PG = (
    *("--network", "mlp:64x2", "--batch-size", "64"),
    *("--samples-per-insert", "32", "--envs-per-actor", "4"),
)
CASES: Mapping[str, Case] = {
    "ppo": Case("CartPole-v1", 60_000),
    "a2c": Case("CartPole-v1", 150_000),
    "dqn": Case("CartPole-v1", 30_000),
    "d4pg": Case("Pendulum-v1", 12_000, SMALL_D4PG),
}
Run = dict[str, Any]
Runs = dict[str, Run]
Returns = dict[str, dict[str, list[float]]]  # of episodes, by row and bits


def main() -> int:
    """Make the runs that are missing, one seed of all algorithms after another, and the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PROJECT / "results" / "quarl")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    samples = options.out / "runs.json"
    runs: Runs = json.loads(samples.read_text()) if samples.exists() else {}
    for seed in range(options.seeds):
        for scheme in ("fp32", *(f"qat{option}" for option in GRAPH_OPTIONS.values())):
            for algorithm in options.algorithm or CASES:
                if (key := f"{algorithm}-{scheme}-s{seed}") not in runs:
                    print(key, flush=True)
                    runs[key] = measure(algorithm, scheme, seed)
                    write_atomically(samples, json.dumps(runs, indent=1).encode())
                write_atomically(options.out / "README.md", render(runs).encode())
    print((options.out / "README.md").read_text())
    return 0


def measure(algorithm: str, scheme: str, seed: int) -> Run:
    """Train once and play what came of it: ``returns`` by row and bits, or ``refused``."""
    case = CASES[algorithm]
    words = ["train", "--algorithm", algorithm, "--env", case.env, *case.options, "--compressor", scheme]
    words += ["--total-env-steps", str(case.steps), "--seed", str(seed), "--actors", "0", "--learner-threads", "1"]
    made: Run = {"algorithm": algorithm, "scheme": scheme, "seed": seed, "command": shlex.join(["accel", *words])}
    made |= {"machine": describe_machine(read_machine())}
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "accel", *words, "--results-dir", scratch, "--name", "run"]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return made | {"refused": done.stderr.strip()[-500:]}
        run = Path(scratch, "run")
        summary = json.loads((run / "summary.json").read_text())
        made |= {name: summary[name] for name in ("env_steps", "training_s", "return_mean")}
        with torch_threads():
            return made | {"returns": _rounded(run) if scheme == "fp32" else _trained_with(run, scheme)}


def _trained_with(run: Path, scheme: str) -> Returns:
    """The artifact that an actor would have got last."""
    artifact = run / "policy" / "final.accel"
    played = evaluate(run, artifact=artifact, episodes=EPISODES, seed=FIRST_SEED)
    if played.scheme != scheme:
        raise RuntimeError(f"the run's last policy is {played.scheme}, not {scheme}")
    bits = {f"qat{option}": bits for bits, option in GRAPH_OPTIONS.items()}[scheme]
    return {ROWS[3]: {bits: played.episodes.returns.tolist()}}


def _rounded(path: Path) -> Returns:
    """The trained policy as it is, rounded in simulation, and as an int8 graph."""
    run = load_run(path)
    simulation = Simulation(run.policy, trained_subject(run).calibration)
    on_seeds = partial(play, run=run, episodes=EPISODES, seed=FIRST_SEED)
    full = on_seeds(run.policy).returns.tolist()
    found: Returns = {row: {FULL: full} for row in ROWS[:2]}
    for row, activations in ((ROWS[0], False), (ROWS[1], True)):
        for bits in SIMULATED:
            found[row][bits] = on_seeds(simulation.policy(int(bits), activations=activations)).returns.tolist()
    found[ROWS[2]] = {}
    for bits, option in GRAPH_OPTIONS.items():
        played = evaluate(run, scheme=f"int8{option}", episodes=EPISODES, seed=FIRST_SEED)
        found[ROWS[2]][bits] = played.episodes.returns.tolist()
    return found


def render(runs: Runs) -> str:
    """The page: one table, refusals, and where it was made."""
    lines = [_HEAD.format(episodes=EPISODES, d4pg=f"`{shlex.join(SMALL_D4PG)}`"), *_table(runs), ""]
    lines += [f"- `{key}` is refused: {run['refused']}" for key, run in runs.items() if "refused" in run]
    machines = sorted({f"{run['machine']['commit']}, {run['machine']['cpu']}" for run in runs.values()})
    return "\n".join([*lines, _SEEN, *(f"- Commit and machine: {machine}." for machine in machines), ""])


def _table(runs: Runs) -> Iterator[str]:
    yield f"| algorithm | seeds | quantised | {' | '.join(COLUMNS)} |"
    yield f"|---|---:|---|{'---:|' * len(COLUMNS)}"
    for algorithm, case in CASES.items():
        for row in ROWS:
            cells = [_scores(runs, algorithm, row, bits) for bits in COLUMNS]
            seeds = "/".join(sorted({str(len(scores)) for scores in cells if scores}))
            name = f"{algorithm}, {case.env}, {case.steps:,} steps"
            yield f"| {name} | {seeds} | {row} | {' | '.join(_cell(scores) for scores in cells)} |"


def _scores(runs: Runs, algorithm: str, row: str, bits: str) -> list[float]:
    """Mean return of each seed's run."""
    found = [run["returns"].get(row, {}) for run in runs.values() if run["algorithm"] == algorithm and "returns" in run]
    return [mean(returns[bits]) for returns in found if bits in returns]


def _cell(scores: list[float]) -> str:
    if not scores:
        return ""
    return f"{mean(scores):.4g} [{min(scores):.4g}, {max(scores):.4g}]"


_HEAD = """# Return at 2 to 32 bits, after training and in training

`python scripts/evidence/quarl.py`; every episode's return, commands, commits and machines are in `runs.json`.
QuaRL's question ([arXiv:1910.01055](https://arxiv.org/abs/1910.01055)) with algorithms of this project, `d4pg` where
QuaRL has DDPG. Each cell is the mean over seeds [least, greatest seed] of the mean return of {episodes} greedy
episodes, on the same seeds for every policy. Uniformly random actions get 20 on CartPole-v1, where 500 is the most, and
-1168 on Pendulum-v1 ([defaults](../defaults/README.md)). Options are the algorithms' defaults, but of `d4pg`:
{d4pg}.

- PTQ, weights: the full-precision policy with rounded weights, one scale a layer, simulated in floating point.
- PTQ, weights and activations: so are the inputs of layers; see `accel bench bits`.
- PTQ, int8 graph: what actors get with `int8`, `int8(w4)`, `int8(w3)`, `int8(w2)`. Bits are those of weights;
  activations keep 8. On a CPU without VNNI, as most runs of the first seed had, `int8` and `qat` give weights 7 bits;
  they stand under 8 too. `runs.json` has the CPU of each run.
- QAT, int8 graph: the same graph of a policy trained with it: `qat`, `qat(w4)`, `qat(w3)`, `qat(w2)`; activations keep
  8 bits here too. Each is a training of its own, of as many steps.

"""

_SEEN = """Written of three seeds of `ppo` and `a2c` and two of `dqn` and `d4pg`: differences include what another
training of the same kind differs by, and no cell shows what an algorithm is worth.

- CartPole-v1 has a ceiling. `ppo` stays at it down to 2 bits, so that nothing is to be seen of QAT there. `a2c` loses
  with 2 bits, much in one seed of three; trained with the rounding it stays at the ceiling in all three.
- `dqn` keeps its return down to 6 bits. At 4 one seed of two loses most of it, at 3 both lose, at 2 it is random.
  Trained with 4, 3 and 2 bits it reaches 427, 311 and 325 in the mean, where rounding leaves 290, 100 and 19; trained
  with 8 it is worse than rounded after training, in one seed much.
- `d4pg` keeps its return at 6 bits and more; at 4 one seed of two loses, at 3 both. Trained with 4 and 3 bits it does
  not lose. At 2 bits it is as bad as random actions, rounded after training or trained with rounding.
- No algorithm refused a scheme.

QuaRL's abstract (arXiv:1910.01055v4) says that policies can be quantised to 6 to 8 bits without loss and that QAT
consistently improves on PTQ. The first is what is seen here, but for 427 of 465 in one seed of `dqn` at 6 bits; the
second holds below 6 bits, where there is something to improve, and not for `dqn` at 8.

`qat` runs of `dqn` and `d4pg` are of the commit from which on their target networks round as well.
"""


if __name__ == "__main__":
    sys.exit(main())
