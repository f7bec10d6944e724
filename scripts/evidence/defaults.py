#!/usr/bin/env python
"""Trains ten environments with no other option than their name, and Stable-Baselines3's PPO with VecNormalize.

    python scripts/evidence/defaults.py
    python scripts/evidence/defaults.py --env Pendulum-v1 --system accel --seeds 1

Then it trains every other environment of gymnasium's classic-control, toy-text, Box2D and MuJoCo families with one
seed, beside random play. In the ten, both sides take the same environment steps in batches of the same size, and as
many optimiser steps. The score of a run is the mean return of 30 greedy episodes of its last policy. The gain is the
score less that of uniformly random actions; the page is about our gain by the mean of theirs.
OUT/runs.json.gz has each run's returns, command and commit. A run that is there, made by the same command, is not made
again: this can be stopped and started. Needs stable-baselines3 for its side: pip install stable-baselines3.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.config.train import DEFAULT_ALGORITHM  # noqa: E402
from accel.reports.aggregates import interquartile_mean, stratified_bootstrap  # noqa: E402
from accel.system.atomic import write_atomically  # noqa: E402
from accel.system.machine import describe_machine, read_source  # noqa: E402
from scripts.evidence.samples import arguments, read_samples, write_samples  # noqa: E402

EPISODES = 30
SEEDS = 10
FIRST_SEED = 10_000  # of the episodes that count
T_95 = 2.045  # Student's t, 29 degrees of freedom, or more
SB3_ENVS = 8
SB3: Mapping[str, Any] = {"n_steps": 256, "batch_size": 64, "n_epochs": 10}
"""As many steps in a batch, and optimiser steps, as the default takes; all else is PPO's own default."""


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
    "Pendulum-v1": Case(100_000, "-170 at 2 M (v0)"),
    "MountainCarContinuous-v0": Case(60_000, "88.3 at 20 k"),
    "LunarLander-v3": Case(100_000, "242 at 1 M (v2)"),
    "BipedalWalker-v3": Case(100_000, "213 at 5 M"),
    "InvertedDoublePendulum-v5": Case(100_000),
    "Hopper-v5": Case(100_000),
    "HalfCheetah-v5": Case(100_000),
    "Walker2d-v5": Case(100_000),
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
Run = dict[str, Any]


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
    for seed in range(options.seeds):
        for env in options.env or ALL:
            for system in options.system or ("random", "sb3", "accel"):
                if (env in CASES or system != "sb3") and seed < _seeds(system, env, options.seeds):
                    _keep(options.out, system, env, seed)
    print((options.out / "README.md").read_text())
    return 0


def _seeds(system: str, env: str, seeds: int) -> int:
    """How many runs a row has."""
    return 1 if system == "random" or env in OTHERS else seeds


def _keep(out: Path, system: str, env: str, seed: int) -> None:
    """Make one run in a process of its own and add it to the samples, whoever else adds to them."""
    samples = out / "runs.json.gz"
    key = f"{env}-{system}-s{seed}"
    if _read(samples).get(key, {}).get("command") == _command(system, env, seed):
        return
    print(key, flush=True)
    command = [sys.executable, __file__, "--one", system, env, str(seed)]
    made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    runs = _read(samples) | {key: {"command": _command(system, env, seed), **made}}
    document = {"machine": describe_machine(), "runs": dict(sorted(runs.items()))}
    write_samples(samples, document)
    write_atomically(out / "README.md", render(runs).encode())


def _command(system: str, env: str, seed: int) -> str:
    """What makes a run: one of another command is made again."""
    if system == "random":
        return f"uniform actions in {env}, {ALL[env].episodes} episodes"
    if system == "accel":
        return " ".join(["accel", *accel_arguments(env, seed)])
    return f"PPO({json.dumps(SB3)}) in VecNormalize of {SB3_ENVS} {env}, {ALL[env].steps} steps, seed {seed}"


def _read(samples: Path) -> dict[str, Run]:
    return dict(read_samples(samples).get("runs", {}))


