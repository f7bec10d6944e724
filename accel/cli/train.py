"""``accel train``: preset, TOML file and flags become a config; the run's outcome is printed."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import tyro
from pydantic.fields import FieldInfo

from accel.config import TrainConfig
from accel.config.base import takes_none
from accel.config.files import load_preset, load_toml, preset_names
from accel.config.parts import NetworkConfig
from accel.config.train import CHOICES, SYNONYMS, all_options, options_read, system_of, why_unread
from accel.display.arguments import argument
from accel.display.text import show
from accel.errors import AccelError, ConfigError
from accel.launch.forked import train_in_child
from accel.launch.learners import abort_job, learn
from accel.launch.outcome import WRITER_S, status_of, written_at
from accel.launch.starting import options_to_start
from accel.launch.train import is_local, start
from accel.runs.directory import STARTS, wait_for_writer
from accel.runs.job import Job, check_config, process_started_at
from accel.supervision.processes import killing_descendants
from accel.system.machine import usable_cores
from accel.transport.launcher import LaunchInfo, detect_launch

logger = logging.getLogger("accel")

DESCRIPTION = """Train a policy. Flags override the TOML file, which overrides the preset, which overrides the defaults.

Started alone, this starts mpirun with one learner (or --learners N) and --actors actors; --actors 0 trains in one
process. Inside mpirun -n N or srun -n N the first rank learns and N-1 act (see --learners and --inference for more).
Ctrl-C or SIGTERM ends a run with a checkpoint; --resume continues from it.

The options and defaults shown are those of the chosen algorithm; for another: accel train --algorithm dqn --help.
--help shows what people set, --help-all every option.

Examples:
  accel train --preset quickstart
  accel train --env HalfCheetah-v5 --network mlp:256x2 --total-env-steps 5000000
  mpirun -n 3 accel train --config run.toml --seed 1      (a core for each rank)
