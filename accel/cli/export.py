"""``accel export``: write a compressed policy as a bundle for another machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from accel.display.arguments import argument
from accel.display.progress import open_progress
from accel.exporting.build import export
from accel.imports.policy_source import CLI, PolicySource

# what --cpu means to accel.compressors.cpu
_CPUS = {"this": None, "x86-vnni": ("vnni", "avx2"), "x86-avx2": ("avx2",), "arm": ("arm",)}


@dataclass(frozen=True, kw_only=True)
class ExportOptions(PolicySource):
    """Write a bundle: compressed and full model, contract, test vectors, reports, model card, a program that runs it.

    Everything is checked on its target first; a bundle that fails a gate is not written. The policy is that of a run,
    or your own: accel export --policy ppo.zip --env CartPole-v1 --out cartpole-int8
    """

    out: Annotated[Path, tyro.conf.arg(help="directory to write, which must not exist")]
    scheme: Annotated[
        str | None,
        argument("compression scheme, qat for its int8 graph; default: what the actors had, or int8"),
    ] = None
    format: Annotated[str, tyro.conf.arg(help="onnx, ort, openvino or c")] = "onnx"
    episodes: Annotated[int, tyro.conf.arg(help="episodes of the full and of the compressed policy; 0: none")] = 20
    seed: Annotated[int, tyro.conf.arg(help="seed of episodes and test inputs")] = 0
    sample: Annotated[bool, tyro.conf.arg(help="sample actions instead of taking the most likely ones")] = False
    max_return_loss: Annotated[
        float | None, tyro.conf.arg(help="greatest loss of mean return, as a share of full precision's, such as 0.05")
    ] = None
    max_mismatch: Annotated[
        float | None,
        tyro.conf.arg(help="greatest relative difference from the trained policy, such as 0.1"),
    ] = None
    accept_loss: Annotated[
        bool, tyro.conf.arg(help="write the bundle too where compression does not keep the policy")
    ] = False
    cpu: Annotated[
        Literal["this", "x86-vnni", "x86-avx2", "arm"], tyro.conf.arg(help="the CPU that is going to act, for int8")
    ] = "this"


def main(arguments: Sequence[str]) -> int:
    """Parse, export, print."""
    options = tyro.cli(ExportOptions, prog="accel export", args=arguments, config=CLI)
    options.check_sampling(options.sample)
    with closing(open_progress(sys.stderr)) as progress:
        bundle = export(
            options.load(),
            options.out,
            scheme=options.scheme,
            format=options.format,
            episodes=options.episodes,
            seed=options.seed,
            greedy=not options.sample,
            max_return_loss=options.max_return_loss,
            max_mismatch=options.max_mismatch,
            accept_loss=options.accept_loss,
            cpu=_CPUS[options.cpu],
            progress=progress,
        )
    print(bundle.text())
    return 0
