"""``accel compress``: write a policy as a compressed artifact, and compare its returns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from accel.compressors.scheme import parse_scheme
from accel.display.progress import open_progress
from accel.errors import ConfigError
from accel.imports.policy_source import CLI, PolicySource
from accel.monitor.plain_text import without_controls
from accel.runs.evaluation import evaluate
from accel.runs.finishing import finish
from accel.runs.playing import check_play
from accel.runs.quality import Quality, calibration_inputs, judged_inputs, measure_rows
from accel.system.atomic import write_atomically


@dataclass(frozen=True, kw_only=True)
class CompressOptions(PolicySource):
    """Compress a policy that exists: calibrate it while it plays, write the artifact, compare returns with fp32.

    The policy is that of a run, or your own, from Stable-Baselines3, CleanRL or any torch code:

    accel compress --policy ppo.zip --env CartPole-v1 --out policy.accel

    accel compress --module ppo:Agent --weights agent.safetensors --env CartPole-v1 --out policy.accel

    accel compress --policy policy.onnx --observations rows.npz --out policy.accel

    The artifact runs with numpy and onnxruntime (compressors.PolicySession); accel export writes a bundle for another
    machine, and accel bench policy times schemes.
    """

    out: Annotated[Path, tyro.conf.arg(help="artifact to write, such as policy.accel")]
    scheme: Annotated[str, tyro.conf.arg(help="compression scheme, such as int8, fp16 or prune(0.5)+int8")] = "int8"
    episodes: Annotated[
        int, tyro.conf.arg(help="episodes of the compressed and of the full policy on the same seeds; 0: none")
    ] = 20
    seed: Annotated[int, tyro.conf.arg(help="seed of calibration and episodes")] = 0
    sample: Annotated[bool, tyro.conf.arg(help="sample actions instead of taking the most likely ones")] = False


def main(arguments: Sequence[str]) -> int:
    """Parse, compress, play, print."""
    options = tyro.cli(CompressOptions, prog="accel compress", args=arguments, config=CLI)
    options.check_sampling(options.sample)
    check_play(options.episodes, options.seed, least=0)
    if options.out.is_dir():
        raise ConfigError(f"--out {options.out} is a directory: give a file, such as {options.out / 'policy.accel'}")
    scheme = str(parse_scheme(options.scheme))
    with closing(open_progress(sys.stderr)) as progress:
        policy = options.load()
        progress.begin(f"compressing as {scheme}")
        inputs = calibration_inputs(policy, scheme, options.seed, progress=progress)
        finished = finish(policy, scheme, inputs, progress=progress)
        artifact, whole = finished.artifact, finished.full
        content = artifact.to_bytes()
        try:
            write_atomically(options.out, content)
        except OSError as error:
            raise ConfigError(f"cannot write {options.out}: {error.strerror or error}") from None
        lines = [
            f"{options.out}: {policy.architecture} as {artifact.scheme}, {len(content):,} bytes; fp32 has "
            f"{len(whole.to_bytes()):,}"
        ]
        if scheme != "fp32":
            lines.append(finished.cost)
        if policy.recorded is not None or not options.episodes:
            judged = judged_inputs(policy, options.seed, progress=progress)
            rows = measure_rows(policy, artifact, judged, whole)
            lines.append(Quality(artifact.scheme, rows).text())
        if policy.recorded is not None:
            lines.append("returns are not measured: there is no environment, only recorded observations")
        elif options.episodes:
            result = evaluate(
                policy,
                artifact=artifact,
                episodes=options.episodes,
                seed=options.seed,
                greedy=not options.sample,
                baseline=True,
                progress=progress,
            )
            lines.append(result.text())
    print(without_controls("\n".join(lines)))
    return 0
