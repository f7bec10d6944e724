"""``accel.sweep_run`` and ``accel.sweep_training``: both kinds of sweep as functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel.errors import ConfigError
from accel.sweep.choices import ChoiceOptions
from accel.sweep.driver import SweepResult, run_sweep
from accel.sweep.quantities import (
    AFTER_TRAINING,
    IN_TRAINING,
    Quantity,
    choose_quantities,
    did_you_mean,
    parse_constraints,
)
from accel.sweep.samplers import REPORTS, PrunerName, SamplerName
from accel.sweep.storage import default_url, require_optuna, sqlite_path
from accel.sweep.study import StudyOptions

_SWEEPS = Path("results") / "sweeps"


class SearchOptions(BaseModel):
    """How a sweep searches, as the command line or a file's [sweep] table say it; None leaves the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: Annotated[int, Field(ge=1)] | None = None
    objectives: tuple[str, ...] | None = None
    constraints: tuple[str, ...] | None = None
    sampler: SamplerName | None = None
    pruner: PrunerName | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    storage: str | None = None
    study: str | None = None
    out: Path | None = None
    max_seconds: Annotated[float, Field(gt=0)] | None = None

    @classmethod
    def create(cls, values: Mapping[str, object], where: str) -> SearchOptions:
        """Validate values. Raises ConfigError that begins with ``where`` and names the key."""
        for name in values:
            if name not in cls.model_fields:
                hint = did_you_mean(name, list(cls.model_fields))
                raise ConfigError(f"{where}unknown key {name!r}{hint}; there are {', '.join(cls.model_fields)}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            name, message = str(first["loc"][0]), str(first["msg"])
            if where == "--":
                name = name.replace("_", "-")
            raise ConfigError(f"{where}{name} = {first['input']!r}: {message[:1].lower()}{message[1:]}") from None

    def over(self, other: SearchOptions) -> SearchOptions:
        """These options, and another's where these have none."""
        return self.model_copy(update={k: v for k, v in other if getattr(self, k) is None})

    def directory(self, name: str) -> Path:
        """Where outputs go; by default a directory of the given name."""
        return (self.out or _SWEEPS / name).absolute()

    def study_options(
        self, known: Mapping[str, Quantity], directory: Path, trials: int, objectives: Sequence[str], interval: int = 1
    ) -> StudyOptions:
        """The study's options, defaults filled in. Raises ConfigError, SweepError."""
        url = self.storage or default_url(directory)
        sqlite_path(url)
        return StudyOptions(
            name=self.study or directory.name,
            url=url,
            objectives=choose_quantities(objectives if self.objectives is None else self.objectives, known),
            constraints=parse_constraints(self.constraints or (), known),
            trials=self.trials or trials,
            sampler=self.sampler or "tpe",
            pruner=self.pruner or "none",
            seed=self.seed or 0,
            max_seconds=self.max_seconds,
            report_interval=interval,
        )


@dataclass(frozen=True)
class CandidateOptions:
    """How candidates of a sweep after training are made and measured.

    Attributes:
        choices: what there is to choose from for each layer.
        rows: real observations for calibration, and as many others for the mismatch.
        batch: rows of a policy call whose latency is measured; None: the run's environments per actor.
        episodes: seeded episodes for the return.
        sample: whether those episodes sample actions instead of taking the most likely ones.
        max_kl: candidates further than this from fp32 are not played, mean KL in nats.
        sensitivity: whether to measure every layer alone first.
    """

    choices: ChoiceOptions = dataclasses.field(default_factory=ChoiceOptions)
    rows: int = 1024
    batch: int | None = None
    episodes: int = 16
    sample: bool = False
    max_kl: float = 1.0
    sensitivity: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for name, value in (("rows", self.rows), ("batch", self.batch), ("episodes", self.episodes)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: at least 1 is needed")


def sweep_run(
    run: Path,
    search: SearchOptions | None = None,
    candidates: CandidateOptions | None = None,
    *,
    command: Sequence[str] = (),
) -> SweepResult:
    """Search per-layer compression of a trained policy: mismatch, measured latency, bytes, then seeded episodes.

        result = accel.sweep_run(Path("results/cheetah"), SearchOptions(trials=200, constraints=("return>=0.95*fp32",)))
        print(result.front[0].label)

    Args:
        run: a run directory with a checkpoint.
        search: how the study searches; objectives and constraints of ``quantities.AFTER_TRAINING``.
        candidates: how candidates are made and measured.
        command: the command line, for the record.
    Raises:
        AccelError: one clear message; nothing is written before all input was checked.
    """
    require_optuna()
    from accel.runs.loading import load_run
    from accel.sweep.after import AfterOptions, AfterTraining
    from accel.sweep.measure import MeasureOptions

    search, candidates = search or SearchOptions(), candidates or CandidateOptions()
    trained = load_run(run)
    directory = search.directory(trained.path.name)
    options = search.study_options(AFTER_TRAINING, directory, 100, ("return", "latency", "bytes"))
    if options.pruner != "none":
        raise ConfigError(
            "a pruner stops training runs on the way, and trials after training have no way: they screen candidates by "
            "mismatch before they play; leave --pruner out"
        )
    batch = candidates.batch or trained.config.envs_per_actor
    measure = MeasureOptions(candidates.rows, batch, candidates.episodes, options.seed, candidates.sample)
    after = AfterOptions(candidates.choices, measure, candidates.max_kl, candidates.sensitivity)
    return run_sweep(AfterTraining(trained, after, options), options, directory, command)


def sweep_training(file: Path, search: SearchOptions | None = None, *, command: Sequence[str] = ()) -> SweepResult:
    """Search any fields of the configuration by whole training runs.

    Args:
        file: TOML with [train], [space.FIELD] and [sweep]; see ``space.load_sweep_file``.
        search: what overrides the file's [sweep]; objectives and constraints of ``quantities.IN_TRAINING``.
        command: the command line, for the record.
    Raises:
        AccelError: one clear message; nothing is written before all input was checked.
    """
    require_optuna()
    from accel.sweep.during import InTraining
    from accel.sweep.space import load_sweep_file

    loaded = load_sweep_file(file)
    search = (search or SearchOptions()).over(SearchOptions.create(loaded.sweep, f"{file}: [sweep] "))
    directory = search.directory(file.stem)
    interval = max(loaded.base.total_env_steps // REPORTS, 1)
    options = search.study_options(IN_TRAINING, directory, 20, ("return",), interval)
    return run_sweep(InTraining(loaded, options, directory), options, directory, command)
