"""The choice of a run's compression: a fixed scheme, ``auto`` or ``auto(…;…)``, or ``anneal(scheme@step;…)``. No torch.

int8                                         fixed
auto                                         tuned by the monitor over fp32 and int8
auto(fp32;int8;prune(0.25)+int8)             the same over this ladder, finest first; fp32 is put in front if absent
anneal(fp32@0;int8@1e5;prune(0.5)+int8@5e5)  each scheme from its environment step on; qat too, never in auto

A shell needs parentheses and semicolons quoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accel.compressors.errors import CompressorError
from accel.compressors.method_arguments import check_scheme
from accel.compressors.scheme import parse_scheme
from accel.errors import ConfigError
from accel.monitor.annealing import AnnealingSchedule
from accel.monitor.errors import TunerError

FULL_PRECISION = "fp32"
AUTO_LEVELS = (FULL_PRECISION, "int8")
"""What a bare ``auto`` tries: on one machine, actors with anything else reached no return sooner."""


@dataclass(frozen=True)
class CompressionChoice:
    """A parsed choice; ``str`` gives its canonical text, which parses to an equal one.

    Attributes:
        kind: who chooses.
        levels: every scheme that may be published, canonical; for ``auto`` from finest to coarsest.
        schedule: of ``anneal`` only.
    """

    kind: Literal["fixed", "auto", "anneal"]
    levels: tuple[str, ...]
    schedule: AnnealingSchedule | None = None

    def __str__(self) -> str:
        if self.schedule is not None:
            steps = zip(self.schedule.levels, self.schedule.env_steps, strict=True)
            return f"anneal({';'.join(f'{level}@{step}' for level, step in steps)})"
        return self.levels[0] if self.kind == "fixed" else f"auto({';'.join(self.levels)})"


def parse_choice(text: str) -> CompressionChoice:
    """Read a run's ``compressor``.

    Args:
        text: see the module's docstring.
    Raises:
        ConfigError: malformed text, an unknown scheme, a ladder or schedule that is not valid.
    """
    name, inside = _call(text)
    try:
        if name == "auto":
            return CompressionChoice("auto", _ladder(inside))
        if name == "anneal":
            schedule = _schedule(inside)
            return CompressionChoice("anneal", tuple(dict.fromkeys(schedule.levels)), schedule)
        return CompressionChoice("fixed", (str(check_scheme(text)),))
    except (CompressorError, TunerError) as error:
        raise ConfigError(f"compressor '{text}': {error}" if inside is not None else str(error)) from None


def _call(text: str) -> tuple[str, str | None]:
    """Split ``name(inside)`` in two; (text, None) without parentheses and for a scheme."""
    stripped = text.strip()
    if stripped == "auto":
        return "auto", None
    for name in ("auto", "anneal"):
        if stripped.startswith(f"{name}(") and stripped.endswith(")"):
            return name, stripped[len(name) + 1 : -1]
    if stripped.startswith(("auto", "anneal")):
        raise ConfigError(f"compressor '{text}': write auto, auto(scheme;scheme…) or anneal(scheme@step;scheme@step…)")
    return stripped, None


def _ladder(inside: str | None) -> tuple[str, ...]:
    levels = AUTO_LEVELS if inside is None else tuple(str(check_scheme(part)) for part in inside.split(";"))
    rounded = [level for level in levels if parse_scheme(level).methods[-1].name == "qat"]
    if rounded:
        raise TunerError(
            f"{rounded[0]} changes what the learner trains, so that levels beside it would not be compared fairly; use "
            f"{rounded[0].replace('qat', 'int8')} here, or compressor = '{rounded[0]}', or "
            f"anneal(fp32@0;{rounded[0]}@1e5)"
        )
    if FULL_PRECISION in levels and levels[0] != FULL_PRECISION:
        raise TunerError(f"{FULL_PRECISION} is the finest level and comes first")
    levels = (FULL_PRECISION, *(level for level in levels if level != FULL_PRECISION))
    if len(levels) < 2 or len(set(levels)) != len(levels):
        raise TunerError("needs at least two different levels")
    return levels


def _schedule(inside: str | None) -> AnnealingSchedule:
    levels, steps = [], []
    for part in (inside or "").split(";"):
        scheme, at, step = part.rpartition("@")
        if not at:
            raise TunerError(f"'{part}' lacks its step: write scheme@step, such as int8@100000")
        levels.append(str(check_scheme(scheme)))
        steps.append(_step(step))
    return AnnealingSchedule(tuple(levels), tuple(steps))


def _step(text: str) -> int:
    try:
        number = float(text.replace("_", ""))
        if number < 0 or number != int(number):
            raise ValueError
        return int(number)
    except (ValueError, OverflowError):
        raise TunerError(f"'{text}' is no environment step: write a whole number, such as 100000 or 1e5") from None