"""
_SOURCES = {
    "preset": (str | None, f"named configuration: {', '.join(preset_names())}"),
    "config": (Path | None, "TOML file with any of the options below, as in a run's config.toml"),
    "resume": (Path | None, "run directory to go on with, on its own options; flags override them"),
}
_SHOWN = frozenset(
    {
        *("env", "env_arg", "wrapper", "backend", "squash_actions", "reward_clip", "normalise_rewards"),
        *("actors", "envs_per_actor", "env_workers", "unroll_length", "inference", "hosts"),
        *("network", "activation", "normalise_observations", "init_from", "compressor"),
        *("algorithm", "algorithm_arg", "discount", "lambda_", "entropy_cost", "corrector", "passes", "minibatches"),
        *("clip_ratio", "n_step", "final_epsilon", "exploration_env_steps", "noise"),
        *("target_interval_updates", "target_rate", "learning_rate", "learning_rate_schedule", "max_gradient_norm"),
        *("batch_unrolls", "replay_capacity", "batch_size", "sequence_unrolls", "samples_per_insert"),
        *("learning_starts", "learners", "device", "mixed_precision"),
        *("total_env_steps", "stop_at_return", "max_seconds", "seed", "results_dir", "name", "evaluate_every"),
    }
)
"""Options that ``--help`` shows; ``--help-all`` shows the others too."""
_OPTIONAL = frozenset(name for name, field in all_options().items() if takes_none(field))
_WHOLE = re.compile(r"([\d_]+(?:\.\d*)?(?:e\+?\d+)?)([kM]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_ACTORS_PER_CORE = 2
_TITLES = {
    "environment": "the environments",
    "rewards": "transforms of rewards before learning",
    "acting": "actors: how many, where, how they step",
    "policy": "the network",
    "compression": "how the acting policy is compressed and validated",
    "algorithm": "what is trained and what an update does",
    "optimiser": "the optimiser",
    "store": "when experience is used, and used again",
    "schedule": "when the learner updates and publishes",
    "learner": "where and how the learner computes",
    "run": "when the run ends, where it is kept",
}


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
    is_alone = job.config.acting.actors == 0 and info.size == 1
    is_here = is_alone or (not info.is_launched and is_local(job.config))
    if info.is_launched and not is_alone:
        summary = learn(job, info)
    else:
        starts = job.path / STARTS
        before = written_at(starts)
        # Where nothing began, whoever writes to the directory is another job.
        with killing_descendants(lambda: wait_for_writer(job.path, WRITER_S) if written_at(starts) != before else None):
            if is_here and sys.platform.startswith("linux"):
                return train_in_child(job)
            summary = start(job, leave=os._exit)
    if info.is_launched or is_here:
        show(f"{summary.text()}\n")
    return status_of(summary)


def parse(arguments: Sequence[str], info: LaunchInfo) -> Job:
    """Everything the command line asks for, validated. Raises ConfigError; SystemExit from --help."""
    argv = [_flag_of(word) for word in arguments]
    argv = _requeued([_read_word(before, word) for before, word in zip(["", *argv], argv, strict=False)])
    sources = {name: _value(argv, name) for name in _SOURCES}
    values: dict[str, object] = {}
    if sources["resume"]:
        values |= load_toml(Path(sources["resume"]) / "config.toml")
    chosen_kinds = {kind: value for kind in CHOICES if (value := _value(argv, kind)) is not None}
    if _value(argv, "backend") == "device":  # Has defaults of its own.
        chosen_kinds |= {name: value for name in ("backend", "env") if (value := _value(argv, name)) is not None}
    if sources["preset"]:
        preset = load_preset(sources["preset"])
        # Another algorithm on top of a preset takes what it reads of it.
        values |= options_read(preset, chosen_kinds) if "algorithm" in chosen_kinds else preset
    file = load_toml(Path(sources["config"])) if sources["config"] else {}
    values |= file
    if sources["resume"]:
        _check_place(Path(sources["resume"]), _value(argv, "name"), _value(argv, "results-dir"))
        values["name"] = Path(sources["resume"]).resolve().name
    if info.is_launched and _value(argv, "actors") is None:
        learners = _value(argv, "learners") or str(values.get("learners", 1))
        system = system_of({**values, **chosen_kinds})
        inference = _value(argv, "inference") or values.get("inference", system.get("inference"))
        others = (int(learners) if learners.isdigit() else 1) * (2 if inference == "central" else 1)
        values["actors"] = max((info.size or 1) - others, 1)
    defaults = TrainConfig.create(**values | chosen_kinds)
    before = defaults.options()
    given = _parse_flags(argv, defaults)
    if given["init_from"] is not None and given["resume"] is None:
        asked = {name: _merged(name, value, before.get(name)) for name, value in given.items() if name not in _SOURCES}
        found = options_to_start(TrainConfig.create(**asked))
        values = found | values | {name: found[name] for name in NetworkConfig.model_fields if name in found}
        defaults = TrainConfig.create(**values | chosen_kinds)
        before = defaults.options()
        given = _parse_flags(argv, defaults)
    resume = given.pop("resume")
    chosen = {name: _merged(name, value, before.get(name)) for name, value in given.items() if name not in _SOURCES}
    for derived in ("batch_unrolls", "compressor"):
        if derived not in values and _value(argv, derived.replace("_", "-")) is None:
            chosen.pop(derived, None)
    config = check_config(TrainConfig.create(**chosen))
    _warn_of_actors(config, info)
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not info.is_launched
    columns = shutil.get_terminal_size().columns if is_terminal else None
    return Job(
        config,
        resume,  # type: ignore[arg-type]
        process_started_at(),
        columns,
        ("accel", "train", *arguments),
        compressor_chosen="compressor" in file or _value(argv, "compressor") is not None,
    )


def _requeued(argv: list[str]) -> list[str]:
    """The arguments of a job that Slurm has started again: it goes on with the run of its name.

    A start that ended before its first checkpoint leaves a run that nobody can go on with: the next one has the number
    of the restart behind its name.
    """
    name, restarts = _value(argv, "name"), os.environ.get("SLURM_RESTART_COUNT", "")
    if not name or not restarts.isdigit() or int(restarts) == 0 or _value(argv, "resume"):
        return argv
    root = Path(_value(argv, "results-dir") or TrainConfig.create().run.results_dir)
    names = [name, *(f"{name}-{number}" for number in range(1, int(restarts) + 1))]
    for candidate in reversed(names):
        if any((root / candidate / "checkpoints").glob("*.safetensors")):
            logger.info("job started again by Slurm: going on with %s", root / candidate)
            return [*argv, "--name", candidate, "--resume", str(root / candidate)]
    return [*argv, "--name", names[-1]] if (root / name).exists() else argv


def _check_place(run: Path, name: str | None, results_dir: str | None) -> None:
    """Raise ConfigError where flags want a resumed run to be elsewhere than it is."""
    place = run.resolve()
    wanted = (place.parent if results_dir is None else Path(results_dir).resolve()) / (name or place.name)
    if wanted == place or name == "None":
        return
    flags = " ".join(f"{flag} {value}" for flag, value in (("--name", name), ("--results-dir", results_dir)) if value)
    raise ConfigError(
        f"{flags}: a resumed run stays in its directory, {run}: leave that out; or copy the directory first, and go on "
        f"with the copy: cp -r {shlex.quote(str(run))} {shlex.quote(str(wanted))}"
    )


def _parse_flags(argv: Sequence[str], defaults: TrainConfig) -> dict[str, object]:
    """Every option that the run reads, by name. Raises ConfigError for a flag that only other choices read.

    tyro reads types only; what values mean is the config's own business, whose messages are in our words. It would add
    what repeated flags give to their default, so that these have none here; see ``_merged``.
    """
    before, descriptions = defaults.options(), defaults.descriptions()
    for word in argv:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        name = next((known for known in (name, f"{name}_", name.removeprefix("no_")) if known in all_options()), "")
        if word.startswith("--") and name and name not in before:
            models = {part: type(model) for part, model in defaults.parts.items()}
            raise ConfigError(f"--{name.rstrip('_').replace('_', '-')}: {why_unread(name, models)}")
    rows: list[tuple[str, object, object]] = [
        (name, Annotated[kind, tyro.conf.arg(help=description)], dataclasses.field(default=None))
        for name, (kind, description) in _SOURCES.items()
    ]
    groups: list[tuple[str, object, object]] = []
    is_help, shows_all = not {"-h", "--help", "--help-all"}.isdisjoint(argv), "--help-all" in argv
    for part, model in defaults.parts.items():
        shown = {n: f for n, f in type(model).model_fields.items() if n in _SHOWN or shows_all or not is_help}
        if not shown:
            continue
        fields = [_flag(name, field, descriptions[name], before[name]) for name, field in shown.items()]
        group = dataclasses.make_dataclass(part.capitalize(), fields, frozen=True)
        group.__doc__ = _TITLES[part]
        groups.append((part, group, dataclasses.field(default_factory=group)))
    target = dataclasses.make_dataclass("TrainOptions", [*rows, *groups], frozen=True)
    config = (tyro.conf.UseAppendAction, tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)
    words = ["--help"] if is_help else argv
    parsed: object = tyro.cli(target, prog="accel train", description=DESCRIPTION, args=words, config=config)
    found: dict[str, object] = {name: getattr(parsed, name) for name in _SOURCES}
    for part in defaults.parts:
        found |= vars(getattr(parsed, part))
    return found


def _flag(name: str, field: FieldInfo, description: str, before: object) -> tuple[str, object, object]:
    """One option of the command line, with what a preset or a file has as its default."""
    option = argument(description, value=before, name=name.rstrip("_"))
    kind = str if name in CHOICES else field.annotation
    default: object = () if isinstance(before, tuple) else before
    return name, Annotated[kind, option], dataclasses.field(default=default)


def _merged(name: str, given: object, before: object) -> object:
    """Repeated flags take the place of what a preset, a file or a resumed run has; k=v pairs that of their own keys."""
    if not isinstance(given, tuple) or not isinstance(before, tuple):
        return given
    if name == "env_arg":
        keys = {pair.partition("=")[0] for pair in given}
        return (*(pair for pair in before if pair.partition("=")[0] not in keys), *given)
    return given or before


def _flag_of(word: str) -> str:
    """A flag as this program calls it, where Stable-Baselines3 and CleanRL have another name."""
    flag, equals, value = word.partition("=")
    name = SYNONYMS.get(flag.removeprefix("--").replace("-", "_"))
    if name is None or not flag.startswith("--"):
        return word
    return f"--{name.rstrip('_').replace('_', '-')}{equals}{value}"


def _read_word(flag: str, word: str) -> str:
    """``none``, names of choices and schemes in any case; whole numbers as 1e6 and 1M; as ``--flag x`` and
    ``--flag=x``."""
    own, equals, value = word.partition("=")
    if equals and own.startswith("--"):
        return f"{own}={_read_word(own, value)}"
    name = flag.removeprefix("--").replace("-", "_")
    if not flag.startswith("--") or name not in all_options():
        return word
    kind = all_options()[name].annotation
    if word.lower() == "none" and name in _OPTIONAL:
        return "None"
    if word.lower() in (*CHOICES.get(name, ()), *(str(choice) for choice in get_args(kind))) or name == "compressor":
        return word.lower()
    if _takes_whole(kind) and (match := _WHOLE.fullmatch(word)):
        number = float(match[1]) * _UNITS[match[2].lower()]
        return str(int(number)) if number.is_integer() else word
    return word


def _takes_whole(kind: object) -> bool:
    return kind is int or any(map(_takes_whole, get_args(kind)))


def _warn_of_actors(config: TrainConfig, info: LaunchInfo) -> None:
    """Say where actors share cores, which makes none of them faster."""
    actors, cores = config.acting.actors, int(usable_cores())
    elsewhere = info.is_launched or config.acting.hosts is not None or config.acting.hostfile is not None
    if actors > _ACTORS_PER_CORE * max(cores, 1) and not elsewhere:
        logger.warning(
            "--actors %d on %d cores: they share cores and are no faster together; give --envs-per-actor more instead",
            actors, cores,
        )  # fmt: skip


def _value(argv: Sequence[str], name: str) -> str | None:
    """The last value of --name or --name=value, before the real parser has its defaults."""
    for i, word in reversed(list(enumerate(argv))):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == f"--{name}" and (equals or i + 1 < len(argv)):
            return value if equals else argv[i + 1]
    return None
