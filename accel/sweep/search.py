"""How a sweep searches, and how candidates of a trained policy are made and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel.config import did_you_mean
from accel.errors import ConfigError
from accel.sweep.objectives import Metric, choose_metrics, parse_constraint
from accel.sweep.storage import default_url, storage_file
from accel.sweep.study import PrunerName, SamplerName, StudyOptions

_SWEEPS = Path("results") / "sweeps"

Bits = Literal["fp32", "int8", "int8-per-channel", "int4"]
BITS: tuple[Bits, ...] = get_args(Bits)


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def create(cls, values: Mapping[str, object], where: str = "") -> Self:
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
            name = name.replace("_", "-") if where == "--" else name
            raise ConfigError(f"{where}{name} = {first['input']!r}: {message[:1].lower()}{message[1:]}") from None


class SearchOptions(_Options):
    """How a sweep searches, from the command line or a file's [sweep] table; None means the default."""

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
        storage_file(url)
        return StudyOptions(
            name=self.study or directory.name,
            url=url,
            objectives=choose_metrics(objectives if self.objectives is None else self.objectives, known),
            constraints=tuple(parse_constraint(text, known) for text in self.constraints or ()),
            trials=self.trials or trials,
            sampler=self.sampler or "tpe",
            pruner=self.pruner or "none",
            seed=self.seed or 0,
            max_seconds=self.max_seconds,
            report_interval=interval,
        )


class CandidateOptions(_Options):
    """How candidates of a sweep after training are made and measured.

    Attributes:
        bits: number formats to choose from for each layer, at least one.
        prune: shares of a layer's units to remove, 0 for none.
        rank: ranks of a factorisation as shares of the full one, 1 for none.
        rows: real observations for calibration, and as many others for the mismatch.
        batch: rows of the policy call whose latency is measured; None: the run's environments per actor.
        episodes: seeded episodes for the return.
        sample: whether these episodes sample actions instead of taking the most likely ones.
        max_kl: mean KL from fp32 in nats above which a candidate is not played.
        sensitivity: whether to measure each layer alone first.
    """

    bits: Annotated[tuple[Bits, ...], Field(min_length=1)] = BITS
    prune: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(min_length=1)] = (0.0, 0.25, 0.5, 0.75)
    rank: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0, 0.5, 0.25)
    rows: Annotated[int, Field(ge=1)] = 1024
    batch: Annotated[int, Field(ge=1)] | None = None
    episodes: Annotated[int, Field(ge=1)] = 16
    sample: bool = False
    max_kl: Annotated[float, Field(gt=0)] = 1.0
    sensitivity: bool = True
