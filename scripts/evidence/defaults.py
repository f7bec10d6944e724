#!/usr/bin/env python
"""Trains ten environments with no other option than their name, and Stable-Baselines3's PPO with its own defaults.

    python scripts/evidence/defaults.py
    python scripts/evidence/defaults.py --env Pendulum-v1 --system accel --seeds 1

Then it trains every other environment of gymnasium's classic-control, toy-text, Box2D and MuJoCo families with one
seed, beside random play. In the ten, both sides take the same number of environment steps. The score of a run is the
mean return of 30 greedy episodes of its last policy. The gain is the score less that of uniformly random actions; the
ratio of the gains is what the page is about.
OUT/runs.json.gz has each run's returns, command and commit. A run that is there, made by the same default algorithm, is
not made again: the command can be stopped and started. Needs stable-baselines3 for its side: pip install
stable-baselines3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.config.train import DEFAULT_ALGORITHM  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_machine  # noqa: E402
from scripts.evidence.samples import arguments, read_samples, write_samples  # noqa: E402

EPISODES = 30
SEEDS = 3
FIRST_SEED = 10_000  # of the episodes that count
T_95 = 2.045  # Student's t, 29 degrees of freedom, or more


@dataclass(frozen=True)
class Case:
    """The steps of a run, and of how many episodes its score is.

    Attributes:
        published: what rl-baselines3-zoo published for its tuned PPO.
        cut: steps of an episode where gymnasium sets no end: a greedy policy can walk in a circle there for ever.
        hard: why so few steps of PPO may not beat random play.
    """

    steps: int
    published: str = ""
    cut: int | None = None
    episodes: int = EPISODES
    hard: str = ""

    def arguments(self) -> dict[str, Any]:
        """What `gymnasium.make` takes beside the name."""
        return {"max_episode_steps": self.cut} if self.cut else {}


ZOO = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
CASES: Mapping[str, Case] = {
    "CartPole-v1": Case(60_000, "500 at 100 k"),
    "Acrobot-v1": Case(100_000, "-73.5 at 1 M"),
    "Pendulum-v1": Case(200_000, "-170 at 2 M (v0)"),
    "MountainCarContinuous-v0": Case(60_000, "88.3 at 20 k"),
    "LunarLander-v3": Case(300_000, "242 at 1 M (v2)"),
    "BipedalWalker-v3": Case(300_000, "213 at 5 M"),
    "InvertedDoublePendulum-v5": Case(200_000),
    "Hopper-v5": Case(300_000),
    "HalfCheetah-v5": Case(300_000),
    "Walker2d-v5": Case(300_000),
}
# Newest version each, steps of the one run. Images (CarRacing) get what minutes of a CPU allow, not what they need.
OTHERS: Mapping[str, Case] = {
    "MountainCar-v0": Case(100_000),
    "Blackjack-v1": Case(100_000, episodes=2000),  # of one hand each, won or lost
    "CliffWalking-v1": Case(100_000, cut=1000),
    "CliffWalkingSlippery-v1": Case(100_000, cut=1000),
    "FrozenLake-v1": Case(100_000),
    "FrozenLake8x8-v1": Case(100_000, hard="the one reward is at the goal, which random play does not meet"),
    "Taxi-v4": Case(200_000),
    "BipedalWalkerHardcore-v3": Case(100_000),
    "CarRacing-v3": Case(20_000, hard="images, of which these are few: published runs take millions"),
    "LunarLanderContinuous-v3": Case(100_000),
    "Ant-v5": Case(100_000),
    "Humanoid-v5": Case(100_000),
    "HumanoidStandup-v5": Case(100_000),
    "InvertedPendulum-v5": Case(50_000),
    "Pusher-v5": Case(100_000),
    "Reacher-v5": Case(100_000),
    "Swimmer-v5": Case(100_000),
}
ALL = {**CASES, **OTHERS}
Run = dict[str, object]


def main() -> int:
    """Make the runs that are missing, then the page."""
    parser = arguments(__doc__, "defaults")
    parser.add_argument("--env", action="append", choices=list(ALL), help="default: all")
    parser.add_argument("--system", action="append", choices=["random", "sb3", "accel"], help="default: all three")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "ENV", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        system, env, seed = options.one
        made = {"random": random_run, "sb3": train_sb3, "accel": train_accel}[system](env, int(seed))
        print(json.dumps(made))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    for env in options.env or ALL:
        for system in options.system or ("random", "sb3", "accel"):
            if env in OTHERS and system == "sb3":
                continue
            for seed in range(1 if system == "random" or env in OTHERS else options.seeds):
                _keep(options.out, system, env, seed)
    print((options.out / "README.md").read_text())
    return 0


def _keep(out: Path, system: str, env: str, seed: int) -> None:
    """Make one run in a process of its own and add it to the samples, whoever else adds to them."""
    samples = out / "runs.json.gz"
    key = f"{env}-{system}-s{seed}"
    if _is_current(_read(samples).get(key)):
        return
    print(key, flush=True)
    command = [sys.executable, __file__, "--one", system, env, str(seed)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    runs = _read(samples) | {key: json.loads(made)}
    document = {"machine": describe_machine(read_machine()), "runs": dict(sorted(runs.items()))}
    write_samples(samples, document)
    write_atomically(out / "README.md", render(runs).encode())


def _is_current(run: Run | None) -> bool:
    """Whether a run is there, of the default algorithm if it is ours."""
    return run is not None and run.get("algorithm", DEFAULT_ALGORITHM) == DEFAULT_ALGORITHM


def _read(samples: Path) -> dict[str, Run]:
    return dict(read_samples(samples).get("runs", {}))


def random_run(env: str, seed: int) -> Run:
    """Uniform actions."""
    from scripts.evidence.worlds import play_at_random

    return {"returns": play_at_random(env, ALL[env].episodes, FIRST_SEED + seed, **ALL[env].arguments())}


def train_sb3(env: str, seed: int) -> Run:
    """Stable-Baselines3's PPO, MlpPolicy, nothing else set."""
    import gymnasium
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    start = time.perf_counter()
    model = stable_baselines3.PPO("MlpPolicy", env, seed=seed, device="cpu").learn(CASES[env].steps)
    seconds = time.perf_counter() - start
    world = gymnasium.make(env)
    returns = []
    for episode in range(EPISODES):
        observation, _ = world.reset(seed=FIRST_SEED + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = world.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return {
        "returns": returns,
        "training_return": mean(float(episode["r"]) for episode in model.ep_info_buffer or ()),
        "seconds": seconds,
        "env_steps": model.num_timesteps,
        "command": f'PPO("MlpPolicy", "{env}", seed={seed}, device="cpu").learn({CASES[env].steps})',
        "version": f"stable-baselines3 {stable_baselines3.__version__}",
    }


def train_accel(env: str, seed: int) -> Run:
    """`accel train --env ID`: only the length and the seed are set."""
    from accel import evaluate

    arguments = ["train", "--env", env, "--total-env-steps", str(ALL[env].steps), "--seed", str(seed)]
    for name, value in ALL[env].arguments().items():
        arguments += ["--env-arg", f"{name}={value}"]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "accel", *arguments, "--results-dir", scratch, "--name", "run"],
            check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(PROJECT)},
        )  # fmt: skip
        run = Path(scratch, "run")
        summary = json.loads((run / "summary.json").read_text())
        result = evaluate(run, episodes=ALL[env].episodes, seed=FIRST_SEED)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=True)
    return {
        "algorithm": DEFAULT_ALGORITHM,
        "returns": list(result.episodes.returns),
        "training_return": summary["return_mean"],
        "seconds": summary["training_s"],
        "env_steps": summary["env_steps"],
        "command": " ".join(["accel", *arguments]),
        "commit": commit.stdout.strip(),
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: one row an environment, losses included."""
    lines = [
        "# Defaults, beside Stable-Baselines3's", "",
        "`python scripts/evidence/defaults.py`; every return, command and commit is in `runs.json.gz`.",
        '`accel train --env ID` and `PPO("MlpPolicy", ID)`, nothing tuned on either side, equal environment steps.',
        f"Scores are means of {EPISODES} greedy episodes of the last policy, one for each seed. The ratio is our mean",
        f"gain over random play by theirs. The last column is [rl-baselines3-zoo]({ZOO})'s PPO, tuned, at more",
        "steps.", "",
        "| environment | steps | random | Stable-Baselines3, by seed | accel, by seed | ratio of gains | tuned |",
        "|---|---:|---:|---|---|---:|---|",
    ]  # fmt: skip
    for env, case in CASES.items():
        random, theirs, ours = (_scores(runs, env, system) for system in ("random", "sb3", "accel"))
        ratio = "not complete"
        if random and theirs and ours:
            gain, baseline = mean(ours) - random[0], mean(theirs) - random[0]
            ratio = f"{gain / baseline:.2f}" if baseline > 0 else f"{gain:+.0f} against {baseline:+.0f}"
            if len(theirs) < SEEDS or len(ours) < SEEDS:
                ratio += " (not complete)"
        cells = [", ".join(f"{score:.4g}" for score in scores) for scores in (random, theirs, ours)]
        lines.append(f"| {env} | {case.steps:,} | {' | '.join(cells)} | {ratio} | {case.published} |")
    lines += [
        "", "## gymnasium's other environments", "",
        "The same command, one seed: does the run end well, and is it better than random play? Intervals are",
        f"Student's t over {EPISODES} episodes ({OTHERS['Blackjack-v1'].episodes:,} of Blackjack), at 95 %: what one",
        "run is worth, not what the algorithm is. Where an algorithm is named, it was the default when the run was",
        "made.", "",
        "| environment | steps | random | accel | better than random |",
        "|---|---:|---:|---:|---|",
    ]  # fmt: skip
    for env, case in OTHERS.items():
        found = [runs.get(f"{env}-{system}-s0") for system in ("random", "accel")]
        cells, verdict = ["", ""], "not run"
        if all(found):
            random, ours = ([float(value) for value in run["returns"]] for run in found if run)  # type: ignore[attr-defined]
            cells = [f"{mean(scores):.4g} ± {_half_width(scores):.2g}" for scores in (random, ours)]
            gain, margin = mean(ours) - mean(random), math.hypot(_half_width(ours), _half_width(random))
            verdict = "yes" if gain > margin else "**no**" if gain < -margin else "not shown"
            if verdict != "yes" and case.hard:
                verdict += f"; hard: {case.hard}"
            if not _is_current(found[1]):
                verdict += f" ({found[1]['algorithm']})"  # type: ignore[index]
        lines.append(f"| {env} | {case.steps:,} | {' | '.join(cells)} | {verdict} |")
    return "\n".join([*lines, ""])


def _half_width(samples: Sequence[float]) -> float:
    """Of the mean's 95 % interval."""
    return T_95 * stdev(samples) / math.sqrt(len(samples))


def _scores(runs: Mapping[str, Run], env: str, system: str) -> list[float]:
    """Mean return of each seed's run."""
    found = [runs.get(f"{env}-{system}-s{seed}") for seed in range(100)]
    return [mean(run["returns"]) for run in found if run is not None and _is_current(run)]  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
