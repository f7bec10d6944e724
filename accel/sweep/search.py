"""How a sweep searches, and how candidates of a trained policy are made and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel.config import did_you_mean
from accel.errors import ConfigError
from accel.sweep.objectives import Constraint, Metric, choose_metrics, parse_constraint
from accel.sweep.recovery import GRACE_S
from accel.sweep.storage import default_url, storage_file

Bits = Literal["fp32", "int8", "int4"]
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
    """How a sweep searches, from the command line or a file's [sweep] table.

    Attributes:
        trials: of the study in total, for all workers together, without repeated ones and candidates that cannot be
            built; None: the sweep's default.
        objectives: names of metrics; several make a Pareto front; None: the sweep's default.
        constraints: of feasible trials, such as ``return>=0.95*fp32``.
        seed: of Optuna's sampler (TPE); each worker derives its own.
        storage: URL of an Optuna storage. study: name within it. out: output directory.
    """

    trials: Annotated[int, Field(ge=1)] | None = None
    objectives: tuple[str, ...] | None = None
    constraints: tuple[str, ...] = ()
    seed: Annotated[int, Field(ge=0)] = 0
    storage: str | None = None
    study: str | None = None
    out: Path | None = None

    def over(self, other: SearchOptions) -> SearchOptions:
        """The options given here, those given there, and defaults."""
        given = {**other.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)}
        return SearchOptions.model_validate(given)

    def directory(self, name: str) -> Path:
        """The output directory, by default one of the given name."""
        return (self.out or Path("results/sweeps") / name).absolute()


@dataclass(frozen=True)
class StudyPlan:
    """What one study searches for, and where it is stored: search options with all defaults known and names looked up.

    Attributes:
        seed: of the sampler. name: of the study within its storage. url: of the storage.
        grace_s: seconds without a sign of life after which a worker on another host counts as dead.
    """

    seed: int
    name: str
    url: str
    objectives: tuple[Metric, ...]
    constraints: tuple[Constraint, ...]
    trials: int
    grace_s: float = GRACE_S

    @property
    def metrics(self) -> set[str]:
        """Names of all metrics that objectives and constraints need."""
        return {objective.name for objective in self.objectives} | {c.metric for c in self.constraints}

    @classmethod
    def of(
        cls, search: SearchOptions, known: Mapping[str, Metric], directory: Path, trials: int, objectives: Sequence[str]
    ) -> Self:
        """The plan of these options, with the sweep's default trials and objectives. Raises ConfigError, SweepError."""
        url = search.storage or default_url(directory)
        storage_file(url)
        return cls(
            seed=search.seed,
            name=search.study or directory.name,
            url=url,
            objectives=choose_metrics(objectives if search.objectives is None else search.objectives, known),
            constraints=tuple(parse_constraint(text, known) for text in search.constraints),
            trials=search.trials or trials,
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
    """

    bits: Annotated[tuple[Bits, ...], Field(min_length=1)] = BITS
    prune: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(min_length=1)] = (0.0, 0.25, 0.5, 0.75)
    rank: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0, 0.5, 0.25)
    rows: Annotated[int, Field(ge=1)] = 1024
    batch: Annotated[int, Field(ge=1)] | None = None
    episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 16  # as many as ``play`` takes
    sample: bool = False
    max_kl: Annotated[float, Field(gt=0)] = 1.0
