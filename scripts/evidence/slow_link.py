#!/usr/bin/env python
"""``accel`` over a slow link: the learner on one node, actors on another, on one machine (``scripts/two_nodes``).

    python scripts/evidence/slow_link.py 10mbit train --env CartPole-v1 --network mlp:512x3 --compressor int8

The first argument is the rate of the link either way, as tc writes it; the rest is the command, which must not name
hosts. Needs root, network namespaces, tc and an sshd.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
NODES = str(PROJECT / "scripts" / "two_nodes")
HOSTS = "10.77.0.1:1,10.77.0.2:1"
"""A rank a node: the learner's and one actor's."""


def main() -> int:
    """Make the nodes, run the command on the first, remove them; the command's status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rate", help="of the link either way, such as 4mbit")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="a command of accel")
    options = parser.parse_args()
    words = options.words
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        subprocess.run([NODES, "up", directory, str(os.getpid())], check=True, env=environment)
        try:
            subprocess.run([NODES, "limit", directory, options.rate], check=True)
            hosts = [] if "--resume" in words else ["--hosts", HOSTS, "--actors", "1"]
            command = [NODES, "run", directory, "a", sys.executable, "-m", "accel", *words, *hosts]
            return subprocess.run(command, check=False, cwd=PROJECT, env=environment).returncode
        finally:
            subprocess.run([NODES, "down", directory], check=False)


if __name__ == "__main__":
    sys.exit(main())