def play(env: str, first_seed: int, act: Callable[[Any, Any], Any]) -> list[float]:
    """Returns of an environment's episodes, each from a seed of its own; ``act`` gets world and observation."""
    import gymnasium

    world = gymnasium.make(env, **ALL[env].arguments())
    world.action_space.seed(0)
    returns = []
    for episode in range(ALL[env].episodes):
        observation, _ = world.reset(seed=first_seed + episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = world.step(act(world, observation))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def random_run(env: str, seed: int) -> Run:
    """Uniform actions."""
    return {"returns": play(env, FIRST_SEED + seed, lambda world, _: world.action_space.sample())}


def train_sb3(env: str, seed: int) -> Run:
    """Stable-Baselines3's PPO as its users run it: observations and rewards normalised, eight environments."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    start = time.perf_counter()
    worlds = VecNormalize(make_vec_env(env, SB3_ENVS, seed=seed))
    model = stable_baselines3.PPO("MlpPolicy", worlds, seed=seed, device="cpu", **SB3).learn(CASES[env].steps)
    seconds = time.perf_counter() - start

    def act(_: object, observation: Any) -> Any:  # noqa: ANN401
        return model.predict(worlds.normalize_obs(observation), deterministic=True)[0]

    return {
        "returns": play(env, FIRST_SEED, act),
        "training_return": mean(float(episode["r"]) for episode in model.ep_info_buffer or ()),
        "seconds": seconds,
        "env_steps": model.num_timesteps,
        "version": f"stable-baselines3 {stable_baselines3.__version__}",
    }


def accel_arguments(env: str, seed: int) -> list[str]:
    """`accel train --env ID`: only the length and the seed are set, and an end of episodes that have none."""
    arguments = ["train", "--env", env, "--total-env-steps", str(ALL[env].steps), "--seed", str(seed)]
    return arguments + [
        word for name, value in ALL[env].arguments().items() for word in ("--env-arg", f"{name}={value}")
    ]


def train_accel(env: str, seed: int) -> Run:
    """Train with the defaults; play the last policy greedily, and as it acts in training."""
    from accel import evaluate

    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch, "run")
        command = [
            sys.executable,
            "-m",
            "accel",
            *accel_arguments(env, seed),
            "--results-dir",
            scratch,
            "--name",
            "run",
        ]
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((run / "summary.json").read_text())
        greedy, sampled = (
            evaluate(run, episodes=ALL[env].episodes, seed=FIRST_SEED, greedy=greedy) for greedy in (True, False)
        )
    return {
        "algorithm": DEFAULT_ALGORITHM,
        "returns": list(greedy.episodes.returns),
        "sampled_returns": list(sampled.episodes.returns),
        "training_return": summary["return_mean"],
        "seconds": summary["training_s"],
        "env_steps": summary["env_steps"],
        "commit": read_source()["commit"],
    }


def render(runs: Mapping[str, Run]) -> str:
    """The page: the verdict over the ten, a row for each, then gymnasium's other environments; losses included."""
    rows, sides = [], []
    for env, case in CASES.items():
        random, theirs, ours = (_scores(runs, env, system) for system in ("random", "sb3", "accel"))
        ratio = "not run"
        if random and theirs and ours:
            gains = [[score - random[0] for score in side] for side in (ours, theirs)]
            sides.append(gains)
            ratio = str(stratified_bootstrap(gains, lambda drawn: float(drawn[0].mean() / drawn[1].mean())))
        sampled = [mean(run["sampled_returns"]) for run in _runs(runs, env, "accel")]
        cells = [*map(_listed, (random, theirs, ours)), _beside(ours, sampled), ratio]
        rows.append(f"| {env} | {case.steps:,} | {' | '.join(cells)} | {case.published} |")
    verdict = "No environment has runs of both sides."
    if sides:
        seeds = sorted({len(gains) for side in sides for gains in side})
        verdict = (
            f"**Interquartile mean of our gain by the mean of theirs, {len(sides)} environments, "
            f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds a side: "
            f"{stratified_bootstrap([gains for side in zip(*sides, strict=True) for gains in side], _ratios)}**"
        )
    lines = [
        "# Defaults, beside Stable-Baselines3's PPO with VecNormalize", "",
        "`python scripts/evidence/defaults.py`; every return, command and commit is in `runs.json.gz`.",
        f"`accel train --env ID`, nothing set, beside `PPO(**{dict(SB3)})` on {SB3_ENVS} environments in",
        "`VecNormalize` (observations and rewards): equal environment steps, batches and optimiser steps. The score of",
        f"a run is the mean of {EPISODES} greedy episodes of its last policy, its gain the score less random play's.",
        "Intervals are bootstrapped: both sides' seeds within each environment, at 95 % (rliable's definitions).",
        "What greedy actions score more than sampled ones is a mean over seeds, with its standard error.", "",
        verdict, "",
        "| environment | steps | random | Stable-Baselines3: mean (by seed) | accel: mean (by seed) "
        "| accel, sampled (greedy less it) | ratio of gains | [zoo, tuned](" + ZOO + ") |",
        "|---|---:|---:|---|---|---:|---|---|",
        *rows,
    ]  # fmt: skip
    lines += [
        "", "## gymnasium's other environments", "",
        "The same command, one seed: does the run end well, and is it better than random play? Intervals are",
        f"Student's t over {EPISODES} episodes ({OTHERS['Blackjack-v1'].episodes:,} of Blackjack), at 95 %: what one",
        "run is worth, not what the algorithm is.", "",
        "| environment | steps | random | accel | better than random |",
        "|---|---:|---:|---:|---|",
    ]  # fmt: skip
    for env, case in OTHERS.items():
        found = [runs.get(f"{env}-{system}-s0") for system in ("random", "accel")]
        cells, verdict = ["", ""], "not run"
        if all(found):
            random, ours = ([float(value) for value in run["returns"]] for run in found if run)
            cells = [f"{mean(scores):.4g} ± {_half_width(scores):.2g}" for scores in (random, ours)]
            gain, margin = mean(ours) - mean(random), math.hypot(_half_width(ours), _half_width(random))
            verdict = "yes" if gain > margin else "**no**" if gain < -margin else "not shown"
            if verdict != "yes" and case.hard:
                verdict += f"; hard: {case.hard}"
        lines.append(f"| {env} | {case.steps:,} | {' | '.join(cells)} | {verdict} |")
    return "\n".join([*lines, ""])


def _half_width(samples: Sequence[float]) -> float:
    """Of the mean's 95 % interval."""
    return T_95 * stdev(samples) / math.sqrt(len(samples))


def _runs(runs: Mapping[str, Run], env: str, system: str) -> list[Run]:
    """An environment's runs that today's command made, by seed."""
    found = [(seed, runs.get(f"{env}-{system}-s{seed}")) for seed in range(SEEDS)]
    return [run for seed, run in found if run is not None and run["command"] == _command(system, env, seed)]


def _scores(runs: Mapping[str, Run], env: str, system: str) -> list[float]:
    return [mean(run["returns"]) for run in _runs(runs, env, system)]


def _ratios(drawn: Sequence[Any]) -> float:
    """Interquartile mean of one side's gains by the mean gains of the other, whose environments follow."""
    half = len(drawn) // 2
    return interquartile_mean([ours / theirs.mean() for ours, theirs in zip(drawn[:half], drawn[half:], strict=True)])


def _beside(greedy: Sequence[float], sampled: Sequence[float]) -> str:
    """``468 (+183 ± 161)``: the mean of sampled scores, and what the greedy ones have more, with its standard error."""
    if len(sampled) < 2:
        return "".join(f"{score:.4g}" for score in sampled)
    more = [one - other for one, other in zip(greedy, sampled, strict=True)]
    return f"{mean(sampled):.4g} ({mean(more):+.4g} ± {stdev(more) / math.sqrt(len(more)):.3g})"


def _listed(scores: Sequence[float]) -> str:
    """``412 (500 324)``: the mean, and what each seed reached."""
    if not scores:
        return ""
    by_seed = f" ({' '.join(f'{score:.4g}' for score in scores)})" if len(scores) > 1 else ""
    return f"{mean(scores):.4g}{by_seed}"


if __name__ == "__main__":
    sys.exit(main())
