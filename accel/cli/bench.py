"""``accel bench``: measure policies, actors, refreshes, bit widths, or learners here."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import tyro

from accel.bench import advice, tables
from accel.bench.checks import check_networks
from accel.bench.options import (
    ActorOptions,
    BitsOptions,
    EnvironmentOptions,
    LearnerOptions,
    Options,
    OutputOptions,
    PolicyOptions,
    RefreshOptions,
    integers,
    texts,
)
from accel.bench.rows import LEAST_CPU_SHARE, Row, number
from accel.config import TrainConfig
from accel.errors import ConfigError, MissingExtraError
from accel.system.atomic import write_atomically
from accel.system.extras import install_command, missing_distributions

if TYPE_CHECKING:
    from pathlib import Path

    from accel.runs.trained_policy import TrainedPolicy

_POLICY_NETWORKS = "mlp:64x2"
_ACTOR_ENV, _UNROLL_LENGTH = "CartPole-v1", 20
_WIDTH = 100  # of a file or pipe
_REFRESH_NETWORKS = "mlp:64x2,mlp:256x2,mlp:512x3"


@dataclass(frozen=True)
class Measured:
    """Rows and how to show them.

    Attributes:
        lines: recommendations.
        kind: names the plot's panels. unit: under its axes.
    """

    rows: list[Row]
    title: str
    columns: Sequence[tables.Column]
    lines: Sequence[str]
    kind: str
    unit: str


def main(arguments: Sequence[str]) -> int:
    """Parse, check where results go, measure, print, write."""
    _check_importable(arguments)
    options: OutputOptions = tyro.cli(
        Options,
        prog="accel bench",
        description="Measure on this machine. Alternatives are measured in turns (A B C A B C); medians and spread.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction, tyro.conf.OmitSubcommandPrefixes),
    )
    _check_outputs(options)
    refused: list[str] = []
    result = _measure(options, refused.append)
    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    print(tables.table_text(result.rows, result.columns, result.title, width))
    conditions = _conditions(result.rows[0])
    for line in [*refused, *conditions, *interference(result.rows), *result.lines]:
        print(textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    if options.json is not None:
        command = shlex.join(["accel", "bench", *arguments])
        write_atomically(options.json, encode([row | {"command": command} for row in result.rows]))
    if options.plot is not None:
        from accel.bench.plots import figure
        from accel.reports.plotting import save

        heading = "\n".join([result.title, "; ".join(conditions)])
        save(figure(result.kind, result.rows, heading=heading, unit=result.unit), options.plot)
    return 0


def _measure(options: OutputOptions, refuse: Callable[[str], None]) -> Measured:
    if isinstance(options, PolicyOptions):
        return _policy(options, refuse)
    if isinstance(options, ActorOptions):
        return _actor(options, refuse)
    if isinstance(options, RefreshOptions):
        return _refresh(options, refuse)
    if isinstance(options, BitsOptions):
        return _bits(options)
    if isinstance(options, LearnerOptions):
        return _learner(options, refuse)
    raise TypeError(f"unknown options {options!r}")


def _policy(options: PolicyOptions, refuse: Callable[[str], None]) -> Measured:
    from accel.bench.policy import bench_policy

    rows = bench_policy(
        _networks(options, options.network, _POLICY_NETWORKS),
        batches=integers(options.batch),
        schemes=texts(options.schemes),
        runtimes=texts(options.runtimes),
        spec=options.spec(),
        config=options.environment(),
        run=options.trained(),
        activation=options.activation,
        seconds=options.seconds,
        repeats=options.repeats,
        notify=refuse,
    )
    title = f"Policy: µs per call; inputs: {rows[0]['inputs']}; {rows[0]['weights']} weights"
    unit = "µs per call (annotated: × torch eager)"
    return Measured(rows, title, tables.POLICY, advice.advise_policy(rows), "policy", unit)


def _actor(options: ActorOptions, refuse: Callable[[str], None]) -> Measured:
    from accel.bench.actor import RUNTIMES, bench_actor
    from accel.bench.checks import SCHEMES
    from accel.runs.trained_policy import TrainedPolicy

    if options.run is not None and options.unroll_length is not None:
        raise ConfigError("--run brings its own unrolls: leave out --unroll-length")
    length = _UNROLL_LENGTH if options.unroll_length is None else options.unroll_length
    config, run = options.environment(_ACTOR_ENV, unroll_length=length), options.trained()
    if isinstance(run, TrainedPolicy):
        run = replace(run, config=run.config.replace(unroll_length=length))
    networks = _networks(options, options.network, _POLICY_NETWORKS)
    if options.inference == "central":
        return _inference(options, config, networks, run, refuse)
    if options.actors is not None:
        raise ConfigError("--actors is for --inference central: otherwise one actor is timed")
    rows = bench_actor(
        config,
        networks=networks,
        run=run,
        envs_per_actor=integers("1,8,64" if options.envs_per_actor is None else options.envs_per_actor),
        schemes=SCHEMES if options.schemes is None else texts(options.schemes),
        runtimes=RUNTIMES if options.runtimes is None else texts(options.runtimes),
        seconds=options.seconds,
        repeats=options.repeats,
        notify=refuse,
    )
    first = rows[0]
    title = (
        f"Actor: µs per environment step of {first['env']}, unrolls of {first['unroll_length']}, {first['weights']} "
        "weights"
    )
    unit = "µs per environment step (annotated: × torch eager)"
    return Measured(rows, title, tables.ACTOR, advice.advise_actor(rows), "actor", unit)


def _inference(
    options: ActorOptions,
    config: TrainConfig | None,
    networks: Sequence[str],
    run: Path | TrainedPolicy | None,
    refuse: Callable[[str], None],
) -> Measured:
    from accel.bench.inference import SCHEMES, bench_inference

    if options.runtimes is not None:
        raise ConfigError("--inference central compares actors with compressed policies: leave out --runtimes")
    rows = bench_inference(
        config,
        networks=networks,
        run=run,
        actors=2 if options.actors is None else options.actors,
        envs_per_actor=integers("8" if options.envs_per_actor is None else options.envs_per_actor),
        schemes=SCHEMES if options.schemes is None else texts(options.schemes),
        seconds=options.seconds,
        repeats=options.repeats,
        notify=refuse,
    )
    first = rows[0]
    title = (
        f"Inference: environment steps per second of {first['actors']} actors together, {first['env']}, unrolls of "
        f"{first['unroll_length']}"
    )
    unit = "environment steps per second (annotated: × local)"
    return Measured(rows, title, tables.INFERENCE, advice.advise_inference(rows), "inference", unit)


def _refresh(options: RefreshOptions, refuse: Callable[[str], None]) -> Measured:
    from accel.bench.refresh import bench_refresh

    rows = bench_refresh(
        _networks(options, options.network, _REFRESH_NETWORKS),
        envs=options.envs,
        schemes=texts(options.schemes),
        spec=options.spec(),
        config=options.environment(),
        run=options.trained(),
        activation=options.activation,
        seconds=options.seconds,
        repeats=options.repeats,
        notify=refuse,
    )
    title = (
        f"Refresh: ms from new weights to a loaded policy; environments: {options.envs}; {rows[0]['weights']} weights"
    )
    lines = [
        "per M: requantise and serialise per million parameters; schedule, upkeep: periodic work per publication, in a "
        "background thread and in the learner's",
        *advice.advise_refresh(rows),
    ]
    return Measured(rows, title, tables.REFRESH, lines, "refresh", "ms per refresh")


def _bits(options: BitsOptions) -> Measured:
    from accel.bench.bits import bench_bits

    rows = bench_bits(
        _networks(options, options.network, _POLICY_NETWORKS),
        bits=integers(options.bits),
        per_channel=options.per_channel,
        spec=options.spec(),
        config=options.environment(),
        run=options.trained(),
        activation=options.activation,
        episodes=options.episodes,
        seed=options.seed,
    )
    title = f"Bits, simulated in floating point; inputs: {rows[0]['inputs']}; {rows[0]['weights']} weights"
    return Measured(rows, title, tables.BITS, advice.advise_bits(rows), "bits", "KL from fp32 in nats, simulated")


def _learner(options: LearnerOptions, refuse: Callable[[str], None]) -> Measured:
    from accel.bench.learner import bench_learner
    from accel.bench.subject import default_spec, environment_spec

    spec, config, given = options.spec(), options.training(), _networks(options, options.network, _POLICY_NETWORKS)
    if options.run is not None:
        from accel.runs.loading import load_run

        options.environment()
        run = load_run(options.run)
        config, spec = run.config, run.spec
    networks = check_networks(given if config is None or options.network is not None else [config.policy.network])
    environment = config or options.environment()
    config = environment or TrainConfig.create(activation=options.activation)
    if spec is None and environment is not None:
        spec = environment_spec(environment)
    layouts = {default_spec(network) for network in networks} if spec is None else {spec}
    if len(layouts) > 1:
        raise ConfigError(
            f"{', '.join(networks)} take observations of different shapes: give --env, or --observation-shape and "
            "--actions, or one network"
        )
    rows = bench_learner(
        [options.changed(config.replace(network=network)) for network in networks],
        layouts.pop(),
        precisions=texts(options.precisions),
        seconds=options.seconds,
        repeats=options.repeats,
        notify=refuse,
    )
    first = rows[0]
    title = (
        f"Learner: µs per environment step; {first['T']} x {first['B']} steps, {first['algorithm']}, "
        f"passes: {first['passes']}, minibatches: {first['minibatches']}, {first['device']}"
    )
    lines = [
        *advice.advise_learner(rows),
        "compression gains nothing where the actors together are faster than the learner",
    ]
    return Measured(rows, title, tables.LEARNER, lines, "learner", "µs per environment step")


def _networks(options: EnvironmentOptions, given: str | None, default: str) -> list[str]:
    if given is not None and options.run is not None:
        raise ConfigError("--run brings its own network: leave --network out")
    return texts(default if given is None else given)


def _check_importable(arguments: Sequence[str]) -> None:
    """Raise ConfigError, before parsing, where an imported policy is given to a benchmark of training."""
    given = [word.partition("=")[0] for word in arguments]
    if "learner" in given[:1] and (flags := sorted({"--module", "--sb3"}.intersection(given))):
        raise ConfigError(
            f"bench learner times accel's training, and an imported policy has no learner: leave out {flags[0]}, or "
            "measure the policy with bench policy, actor, refresh or bits"
        )


def _check_outputs(options: OutputOptions) -> None:
    """Check before any work that both files can be written. Raises ConfigError, MissingExtraError."""
    for path in (options.json, options.plot):
        if path is None:
            continue
        directory = path.absolute().parent
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a directory")
        if not directory.is_dir():
            raise ConfigError(f"cannot write {path}: there is no directory {path.parent}")
        if not os.access(directory, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise ConfigError(f"cannot write {path}: permission denied")
    if options.plot is not None:
        if missing_distributions("report"):
            raise MissingExtraError(f"plots need matplotlib: {install_command('report')}")
        from accel.reports.plotting import checked_suffix

        checked_suffix(options.plot)


def _conditions(row: Row) -> list[str]:
    """Machine, versions and threads."""
    torch, runtime = f"torch {row['torch']}", f"onnxruntime {row['onnxruntime']}"
    if "torch_threads" in row:
        torch += f" ({_threads(row['torch_threads'])})"
    if "onnxruntime_threads" in row:
        runtime += f" ({_threads(row['onnxruntime_threads'])}, no spinning)"
    commit = f"commit {str(row['commit'])[:10]}{' with changes' if row['dirty'] else ''}"
    flags = f" with {row['int8_flags']}" if row["int8_flags"] else ""
    return [f"{row['cpu']}, {row['cores']} cores{flags}", f"{torch}, {runtime}; {commit}"]


def interference(rows: Sequence[Row]) -> list[str]:
    """A warning where other processes took much of the processor."""
    least = min((number(row, "cpu_share") for row in rows if "cpu_share" in row), default=1.0)
    if least > LEAST_CPU_SHARE:
        return []
    return [f"warning: this process got only {least:.0%} of a core at times; measure again on an idle machine"]


def _threads(count: object) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def encode(rows: Sequence[Row]) -> bytes:
    """A JSON list, with null for values that are not finite, which JSON cannot express."""
    finite = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    return (json.dumps(finite, indent=1, allow_nan=False) + "\n").encode()
