"""Short names of configurations: what sets each apart from the others, and nothing else."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

_LONGEST_VALUE = 40
Config = Mapping[str, object]


def labels(configs: Sequence[Config], differing: Sequence[str]) -> list[str]:
    """A label for each configuration, all of them different.

    The scheme always, the runtime where it is torch, and of the other options those whose value is not the majority's.
    What follows from another option is left out: unless given, a batch takes one unroll of each actor.

    Args:
        configs: one for each group. differing: the options in which they differ.
    """
    usual = {key: _majority([config.get(key) for config in configs]) for key in differing}
    found = [_label(config, differing, usual) for config in configs]
    return [label if found.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(found)]


def wrapped(label: str, width: int) -> str:
    """A label in lines of at most ``width`` characters, broken between words where it can be."""
    return "\n".join(textwrap.wrap(label, width, break_on_hyphens=False)) or label


def _label(config: Config, differing: Sequence[str], usual: Mapping[str, str | None]) -> str:
    parts = []
    if "compressor" in differing or not differing:
        parts.append(_value(config.get("compressor", "run")))
    if config.get("actor_runtime") == "torch" and ("actor_runtime" in differing or not differing):
        parts = [*(f"{part} (torch eager)" for part in parts)] or ["torch eager"]
    rest = [key for key in differing if key not in {"compressor", "actor_runtime"} and not _follows(key, config)]
    parts += [_option(key, config) for key in rest if repr(config.get(key)) != usual[key]]
    return ", ".join(parts or [_option(key, config) for key in rest]) or str(config.get("actor_runtime"))


def _option(key: str, config: Config) -> str:
    value = _value(config.get(key))
    return value if key in {"env", "variant"} else f"{key}={value}"


def _follows(key: str, config: Config) -> bool:
    actors = config.get("actors")
    return key == "batch_unrolls" and isinstance(actors, int) and config.get(key) == max(actors, 1)


def _majority(values: Sequence[object]) -> str | None:
    """What more than half of the values are, as ``repr`` writes it."""
    ((text, count),) = Counter(map(repr, values)).most_common(1)
    return text if 2 * count > len(values) else None


def _value(value: object) -> str:
    """The value, of a long one its beginning and its end."""
    text = "none" if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    half = _LONGEST_VALUE // 2
    return text if len(text) <= _LONGEST_VALUE else f"{text[: half - 1]}…{text[-half:]}"
