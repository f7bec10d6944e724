"""Durations, counts and returns as short text, and output that may be lost. No rich."""

from __future__ import annotations

import io
import math
import os
import sys
from contextlib import suppress
from typing import TextIO


def replace_unknown(stream: TextIO) -> None:
    """Have a stream write ``?`` for what its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper) and not stream.closed:
        with suppress(OSError):  # its reader is gone
            stream.reconfigure(errors="replace")


def show(text: str) -> None:
    """Write to standard output. A terminal that is gone or a disk that is full is no reason for a run to fail."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # Or what could not be written would be flushed, and fail, at exit.


def duration(seconds: float | None) -> str:
    """``9 s``, ``2:05``, ``3:02:05``, ``2 d 03:02``; ``-`` when unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d}:{whole % 3600 // 60:02d}"


def count(number: float) -> str:
    """Three digits and a unit: ``950``, ``1.23k``, ``45.6M``, ``1.20G``."""
    if not math.isfinite(number):
        return str(number)
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale * 0.9995:
            value = number / scale
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f}{unit}"
    return f"{number:.0f}"


def format_return(value: float) -> str:
    """A return with about four significant digits, without an exponent if possible."""
    return f"{value:.1f}" if 10 <= abs(value) < 100_000 else f"{value:.4g}"


def lag_number(lag: float | None) -> str:
    """A lag without needless digits; ``-`` when unknown."""
    return "-" if lag is None else f"{lag:.0f}" if lag == int(lag) else f"{lag:.1f}"
