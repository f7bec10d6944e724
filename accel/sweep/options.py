"""Options of a sweep: how it searches, and how candidates of a trained policy are made and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel.config import did_you_mean
from accel.errors import ConfigError
from accel.sweep.objectives import Metric, choose_metrics, parse_constraints
from accel.sweep.scheme_space import ChoiceOptions
from accel.sweep.storage import default_url, sqlite_path
from accel.sweep.study import PrunerName, SamplerName, StudyOptions

_SWEEPS = Path("results") / "sweeps"


class SearchOptions(BaseModel):
    """How a sweep searches, from the command line or a file's [sweep] table; None means the default."""

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
        """These options, with the other's as defaults."""
        return self.model_copy(update={k: v for k, v in other if getattr(self, k) is None})

    def directory(self, name: str) -> Path:
        """The output directory, by default one of the given name."""
        return (self.out or _SWEEPS / name).absolute()

    def study_options(
        self, known: Mapping[str, Metric], directory: Path, trials: int, objectives: Sequence[str], interval: int = 1
    ) -> StudyOptions:
        """The study's options with defaults filled in. Raises ConfigError, SweepError."""
        url = self.storage or default_url(directory)
        sqlite_path(url)
        return StudyOptions(
            name=self.study or directory.name,
            url=url,
            objectives=choose_metrics(objectives if self.objectives is None else self.objectives, known),
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
        choices: per layer.
        rows: real observations for calibration, and as many others for the mismatch.
        batch: rows of the policy call whose latency is measured; None: the run's environments per actor.
        episodes: seeded episodes for the return.
        sample: whether these episodes sample actions instead of taking the most likely ones.
        max_kl: mean KL from fp32 in nats above which a candidate is not played.
        sensitivity: whether to measure each layer alone first.
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
