"""The job that the starting process passes to the learner's rank, as JSON."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import accel.errors as errors
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import AccelError, MissingExtraError
from accel.networks.text import parse_network
from accel.runs.directory import default_run_name
from accel.supervision.processes import process_started
from accel.system.extras import install_command, missing_distributions


@dataclass(frozen=True)
class Job:
    """One training run as asked for.

    Attributes:
        config: validated; its name is set.
        resume: the run directory to go on with, or None for a new run.
        started_at: Unix time at which the user's command started.
        columns: width of the user's terminal, or None when the output is not one.
        token: unlike that of any other job; a summary that carries it was written by this one.
        compressor_chosen: whether the user named the compressor, by a flag, a file or in Python.
    """

    config: TrainConfig
    resume: Path | None = None
    started_at: float = field(default_factory=time.time)
    columns: int | None = None
    command: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    compressor_chosen: bool = False

    @property
    def name(self) -> str:
        """The run's name."""
        return self.config.run.name or default_run_name(self.config.environment.env, self.config.run.seed)

    @property
    def path(self) -> Path:
        """Where the run's files are, or will be."""
        return self.resume or self.config.run.results_dir / self.name

    def for_observations(self, spec: EnvSpec) -> Self:
        """The same with the network that ``auto`` is for such observations.

        Raises:
            ConfigError: ``auto`` has no network for such observations.
        """
        network = str(parse_network(self.config.policy.network).for_observations(spec))
        return replace(self, config=self.config.replace(network=network))

    def to_text(self) -> str:
        """JSON; ``from_text`` restores an equal job."""
        resume = None if self.resume is None else str(self.resume)
        return json.dumps(vars(self) | {"config": self.config.to_json(), "resume": resume})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of ``to_text``; raises ConfigError."""
        value = json.loads(text)
        resume = None if value["resume"] is None else Path(value["resume"])
        config, command = TrainConfig.from_json(value["config"]), tuple(value["command"])
        return cls(**value | {"config": config, "resume": resume, "command": command})


def check_config(config: TrainConfig) -> TrainConfig:
    """Complete a validated config: canonical scheme and network texts, and a name.

    Raises:
        MissingExtraError: wandb is asked for and not installed.
        ConfigError: an unknown scheme, network or core; the message lists what there is.
    """
    from accel.tuning.choice import parse_choice

    choice = parse_choice(config.compression.compressor)
    if config.run.wandb is not None and (missing := missing_distributions("wandb")):
        raise MissingExtraError(f"wandb = '{config.run.wandb}' needs {', '.join(missing)}: {install_command('wandb')}")
    name = config.run.name or default_run_name(config.environment.env, config.run.seed)
    return config.replace(compressor=str(choice), network=str(parse_network(config.policy.network)), name=name)


def process_started_at(longest_start_s: float = 2.0) -> float:
    """Unix time at which the command started: this process's start by the kernel, interpreter's start-up included.

    A script that prepared something for longer and then became this process is not the command: then it is now.
    """
    now, ticks = time.time(), process_started(os.getpid())
    if not ticks:
        return now
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now - age_s if age_s < longest_start_s else now


def error_of_kind(kind: str, message: str) -> AccelError:
    """The error that an actor reported by name, to be raised on the learner."""
    found = getattr(errors, kind, None)
    return found(message) if isinstance(found, type) and issubclass(found, AccelError) else AccelError(message)
