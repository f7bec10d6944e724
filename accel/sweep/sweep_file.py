"""The TOML file of a sweep in training: base configuration, search space, search options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from accel.config import TrainConfig, did_you_mean
from accel.config.files import load_preset, load_toml
from accel.errors import ConfigError
from accel.json_object import Json
from accel.runs.job import check_config

Value = str | int | float | bool
_TABLES = ("train", "space", "sweep")
# Set by the sweep itself.
_OWN_FIELDS = ("name", "results_dir")


Distribution = FloatDistribution | IntDistribution | CategoricalDistribution


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Float(_Strict):
    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = None


class _Int(_Strict):
    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: int = 1


class _Categorical(_Strict):
    type: Literal["categorical"]
    choices: Annotated[list[str | bool | int | float], Field(min_length=1)]


_SPACE: TypeAdapter[_Float | _Int | _Categorical] = TypeAdapter(
    Annotated[_Float | _Int | _Categorical, Field(discriminator="type")]
)
_DISTRIBUTIONS: Mapping[str, Callable[..., Distribution]] = MappingProxyType(
    {"float": FloatDistribution, "int": IntDistribution, "categorical": CategoricalDistribution}
)


@dataclass(frozen=True)
class SweepFile:
    """A sweep's file.

    Attributes:
        base: the configuration that trials change.
        space: the fields that they change, with their distributions.
    """

    base: TrainConfig
    space: Mapping[str, Distribution]
    sweep: Mapping[str, object]

    def own_parameters(self) -> dict[str, Value]:
        """The base's values of the fields that trials change, as far as the space has them."""
        base = self.base.options()
        found = {name: base[name] for name, distribution in self.space.items() if _contains(distribution, base[name])}
        return cast(dict[str, Value], found)

    def subject(self) -> Json:
        """Plain JSON that identifies base and space."""
        base = {name: value for name, value in self.base.to_json().items() if name not in _OWN_FIELDS}
        return {"space": {name: repr(distribution) for name, distribution in self.space.items()}, "base": base}

    def configure(self, parameters: Mapping[str, object]) -> TrainConfig:
        """The base with some fields changed. Raises ConfigError if they contradict each other."""
        return check_config(self.base.replace(**parameters))


def load_sweep_file(path: Path) -> SweepFile:
    """Read and check a sweep's file.

    ``[train]`` holds options of ``accel train`` or a preset, ``[space.FIELD]`` the search
    space, ``[sweep]`` the search options.

    Raises:
        ConfigError: unreadable, an unknown field, an empty space, a range or choice that the configuration refuses.
    """
    tables = load_toml(path)
    unknown = [name for name in tables if name not in _TABLES]
    if unknown:
        raise ConfigError(
            f"{path}: unknown table or key {unknown[0]!r}{did_you_mean(unknown[0], _TABLES)}; a sweep's file has "
            "[train], [space.FIELD] and [sweep]"
        )
    train, space, sweep = (_table(tables, name, path) for name in _TABLES)
    preset = {} if "preset" not in train else load_preset(str(train.pop("preset")))
    values = {**preset, **train}
    for name in _OWN_FIELDS:
        if name in values:
            raise ConfigError(f"{path}: [train] {name} is set by the sweep: leave it out, and give --out")
    base = check_config(TrainConfig.create(**values))
    if not space:
        raise ConfigError(f"{path}: the space is empty: add [space.FIELD] tables, such as [space.learning_rate]")
    distributions = {name: _distribution(name, description, base, path) for name, description in space.items()}
    return SweepFile(base, distributions, sweep)


def _table(tables: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    value = tables.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {name} must be a table")
    return {str(key): item for key, item in value.items()}


def _distribution(name: str, description: object, base: TrainConfig, path: Path) -> Distribution:
    known = [field for field in base.options() if field not in _OWN_FIELDS]
    where = f"{path}: [space.{name}]"
    if name not in known:
        raise ConfigError(f"{where}: there is no such field{did_you_mean(name, known)}")
    try:
        found = _SPACE.validate_python(description)
        distribution = _DISTRIBUTIONS[found.type](**found.model_dump(exclude={"type"}))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][-1]) + ": " if first["loc"] else ""
        raise ConfigError(f"{where}: {key}{first['msg'][:1].lower()}{first['msg'][1:]}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    for value in _extremes(distribution):
        try:
            check_config(base.replace(**{name: value}))
        except ConfigError as error:
            if not _depends_on_others(error, name):
                raise ConfigError(f"{where}: {error}") from None
    return distribution


def _depends_on_others(error: ConfigError, name: str) -> bool:
    """Whether another field could make the value valid: messages about one field only name it as the option."""
    return not str(error).startswith((f"option '{name}'", f"option '{name.replace('_', '-')}'", "unknown"))


def _extremes(distribution: Distribution) -> Sequence[Value]:
    if isinstance(distribution, CategoricalDistribution):
        return cast(Sequence[Value], distribution.choices)
    return [distribution.low, distribution.high]


def parameters_text(parameters: Mapping[str, object]) -> str:
    """Fields and their values in a line."""
    texts = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in parameters.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _contains(distribution: Distribution, value: object) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high
