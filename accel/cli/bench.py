"""``accel bench``: measure policies, actors, refreshes or learners here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

import tyro

from accel.bench.commands import BenchOptions, Options
from accel.bench.rows import LEAST_CPU_SHARE, Row, number
from accel.bench.tables import TABLES, table_text
from accel.errors import ConfigError
from accel.json_object import finite
from accel.system.atomic import write_atomically

_WIDTH = 100  # of a file or pipe


def main(arguments: Sequence[str]) -> int:
    """Parse, check where results go, measure, print, write."""
    _check_importable(arguments)
    options: BenchOptions = tyro.cli(
        Options,
        prog="accel bench",
        description="Measure on this machine. Alternatives are measured in turns (A B C A B C); medians and spread.",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction, tyro.conf.OmitSubcommandPrefixes),
    )
    if options.json is not None:
        _check_output(options.json)
    refused: list[str] = []
    result = options.measure(refused.append)
    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    print(table_text(result.rows, TABLES[result.kind], result.title, width))
    conditions = _conditions(result.rows[0])
    for line in [*refused, *conditions, *interference(result.rows), *result.lines]:
        print(textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    if options.json is not None:
        command = shlex.join(["accel", "bench", *arguments])
        write_atomically(options.json, encode([row | {"command": command} for row in result.rows]))
    return 0


def _check_importable(arguments: Sequence[str]) -> None:
    """Raise ConfigError, before parsing, where an imported policy is given to a benchmark of training."""
    given = [word.partition("=")[0] for word in arguments]
    if "learner" in given[:1] and (flags := sorted({"--module", "--policy", "--sb3"}.intersection(given))):
        raise ConfigError(
            f"bench learner times accel's training, and an imported policy has no learner: leave out {flags[0]}, or "
            "measure the policy with bench policy, actor or refresh"
        )


def _check_output(path: Path) -> None:
    """Check before any work that the file can be written. Raises ConfigError."""
    directory = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    if not directory.is_dir():
        raise ConfigError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(directory, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ConfigError(f"cannot write {path}: permission denied")


def _conditions(row: Row) -> list[str]:
    """Machine, versions and threads."""
    torch, runtime = f"torch {row['torch']}", f"onnxruntime {row['onnxruntime']}"
    if "torch_threads" in row:
        torch += f" ({_threads(row['torch_threads'])})"
    if "onnxruntime_threads" in row:
        runtime += f" ({_threads(row['onnxruntime_threads'])}, no spinning)"
    commit = f"commit {str(row['commit'])[:10]}{' with changes' if row['dirty'] else ''}"
    flags = f" with {row['int8_flags']}" if row["int8_flags"] else ""
    return [f"{row['cpu']}, {row['cores']} cores{flags}", f"{torch}, {runtime}; {commit}"]


def interference(rows: Sequence[Row]) -> list[str]:
    """A warning where other processes took much of the processor."""
    least = min((number(row, "cpu_share") for row in rows if "cpu_share" in row), default=1.0)
    if least > LEAST_CPU_SHARE:
        return []
    return [f"warning: this process got only {least:.0%} of a core at times; measure again on an idle machine"]


def _threads(count: object) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def encode(rows: Sequence[Row]) -> bytes:
    """A JSON list, with null for values that are not finite, which JSON cannot express."""
    return (json.dumps(finite(rows, lambda _: None), indent=1, allow_nan=False) + "\n").encode()
