"""``accel train``: preset, TOML file and flags become a config; the run's outcome is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro
from pydantic import Field, ValidationError

from accel.config import TrainConfig, load_preset, load_toml, preset_names
from accel.errors import AccelError, ConfigError
from accel.job import Job, check_config, process_started_at
from accel.launch import abort_job, learn, start
from accel.transport.launcher import LaunchInfo, detect_launch

_CLIPS = ("reward-clip", "max-publish-kl", "clip-rho", "clip-c", "clip-pg-rho", "max-gradient-norm", "target-kl")


class TrainOptions(TrainConfig):
    """Train a policy. Flags override the TOML file, which overrides the preset, which overrides the defaults.

    Started alone, mpirun is started with one learner and --actors actors; inside mpirun -n N or srun -n N the first
    rank learns and N-1 act. Ctrl-C or SIGTERM ends a run with a checkpoint; --resume goes on.
    """

    preset: str | None = Field(None, description=f"named configuration: {', '.join(preset_names())}")
    config: Path | None = Field(None, description="TOML file with any of the options below, as in a run's config.toml")
    resume: Path | None = Field(
        None, description="run directory to go on with, on its own options; flags override them"
    )


def main(arguments: Sequence[str]) -> int:
    """Parse, train, print; under a launcher only the first rank comes here."""
    info = detect_launch()
    try:
        job = parse(arguments, info)
    except AccelError as error:
        abort_job(info, error)
        raise
    except SystemExit as stop:
        abort_job(info, ConfigError("the command line is not valid" if stop.code else "only help was asked for"))
        raise
    summary = learn(job, info) if info.is_launched else start(job)
    if info.is_launched or job.config.actors == 0:
        print(summary.text(), flush=True)
    return 0


def parse(arguments: Sequence[str], info: LaunchInfo) -> Job:
    """Everything the command line asks for, validated. Raises ConfigError; SystemExit from --help."""
    argv = [_none(before, word) for before, word in zip(["", *arguments], arguments, strict=False)]
    sources = {name: _value(argv, name) for name in ("preset", "config", "resume")}
    values: dict[str, object] = {}
    if sources["resume"]:
        values |= load_toml(Path(sources["resume"]) / "config.toml") | {"name": Path(sources["resume"]).name}
    if sources["preset"]:
        values |= load_preset(sources["preset"])
    if sources["config"]:
        values |= load_toml(Path(sources["config"]))
    actors_given = _value(argv, "actors") is not None
    if info.is_launched and not actors_given:
        values["actors"] = max((info.size or 1) - 1, 1)
    defaults = TrainOptions.create(**values)
    try:
        options = tyro.cli(
            TrainOptions, prog="accel train", args=argv, default=defaults, config=(tyro.conf.UseAppendAction,)
        )
        fields = {name: getattr(options, name) for name in TrainConfig.model_fields}
    except ValidationError as error:
        raise ConfigError(str(error)) from None
    config = check_config(TrainConfig.create(**fields))
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not info.is_launched
    columns = shutil.get_terminal_size().columns if is_terminal else None
    return Job(config, options.resume, process_started_at(), columns, ("accel", "train", *arguments))


def _none(flag: str, word: str) -> str:
    return "None" if word.lower() == "none" and flag.removeprefix("--").replace("_", "-") in _CLIPS else word


def _value(argv: Sequence[str], name: str) -> str | None:
    """The value of --name or --name=value, before the real parser has its defaults."""
    for i, word in enumerate(argv):
        if word == f"--{name}" and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None
