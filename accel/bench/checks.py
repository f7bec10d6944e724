"""Checks of the arguments that benchmarks share, made before any work. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accel.compressors.method_arguments import check_scheme
from accel.errors import ConfigError
from accel.networks import parse_network

SCHEMES = ("fp32", "int8")
RUNTIMES = ("torch", "onnxruntime", "native")
"""What runs a policy: torch eager, onnxruntime, the compiled kernels where these run it."""


def check_networks(networks: Sequence[str]) -> tuple[str, ...]:
    """Canonical texts. Raises ConfigError for an unknown one, and for an empty list."""
    _require(networks, "network")
    return tuple(dict.fromkeys(str(parse_network(text)) for text in networks))


def check_schemes(schemes: Sequence[str]) -> tuple[str, ...]:
    """Canonical texts. Raises SchemeError for an unknown or senseless one, ConfigError for an empty list."""
    _require(schemes, "scheme")
    return tuple(dict.fromkeys(str(check_scheme(scheme)) for scheme in schemes))


def check_runtimes(runtimes: Sequence[str]) -> None:
    """Raises ConfigError for an unknown one, and for an empty list."""
    unknown = sorted(set(runtimes) - set(RUNTIMES))
    if unknown or not runtimes:
        raise ConfigError(f"unknown runtimes {unknown}: choose from {', '.join(RUNTIMES)}")


def check_counts(counts: Sequence[int], name: str) -> tuple[int, ...]:
    """Positive numbers, each once. Raises ConfigError."""
    _require(counts, name)
    if min(counts) < 1:
        raise ConfigError(f"{name} {min(counts)} is not positive: give at least 1")
    return tuple(dict.fromkeys(counts))


def check_budget(seconds: float, repeats: int) -> None:
    """Raises ConfigError unless both are positive, and finite."""
    if not 0 < seconds < math.inf or repeats < 1:
        raise ConfigError(f"seconds = {seconds:g}, repeats = {repeats}: both must be positive and finite")


def _require(values: Sequence[object], name: str) -> None:
    if not values:
        raise ConfigError(f"no {name} is given: name at least one")
