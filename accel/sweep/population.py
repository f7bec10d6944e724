"""Population-based training: members train side by side, and after each generation the last take over from the first.

Every member of every generation is a training run of its own, ``runs/generation-GGG-member-MM``. It begins with a copy
of its parent's newest checkpoint, so that nothing is overwritten, and what a killed command leaves is whole or made
again. Who trains next is a function of the seed and of the outcomes so far, ``runs/generation-GGG-member-MM.json``, so
that any number of commands on one directory come to the same. ``population.jsonl`` lists all complete generations.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from optuna.distributions import CategoricalDistribution
from pydantic import TypeAdapter

from accel.errors import ConfigError, SweepError
from accel.json_object import Json
from accel.reports.figure import Figure
from accel.reports.plotting import save_all
from accel.sweep.directory import check_directory, one_at_a_time, writable, write_about
from accel.sweep.evolution import Parameters, draw, evolve
from accel.sweep.outputs import markdown_table
from accel.sweep.plots import population_figure
from accel.sweep.search import SearchOptions
from accel.sweep.sweep_file import SweepFile, load_sweep_file, parameters_text
from accel.sweep.training_run import TrainingRun
from accel.system.atomic import write_atomically
from accel.system.signals import terminations_interrupt
from accel.system.untrusted import MAX_JSON_BYTES, read_file

JOURNAL = "population.jsonl"
RUNS = "runs"
_POLL_S = 0.5
# A checkpoint goes with these parts of the configuration, or the population decides about them itself.
_FIXED_PARTS = ("environment", "policy", "run")
_FIXED = (
    "algorithm", "duelling", "atoms", "store", "schedule", "optimizer", "corrector", "actors", "learners", "device",
    "actor_runtime",
)  # fmt: skip

logger = logging.getLogger("accel")


@dataclass(frozen=True)
class Member:
    """One member in one generation.

    Attributes:
        parent: number of the member of the generation before whose checkpoint it begins with; None in the first.
    """

    generation: int
    number: int
    parent: int | None
    parameters: Parameters

    @property
    def name(self) -> str:
        """Of its run."""
        return run_name(self.generation, self.number)


@dataclass(frozen=True)
class Outcome:
    """How a member's part of training ended.

    Attributes:
        return_mean: mean return of the last training episodes; None before the first, and for a failed run.
        env_steps: behind its checkpoint.
        error: why it failed; None if it did not.
    """

    return_mean: float | None
    env_steps: int
    error: str | None = None

    @property
    def rank(self) -> float | None:
        """What ``evolve`` compares."""
        if self.error is not None:
            return None
        return -math.inf if self.return_mean is None else self.return_mean


Generation = list[tuple[Member, Outcome]]


def run_name(generation: int, member: int) -> str:
    """``generation-003-member-07``."""
    return f"generation-{generation:03d}-member-{member:02d}"


class Population:
    """A population in its directory, trained by one command or several at once."""

    def __init__(self, file: SweepFile, seed: int, directory: Path, *, members: int, generations: int) -> None:
        """Check everything; nothing is started or written.

        Args:
            seed: of the first parameters, selection and perturbation.
            directory: of the journal and the runs; it exists when training starts.
            members: trained side by side, at least 2. generations: parts of every member's training.
        Raises:
            ConfigError: too few members or generations, a field that cannot change between two parts of a run, or
                generations shorter than a batch.
        """
        self._file, self._seed, self._directory, self._runs = file, seed, directory, directory / RUNS
        self._members, self._generations = members, generations
        self._check()

    def subject(self) -> Json:
        """Plain JSON that identifies the population; a directory has one."""
        counts = {"members": self._members, "generations": self._generations, "seed": self._seed}
        return {"kind": "population", **counts, **self._file.subject()}

    def train(self) -> list[Generation]:
        """Train what is not yet trained; returns all generations, fewer where a member reached stop_at_return.

        Raises:
            SweepError: every member of a generation failed, or an outcome is damaged.
        """
        self._runs.mkdir(exist_ok=True)
        generations: list[Generation] = []
        while not self._is_over(generations):
            members = self._next(generations)
            while missing := [member for member in members if self._outcome(member) is None]:
                if not any(map(self._claim, missing)):  # Other commands train them all.
                    time.sleep(_POLL_S)
            generations.append([(m, outcome) for m in members if (outcome := self._outcome(m)) is not None])
            self._close(generations)
        return generations

    def _is_over(self, generations: Sequence[Generation]) -> bool:
        """Whether all generations are trained, or a member stopped before its end because it reached stop_at_return."""
        if not generations:
            return False
        steps = self._stop_at(len(generations) - 1)
        stopped = any(o.error is None and o.env_steps < steps for _, o in generations[-1])
        return stopped or len(generations) == self._generations

    def _check(self) -> None:
        if self._members < 2:
            raise ConfigError(f"population = {self._members}: there is nobody to copy from with fewer than 2")
        if self._generations < 1:
            raise ConfigError(f"generations = {self._generations}: a population needs at least one")
        base, space = self._file.base, self._file.space
        for name in space:
            part = next(part for part, model in base.parts.items() if name in type(model).model_fields)
            if part in _FIXED_PARTS or name in _FIXED:
                raise ConfigError(
                    f"[space.{name}]: members take over checkpoints, which go with one {name}: set it in [train], or "
                    "search it with trials, without --population"
                )
        if base.run.max_seconds is not None:
            raise ConfigError("[train] max_seconds would end members unevenly: leave it out")
        steps = base.run.total_env_steps // self._generations
        batch = base.acting.unroll_length * base.acting.envs_per_actor * base.store.held_unrolls
        if steps < batch:
            raise ConfigError(
                f"a generation has {steps:,} environment steps, and a batch {batch:,}: raise total_env_steps, or give "
                "fewer --generations"
            )

    def _stop_at(self, generation: int) -> int:
        """Environment steps of a member at the end of a generation."""
        return -(-self._file.base.run.total_env_steps * (generation + 1) // self._generations)

    def _next(self, generations: Sequence[Generation]) -> list[Member]:
        """The members of the generation after these."""
        number = len(generations)
        if not generations:
            drawn = draw(self._file.space, self._members, self._seed)
            drawn[0] |= self._file.own_parameters()
            return [Member(0, i, None, parameters) for i, parameters in enumerate(drawn)]
        generator = np.random.default_rng([self._seed, number])
        members, outcomes = zip(*generations[-1], strict=True)
        descents = evolve([o.rank for o in outcomes], [m.parameters for m in members], self._file.space, generator)
        return [Member(number, i, parent, parameters) for i, (parent, parameters) in enumerate(descents)]

    def _claim(self, member: Member) -> bool:
        """Train a member unless it is trained, or another command is at it; whether this was done."""
        with (self._runs / f".{member.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._outcome(member) is None:
                outcome = self.train_member(member)
                write_atomically(self._runs / f"{member.name}.json", json.dumps(asdict(outcome)).encode() + b"\n")
                logger.info(_line(member, outcome))
        return True

    def train_member(self, member: Member) -> Outcome:
        """A member's part of training, as a training run. Raises SweepError: it was stopped."""
        base = self._file.base
        origin = None if member.parent is None else self._runs / run_name(member.generation - 1, member.parent)
        own = {
            "seed": base.run.seed + member.generation * self._members + member.number,
            "stop_at_env_steps": self._stop_at(member.generation),
        }
        try:
            config = self._file.configure({**member.parameters, **own})
            # One process trains the same policy every time, as long as it is not begun in the middle.
            run = TrainingRun(config, self._runs, member.name, origin=origin, whole=base.acting.actors == 0)
            summary = run.train()
        except (ConfigError, SweepError) as error:
            return Outcome(None, 0, str(error))
        if not run.is_complete():
            raise SweepError(f"run {member.name} {summary.reason}: run the same command to continue")
        return Outcome(summary.return_mean, summary.env_steps)

    def _outcome(self, member: Member) -> Outcome | None:
        path = self._runs / f"{member.name}.json"
        try:
            if not path.exists():
                return None
            return TypeAdapter(Outcome).validate_json(read_file(path, MAX_JSON_BYTES), strict=True)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise SweepError(f"{path} is damaged ({reason}): remove it, so that its run is looked at again") from error

    def _close(self, generations: Sequence[Generation]) -> None:
        """List the complete generations, and remove what nobody begins with any more. Raises SweepError: all failed."""
        number, outcomes = len(generations) - 1, [outcome for _, outcome in generations[-1]]
        if all(outcome.error is not None for outcome in outcomes):
            raise SweepError(
                f"every member of generation {number} failed, the last one with: {outcomes[-1].error}. To try again, "
                f"remove {self._runs / run_name(number, 0)[:-2]}*.json"
            )
        lines = [
            json.dumps([{"member": asdict(m), "outcome": asdict(outcome)} for m, outcome in generation]) + "\n"
            for generation in generations
        ]
        with one_at_a_time(self._directory):
            write_atomically(self._directory / JOURNAL, "".join(lines).encode())
        for member, _ in generations[number - 1] if number else ():
            for unused in ("checkpoints", "replay"):
                shutil.rmtree(self._runs / member.name / unused, ignore_errors=True)


