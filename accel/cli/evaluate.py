"""``accel evaluate``: play a trained policy and print its return with an interval."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.display.arguments import argument
from accel.display.progress import open_progress
from accel.imports.policy_source import CLI, PolicySource
from accel.monitor.plain_text import without_controls
from accel.runs.evaluation import evaluate


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(PolicySource):
    """Play a trained policy, full or compressed, and report its return with an interval.

    The policy is that of a run, or your own: accel evaluate --policy ppo.zip --env CartPole-v1 --scheme int8 --baseline
    """

    scheme: Annotated[str | None, argument("compression scheme, such as int8; default: fp32")] = None
    artifact: Annotated[
        Path | None, tyro.conf.arg(help="play this artifact instead, such as RUN/policy/final.accel")
    ] = None
    episodes: Annotated[int, tyro.conf.arg(help="episodes, each from its own seed")] = 20
    seed: Annotated[int, tyro.conf.arg(help="seed of environments and action noise")] = 0
    sample: Annotated[bool, tyro.conf.arg(help="sample actions instead of taking the most likely ones")] = False
    baseline: Annotated[bool, tyro.conf.arg(help="also play full precision on the same seeds, and compare")] = False
    video: Annotated[Path | None, tyro.conf.arg(help="show one episode in this .mp4 or .gif file")] = None
    envs: Annotated[int, tyro.conf.arg(help="environments that play at once")] = 16
    json: Annotated[bool, tyro.conf.arg(help="print JSON, every single return included")] = False


def main(arguments: Sequence[str]) -> int:
    """Parse, play, print."""
    options = tyro.cli(EvaluateOptions, prog="accel evaluate", args=arguments, config=CLI)
    options.check_sampling(options.sample)
    with closing(open_progress(sys.stderr)) as progress:
        result = evaluate(
            options.load(),
            scheme=options.scheme,
            artifact=options.artifact,
            episodes=options.episodes,
            seed=options.seed,
            greedy=not options.sample,
            baseline=options.baseline,
            video=options.video,
            envs=options.envs,
            progress=progress,
        )
    print(json.dumps(result.to_json(), indent=2) if options.json else without_controls(result.text()))
    return 0
