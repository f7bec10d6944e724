"""What the models of a configuration are made of: their base, common types, bounds, pairs of name and value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(ge=1)]
EnvValue = str | int | float | bool
PLAIN_NAME = "a plain directory name: printable, of 200 bytes at most, without '/'"


def is_plain_name(name: str) -> bool:
    """Whether it is as ``PLAIN_NAME`` says."""
    return name.isprintable() and 0 < len(name.encode()) <= 200 and "/" not in name and name not in {".", ".."}


def at_most(limit: int, reason: str) -> AfterValidator:
    """An upper bound whose error says why it is there."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"at most {limit:,}: {reason}")
        return value

    return AfterValidator(check)


class Options(BaseModel):
    """One part's options: frozen, checked, none unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _none_as_text(cls, value: object, info: ValidationInfo) -> object:
        """TOML has no null: the text none stands for it."""
        if isinstance(value, str) and value.lower() == "none" and takes_none(cls.model_fields[str(info.field_name)]):
            return None
        return value


Model = TypeVar("Model", bound=Options)


def by_name(kind: str, models: Iterable[type[Model]]) -> Mapping[str, type[Model]]:
    """The models of a union by the name that each has in its option ``kind``."""
    return MappingProxyType({get_args(model.model_fields[kind].annotation)[0]: model for model in models})


def takes_none(field: FieldInfo) -> bool:
    """Whether an option may be switched off."""
    return type(None) in get_args(field.annotation)


Clip = Annotated[float, Field(gt=0)] | None


def parse_pair(pair: str, option: str) -> tuple[str, EnvValue]:
    """``name=value`` with numbers and booleans recognised. Raises ValueError."""
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"{option} '{pair}' must have the form name=value")
    if text.lower() in {"true", "false"}:
        return key, text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return key, text
    return key, value if isinstance(value, str | int | float | bool) else text