def best_member(generation: Generation) -> int:
    """The number of the member that earned most."""
    ranks = [-math.inf if outcome.rank is None else outcome.rank for _, outcome in generation]
    return ranks.index(max(ranks))


def lineage(generations: Sequence[Generation]) -> list[int]:
    """By generation, the number of the member whose weights the best one of the last generation goes back to."""
    found = [best_member(generations[-1])]
    for generation in reversed(generations[1:]):
        parent = generation[found[-1]][0].parent
        found.append(found[-1] if parent is None else parent)
    return found[::-1]


@dataclass(frozen=True)
class PopulationResult:
    """A population that has trained; ``best``: the run of the best member of its last generation."""

    directory: Path
    generations: tuple[Generation, ...]
    best: Path

    def text(self) -> str:
        """The result in a few lines."""
        member, outcome = self.generations[-1][best_member(self.generations[-1])]
        count = f"{len(self.generations)} generations of {len(self.generations[-1])} members"
        lines = [f"{count}; the best in the end is", f"  {_line(member, outcome)}", f"    accel evaluate {self.best}"]
        return "\n".join([*lines, f"table, journal and plot: {self.directory}"])


def sweep_population(
    file: Path,
    population: int,
    generations: int = 10,
    search: SearchOptions | None = None,
    *,
    command: Sequence[str] = (),
) -> PopulationResult:
    """Train a population: copy the better to the worse after every generation, and perturb their options.

    Args:
        file: TOML with [train], [space.FIELD] and [sweep]; of the latter seed and out are read.
        population: members. generations: parts of ``total_env_steps``, at whose ends they are compared.
        search: seed and out, instead of the file's.
        command: the command line, for the record.
    Raises:
        AccelError: one clear message; nothing is written before all input is checked.
    """
    loaded, search = load_sweep_file(file), search or SearchOptions()
    if unread := sorted(search.model_fields_set - {"seed", "out"}):
        raise ConfigError(f"--{unread[0]}: a population has members and generations, not trials: leave it out")
    search = search.over(SearchOptions.create(loaded.sweep, f"{file}: [sweep] "))
    directory = search.directory(file.stem)
    trained = Population(loaded, search.seed, directory, members=population, generations=generations)
    with writable(directory), terminations_interrupt():
        with one_at_a_time(directory):
            about = json.loads(json.dumps(trained.subject()))
            check_directory(directory, about)
            write_about(directory, about)
        found = trained.train()
        with one_at_a_time(directory):
            title = f"{loaded.base.environment.env}, {loaded.base.policy.network}"
            text = _markdown(found, title, generations, search.seed, command)
            write_atomically(directory / "population.md", text.encode())
            save_all(_figure(found, loaded, title), directory)
    best = directory / RUNS / run_name(len(found) - 1, best_member(found[-1]))
    return PopulationResult(directory, tuple(found), best)


