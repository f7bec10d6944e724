"""``accel sweep``: search compression policies with Optuna: of a trained policy, or in training (--config)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from accel.display.arguments import argument
from accel.errors import ConfigError
from accel.imports.policy_source import CLI, PolicySource
from accel.monitor.plain_text import without_controls

if TYPE_CHECKING:
    from accel.sweep.driver import SweepResult
    from accel.sweep.pareto import Candidate

_SEARCH = ("trials", "objectives", "seed", "storage", "study", "out")
_CANDIDATES = ("bits", "prune", "rank", "rows", "batch", "episodes", "sample", "max_kl")
_LISTS = {"objectives", "bits", "prune", "rank"}
_PARTS_OF_LATENCY = ("policy_us", "fp32_us", "latency_q1", "latency_q3")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PolicySource):
    """Search compression policies with Optuna.

    --run RUN, or your own policy (--policy or --module, with --env): per-layer compression of a trained policy, seconds
    per trial. --config FILE: whole training runs, with any fields of the configuration as search space. The same
    command, given again or several times at once, also under mpirun or as a Slurm array, works on the same study; a
    killed sweep continues where it stopped. With --population the fields change while members train.
    """

    run: Annotated[Path | None, tyro.conf.arg(help="run directory of a trained policy")] = None
    config: Annotated[Path | None, tyro.conf.arg(help="TOML file with [train], [space.FIELD] and [sweep]")] = None
    population: Annotated[
        int | None,
        tyro.conf.arg(
            help="with --config: number of members that train side by side; after each generation the last quarter "
            "takes over weights and options from the first, and changes the options"
        ),
    ] = None
    generations: Annotated[
        int | None, argument("generations of a population, equal parts of total_env_steps; default: 10")
    ] = None
    trials: Annotated[
        int | None,
        argument(
            "candidates in total, without repeated ones and those that cannot be built; default: 100 after, 20 in "
            "training"
        ),
    ] = None
    objectives: Annotated[
        str | None,
        tyro.conf.arg(
            help="comma-separated; after training: return,latency,bytes,kl,agreement; in training: return,"
            "env_steps_per_s,training_s,actor_s,bytes"
        ),
    ] = None
    constraint: Annotated[
        tuple[str, ...],
        tyro.conf.arg(help="such as latency<=50 or, after training, return>=0.95*fp32; may be repeated"),
    ] = ()
    seed: Annotated[int | None, argument("seed of sampler and episodes; default: 0")] = None
    storage: Annotated[
        str | None,
        argument("Optuna storage URL; default: journal:OUT/study.log; sqlite:///FILE is for one host"),
    ] = None
    study: Annotated[str | None, argument("the study's name in the storage; default: OUT's name")] = None
    out: Annotated[Path | None, argument("output directory; default: results/sweeps/NAME")] = None
    bits: Annotated[str | None, argument("number formats of a layer; default: fp32,int8,int4")] = None
    prune: Annotated[str | None, argument("shares of units to remove; default: 0,0.25,0.5,0.75")] = None
    rank: Annotated[str | None, argument("ranks as shares of the full one; default: 1,0.5,0.25")] = None
    rows: Annotated[int | None, argument("real observations for calibration and mismatch; default: 1024")] = None
    batch: Annotated[
        int | None,
        argument("observations per timed policy call, 1 for most devices; default: envs-per-actor"),
    ] = None
    episodes: Annotated[
        int | None, argument("seeded episodes per candidate that passes the screening; default: 16")
    ] = None
    sample: Annotated[bool, tyro.conf.arg(help="sample actions in episodes instead of taking the most likely ones")] = (
        False
    )
    max_kl: Annotated[
        float | None, argument("nats; candidates with a higher KL from fp32 are not played; default: 1")
    ] = None


def main(arguments: Sequence[str]) -> int:
    """Parse, sweep, print."""
    argv = list(arguments)
    options = tyro.cli(SweepOptions, prog="accel sweep", args=argv, config=CLI)
    policies = [name for name in ("run", "module", "policy") if getattr(options, name) is not None]
    if bool(policies) == (options.config is not None):
        raise ConfigError(
            "give --run RUN, or --policy or --module with --env, to sweep a trained policy, or --config FILE to sweep "
            "training runs"
        )
    options.check_sampling(options.sample and not options.config)
    if options.population is not None and options.config is None:
        raise ConfigError("--population trains, so it needs --config")
    if options.generations is not None and options.population is None:
        raise ConfigError("--generations are those of a --population")
    own = (*_CANDIDATES, *(field.name for field in fields(PolicySource)))
    given = [name for name in own if getattr(options, name) != getattr(SweepOptions, name)]
    if options.config is not None and given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')} needs --run, --policy or --module: trials of --config are training runs"
        )
    print(without_controls(_sweep(options, ("accel", "sweep", *argv))))
    return 0


def _sweep(options: SweepOptions, command: tuple[str, ...]) -> str:
    """Sweep as the options say; returns the result in a few lines."""
    from accel.sweep.driver import sweep_run, sweep_training
    from accel.sweep.population import sweep_population
    from accel.sweep.search import CandidateOptions, SearchOptions

    constraints = {"constraints": options.constraint} if options.constraint else {}
    search = SearchOptions.create({**_given(options, _SEARCH), **constraints}, "--")
    if options.config is None:
        candidates = CandidateOptions.create(_given(options, _CANDIDATES), "--")
        return result_text(sweep_run(options.load(), search, candidates, command=command))
    if options.population is None:
        return result_text(sweep_training(options.config, search, command=command))
    return sweep_population(
        options.config, options.population, options.generations or 10, search, command=command
    ).text()


def _given(options: SweepOptions, names: Sequence[str]) -> dict[str, object]:
    """The options that were given, lists as tuples."""
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    for name in _LISTS & given.keys():
        given[name] = tuple(word.strip() for word in str(given[name]).split(",") if word.strip())
    return given


def result_text(result: SweepResult) -> str:
    """The Pareto front, with the command that trains or exports each candidate, and where the rest is."""
    lines = [result.tally, f"Pareto front of {len(result.front)}:"]
    for place, row in enumerate(result.front):
        lines.append(f"  trial {row.number}: {row.label}\n    {_values(row)}")
        lines += [f"    accel train --config {result.configurations[place]}"] if result.configurations else []
        lines += [f"    {result.exports[place]}"] if result.exports else []
    return "\n".join([*lines, f"tables and plots: {result.directory}"])


def _values(row: Candidate) -> str:
    """Every metric; of a latency its ratio to fp32's too, instead of the two times behind it."""
    parts = []
    for name, value in row.values.items():
        if name in _PARTS_OF_LATENCY:
            continue
        fp32 = row.references.get("latency") if name == "latency" else None
        parts.append(f"{name} {value:.4g}" + ("" if fp32 is None else f" us ({value / fp32:.2f} of fp32's)"))
    return ", ".join(parts)
