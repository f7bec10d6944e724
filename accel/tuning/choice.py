"""The choice of a run's compression: a fixed scheme, or levels among which the monitor chooses. No torch.

int8                              fixed
auto(fp32;int8;prune(0.25)+int8)  tuned by the monitor over these levels, finest first; fp32 is put in front if absent
auto                              short for auto(fp32;int8)

A shell needs parentheses and semicolons quoted.
"""

from __future__ import annotations

from dataclasses import dataclass

from accel.compressors.errors import CompressorError
from accel.compressors.method_arguments import check_scheme
from accel.compressors.scheme import parse_scheme
from accel.errors import ConfigError

FULL_PRECISION = "fp32"
AUTO_LEVELS = f"({FULL_PRECISION};int8)"
"""What a bare ``auto`` tries: on one machine, actors with anything else reached no return sooner."""


@dataclass(frozen=True)
class CompressionChoice:
    """A parsed choice; ``str`` gives its canonical text, which parses to an equal one.

    Attributes:
        levels: every scheme that may be published, canonical, from finest to coarsest; the only one where it is fixed.
    """

    levels: tuple[str, ...]

    def __str__(self) -> str:
        return self.levels[0] if len(self.levels) == 1 else f"auto({';'.join(self.levels)})"


def parse_choice(text: str) -> CompressionChoice:
    """Read a run's ``compressor``.

    Args:
        text: see the module's docstring.
    Raises:
        ConfigError: malformed text, an unknown scheme, levels that do not go together.
    """
    stripped = text.strip()
    if not stripped.startswith("auto"):
        try:
            return CompressionChoice((str(check_scheme(stripped)),))
        except CompressorError as error:
            raise ConfigError(str(error)) from None
    inside = stripped.removeprefix("auto") or AUTO_LEVELS
    if not (inside.startswith("(") and inside.endswith(")")):
        raise ConfigError(f"compressor '{text}': write auto, or auto(scheme;scheme…)")
    try:
        return CompressionChoice(_levels(inside[1:-1]))
    except (CompressorError, ConfigError) as error:
        raise ConfigError(f"compressor '{text}': {error}") from None


def _levels(inside: str) -> tuple[str, ...]:
    levels = tuple(str(check_scheme(part)) for part in inside.split(";"))
    rounded = [level for level in levels if parse_scheme(level).methods[-1].name == "qat"]
    if rounded:
        raise ConfigError(
            f"{rounded[0]} changes what the learner trains, so that levels beside it would not be compared fairly; use "
            f"{rounded[0].replace('qat', 'int8')} here, or compressor = '{rounded[0]}'"
        )
    if FULL_PRECISION in levels and levels[0] != FULL_PRECISION:
        raise ConfigError(f"{FULL_PRECISION} is the finest level and comes first")
    levels = (FULL_PRECISION, *(level for level in levels if level != FULL_PRECISION))
    if len(levels) < 2 or len(set(levels)) != len(levels):
        raise ConfigError("needs at least two different levels")
    return levels