def _line(member: Member, outcome: Outcome) -> str:
    parent = "" if member.parent in (None, member.number) else f", from member {member.parent}"
    earned = "no episode ended" if outcome.return_mean is None else f"return {outcome.return_mean:.4g}"
    result = f"failed: {outcome.error}" if outcome.error is not None else f"{earned}, {outcome.env_steps:,} steps"
    number = f"generation {member.generation}, member {member.number}{parent}"
    return f"{number} | {parameters_text(member.parameters)} | {result}"


def _markdown(generations: Sequence[Generation], title: str, wanted: int, seed: int, command: Sequence[str]) -> str:
    """The parameters behind the best policy; the figure and its CSV have everybody's."""
    line = []
    for generation, number in zip(generations, lineage(generations), strict=True):
        member, outcome = generation[number]
        earned = "" if outcome.return_mean is None else f"{outcome.return_mean:.4g}"
        parameters = f"`{parameters_text(member.parameters)}`"
        line.append([str(member.generation), str(number), f"{outcome.env_steps:,}", earned, parameters])
    lines = [
        f"# Population of {title}",
        "",
        f"{len(generations[0])} members, {len(generations)} of {wanted} generations, seed {seed}. The best member's "
        "line; a return is the mean of the last training episodes, those of the parent among them.",
        "",
        *(["```", shlex.join(command), "```", ""] if command else []),
        *markdown_table(["generation", "member", "steps", "return", "trained with"], line, left=("trained with",)),
        "",
    ]
    return "\n".join(lines)


def _figure(generations: Sequence[Generation], file: SweepFile, title: str) -> Figure:
    """Returns and numeric parameters by generation."""
    rows: dict[str, list[list[float | None]]] = {
        "return": [[outcome.return_mean for _, outcome in generation] for generation in generations]
    }
    for name, distribution in file.space.items():
        if not isinstance(distribution, CategoricalDistribution):
            rows[name] = [[float(member.parameters[name]) for member, _ in generation] for generation in generations]
    logarithmic = {name for name, distribution in file.space.items() if getattr(distribution, "log", False)}
    return population_figure(rows, lineage(generations), logarithmic, title)
