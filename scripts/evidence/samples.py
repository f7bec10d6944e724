"""Where evidence scripts keep what they measure: compressed JSON in ``results/runs``, which git ignores.

``--out results/evidence/NAME`` continues the published evidence instead, and rewrites its page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from accel.system.atomic import write_atomically  # noqa: E402

RUNS, EVIDENCE = PROJECT / "results" / "runs", PROJECT / "results" / "evidence"


def arguments(description: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with the description and ``--out``, by default ``results/runs/NAME``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = f"where samples and the page go; results/evidence/{name} is published (default: results/runs/{name})"
    parser.add_argument("--out", type=Path, default=RUNS / name, help=text)
    return parser


def read_samples(path: Path) -> dict[str, Any]:
    """The object in a ``.json.gz``, empty where there is none."""
    return dict(json.loads(gzip.decompress(path.read_bytes()))) if path.exists() else {}


def write_samples(path: Path, content: Mapping[str, object]) -> None:
    """Write a ``.json.gz`` atomically, with equal bytes for equal content and without this machine's paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace(f"{PROJECT}/", "")
    write_atomically(path, gzip.compress(f"{text}\n".encode(), 9, mtime=0))
