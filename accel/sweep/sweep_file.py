"""The TOML file of a sweep in training: base configuration, search space, search options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from accel.config import TrainConfig, did_you_mean
from accel.config.files import load_preset, load_toml
from accel.errors import ConfigError
from accel.runs.job import check_config

Value = str | int | float | bool
_TABLES = ("train", "space", "sweep")
_KINDS = {
    "float": ("low", "high", "log", "step"), "int": ("low", "high", "log", "step"), "categorical": ("choices",),
}  # fmt: skip
# Set by the sweep itself.
_OWN_FIELDS = ("name", "results_dir")


@dataclass(frozen=True)
class SweepFile:
    """A sweep's file.

    Attributes:
        base: the configuration that trials change.
        space: the fields that they change, with their distributions.
        sweep: the [sweep] table.
        preset: of the base, None for the defaults.
    """

    base: TrainConfig
    space: Mapping[str, BaseDistribution]
    sweep: Mapping[str, object]
    preset: str | None = None

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """The fields that a trial sets."""
        return {name: _suggest(trial, name, distribution) for name, distribution in self.space.items()}

    def own_parameters(self) -> dict[str, Value]:
        """The base's values of the fields that trials change, as far as the space has them."""
        base = self.base.options()
        found = {name: base[name] for name, distribution in self.space.items() if _contains(distribution, base[name])}
        return cast(dict[str, Value], found)

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
    preset = train.pop("preset", None)
    values = {**(load_preset(str(preset)) if preset is not None else {}), **train}
    for name in _OWN_FIELDS:
        if name in values:
            raise ConfigError(f"{path}: [train] {name} is set by the sweep: leave it out, and give --out")
    base = check_config(TrainConfig.create(**values))
    if not space:
        raise ConfigError(f"{path}: the space is empty: add [space.FIELD] tables, such as [space.learning_rate]")
    distributions = {name: _distribution(name, description, base, path) for name, description in space.items()}
    return SweepFile(base, distributions, sweep, None if preset is None else str(preset))


def _table(tables: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    value = tables.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {name} must be a table")
    return {str(key): item for key, item in value.items()}


def _distribution(name: str, description: object, base: TrainConfig, path: Path) -> BaseDistribution:
    fields = [field for field in base.options() if field not in _OWN_FIELDS]
    where = f"{path}: [space.{name}]"
    if name not in fields:
        raise ConfigError(f"{where}: there is no such field{did_you_mean(name, fields)}")
    if not isinstance(description, Mapping):
        raise ConfigError(f"{where} must be a table with type, and low and high or choices")
    kind = str(description.get("type"))
    if kind not in _KINDS:
        given = f"type is {description['type']!r}" if "type" in description else "it has no type"
        raise ConfigError(f"{where}: {given}; there are {', '.join(_KINDS)}")
    for key in description:
        if key not in ("type", *_KINDS[kind]):
            raise ConfigError(f"{where}: {key!r} is not valid for type {kind}; it takes {', '.join(_KINDS[kind])}")
    distribution = _categorical(description, where) if kind == "categorical" else _number(kind, description, where)
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


def _categorical(description: Mapping[str, object], where: str) -> CategoricalDistribution:
    choices = description.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ConfigError(f"{where}: the space is empty: give choices, a list of at least one value")
    if not all(isinstance(choice, str | int | float | bool) for choice in choices):
        raise ConfigError(f"{where}: choices are texts, numbers, true and false")
    return CategoricalDistribution(choices)


def _number(kind: str, description: Mapping[str, object], where: str) -> BaseDistribution:
    low, high, step = (description.get(key) for key in ("low", "high", "step"))
    log = bool(description.get("log", False))
    number = int if kind == "int" else (int, float)
    for key, value in (("low", low), ("high", high), ("step", step)):
        if (value is None and key != "step") or (value is not None and not isinstance(value, number)):
            raise ConfigError(f"{where}: {key} = {value!r}; type {kind} takes numbers of its kind for low and high")
    try:
        if kind == "int":
            return IntDistribution(low, high, log=log, step=1 if step is None else step)  # type: ignore[arg-type]
        return FloatDistribution(float(low), float(high), log=log, step=step)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _extremes(distribution: BaseDistribution) -> Sequence[Value]:
    if isinstance(distribution, CategoricalDistribution):
        return [choice for choice in distribution.choices if choice is not None]
    if isinstance(distribution, IntDistribution | FloatDistribution):
        return [distribution.low, distribution.high]
    return []


def short(value: object) -> str:
    """A field's value as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _contains(distribution: BaseDistribution, value: object) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value is not None and value in distribution.choices
    if isinstance(distribution, FloatDistribution | IntDistribution) and isinstance(value, int | float):
        return distribution.low <= value <= distribution.high
    return False


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Value:
    if isinstance(distribution, CategoricalDistribution):
        choice = trial.suggest_categorical(name, distribution.choices)
        return "none" if choice is None else choice
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    if isinstance(distribution, FloatDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)
    raise ConfigError(f"{name} has an unknown distribution, {type(distribution).__name__}")
