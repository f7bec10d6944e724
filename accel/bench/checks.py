"""Arguments that benchmarks share, checked before any work. Imports no torch by itself."""

from __future__ import annotations

from collections.abc import Sequence

from accel.errors import ConfigError
from accel.networks import parse_network
from compressors.scheme import make_compressor, parse_scheme


def check_networks(networks: Sequence[str]) -> tuple[str, ...]:
    """Canonical texts. Raises ConfigError for an unknown one, and for an empty list."""
    _require(networks, "network")
    return tuple(dict.fromkeys(str(parse_network(text)) for text in networks))


def check_schemes(schemes: Sequence[str]) -> tuple[str, ...]:
    """Canonical texts. Raises SchemeError for an unknown or senseless one, ConfigError for an empty list."""
    _require(schemes, "scheme")
    for scheme in schemes:
        make_compressor(scheme)
    return tuple(dict.fromkeys(str(parse_scheme(scheme)) for scheme in schemes))


def check_counts(counts: Sequence[int], name: str) -> tuple[int, ...]:
    """Positive numbers, each once. Raises ConfigError."""
    _require(counts, name)
    if min(counts) < 1:
        raise ConfigError(f"{name} {min(counts)} is not positive: give at least 1")
    return tuple(dict.fromkeys(counts))


def check_budget(seconds: float, repeats: int) -> None:
    """Raises ConfigError unless both are positive."""
    if not seconds > 0 or repeats < 1:
        raise ConfigError(f"seconds = {seconds:g}, repeats = {repeats}: both must be positive")


def _require(values: Sequence[object], name: str) -> None:
    if not values:
        raise ConfigError(f"no {name} is given: name at least one")
