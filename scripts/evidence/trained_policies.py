#!/usr/bin/env python
"""Effect of a scheme on a trained policy: mismatch on inputs that the policy meets, and returns on fixed seeds.

    python scripts/evidence/trained_policies.py runs/cartpole --scheme int8 --json int8.json

Neither depends on the load of the machine. Calibration and measurement play from different seeds. Actions are greedy;
where greedy games from different seeds repeat each other, as in Atari without sticky actions, they are sampled.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from accel.bench.rows import Row, provenance
from accel.bench.subject import Subject
from accel.bench.timing import torch_threads
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import CompressorError
from accel.errors import AccelError
from accel.monitor.statistics import mean_interval
from accel.runs.evaluation import compress_run
from accel.runs.loading import TrainedRun, load_run
from accel.runs.playing import Episodes, collect_inputs, play
from accel.system.atomic import write_atomically

LEAST_EPISODES = 20
GREEDY, SAMPLED = "greedy", "sampled"
_EPISODES, _IMAGE_EPISODES = 48, 20
_ROWS, _IMAGE_ROWS = 4096, 512
_CALIBRATION_SEED, _SEED = 0, 1
_ENVS = 10


def study(path: Path, scheme: str, episodes: int | None = None, actions: str | None = None) -> dict[str, object]:
    """One flat row, and every episode's return and length; or the reason why the scheme refuses the network.

    Args:
        path: the run's directory.
        scheme: the compression scheme.
        episodes: how many to play; None: 48, or 20 with images.
        actions: ``greedy`` or ``sampled``; None: greedy, unless such games repeat each other.
    Raises:
        AccelError: the run cannot be read, or its environment cannot be made.
    """
    run = load_run(path)
    place = path.resolve()
    row: Row = {
        "run": f"{place.parent.name}/{place.name}",
        "env": run.config.environment.env,
        "network": run.config.policy.network,
    }
    row |= {"scheme": scheme, "env_steps": run.env_steps, "trained_with": run.scheme}
    row |= provenance()
    try:
        artifact = compress_run(run, scheme, _CALIBRATION_SEED)
    except CompressorError as error:
        return {**row, "refused": str(error)}
    is_image = run.spec.is_image
    inputs = collect_inputs(run, _IMAGE_ROWS if is_image else _ROWS, _SEED)
    row |= {"bytes": len(artifact.to_bytes()), "rows": len(inputs["observations"])}
    row |= Subject(run, "trained", "environment", inputs, inputs).mismatch_of(artifact)
    how, played = _play(artifact, run, episodes or (_IMAGE_EPISODES if is_image else _EPISODES), actions)
    mean = mean_interval(played.returns)
    row |= {"return": mean.estimate, "return_low": mean.low, "return_high": mean.high}
    row |= {"episodes": len(played.returns), "distinct_games": played.distinct, "actions": how, "seed": _SEED}
    return {**row, "returns": played.returns.tolist(), "lengths": played.lengths.tolist()}


def _play(artifact: CompressedPolicy, run: TrainedRun, episodes: int, actions: str | None) -> tuple[str, Episodes]:
    if actions != SAMPLED:
        played = play(artifact, run, episodes=episodes, seed=_SEED, envs=_ENVS)
        if actions == GREEDY or played.caveat is None:
            return GREEDY, played
    return SAMPLED, play(artifact, run, episodes=episodes, seed=_SEED, greedy=False, envs=_ENVS)


def main() -> None:
    """Study one policy and write its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory")
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--episodes", type=int, help=f"at least {LEAST_EPISODES}; default: 48, or 20 with images")
    parser.add_argument("--actions", choices=(GREEDY, SAMPLED), help="default: sampled where greedy games repeat")
    parser.add_argument("--json", type=Path, required=True, help="where the row goes, in a JSON list")
    options = parser.parse_args()
    if options.episodes is not None and options.episodes < LEAST_EPISODES:
        parser.error(f"--episodes {options.episodes}: an interval wants at least {LEAST_EPISODES}")
    try:
        with torch_threads():
            row = study(options.run, options.scheme, options.episodes, options.actions)
    except (AccelError, CompressorError) as error:
        raise SystemExit(f"{options.run}, {options.scheme}: {error}") from None
    command = shlex.join(["python", "scripts/evidence/trained_policies.py", *sys.argv[1:]])
    write_atomically(options.json, (json.dumps([{**row, "command": command}], indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
