"""The command line: parse, call, print. Each subcommand is a public function with the same options."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from accel.display.errors import report_errors
from accel.system.garbage import freeze_garbage
from accel.system.module_path import add_working_directory
from accel.transport.launcher import detect_launch, is_actor

# As a user goes on: name: (module:function, one line of help); the function takes the arguments and returns the exit
# status.
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "start": {
        "doctor": ("accel.cli.doctor:main", "say what this machine offers: MPI, instruction sets, GPU, versions"),
        "train": ("accel.cli.train:main", "train a policy, with compressed actors under MPI or in one process"),
        "watch": ("accel.cli.watch:main", "follow a run live, from another terminal"),
    },
    "look at results": {
        "evaluate": ("accel.cli.evaluate:main", "play a trained policy and report its return with an interval"),
        "report": ("accel.cli.report:main", "write a page, figures and JSON about one run or several seeds of it"),
        "compare": (
            "accel.cli.report:main_compare",
            "compare runs with a baseline: time, speed, and whether the return is the same",
        ),
    },
    "use the policy": {
        "compress": (
            "accel.cli.compress:main",
            "compress a policy that exists, from Stable-Baselines3, CleanRL or a run, and compare returns",
        ),
        "export": (
            "accel.cli.export:main",
            "write a compressed policy as a bundle for another machine: onnx, ort, openvino or C",
        ),
        "verify": ("accel.cli.verify:main", "check a bundle where it is going to run, and measure its latency there"),
    },
    "measure and search": {
        "bench": ("accel.cli.bench:main", "measure policies, actors, refreshes and learners on this machine"),
        "sweep": ("accel.cli.sweep:main", "search compression policies with Optuna, after training or in training"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

# Import environments, networks and wrappers of the user's. The others read what somebody else may have made, in the
# directory that it came in, and must import nothing from there.
_IMPORTING = {"train", "evaluate", "bench", "compress", "export", "sweep"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``accel``; returns the exit status. Errors a user can cause are one message on standard error.

    Args:
        arguments: the words after ``accel``; None: this process's own, which ends then.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # It was closed, and the next file that is opened would take its place.
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    with suppress(RuntimeError):  # Some system users have none, which Open MPI does not start without.
        os.environ.setdefault("HOME", str(Path.home()))
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in {"-h", "--help"}:
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        from accel.version import __version__

        print(f"accel {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        print(f"accel: unknown command '{argv[0]}'\n\n{usage()}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if argv[0] in _IMPORTING:
        add_working_directory()
    try:
        return report_errors(lambda: _run(argv), f"accel {argv[0]}")
    finally:
        if arguments is None:  # This process is the command.
            freeze_garbage()


def usage() -> str:
    """The overview that ``accel --help`` prints."""
    width = max(map(len, COMMANDS))
    lines: list[str] = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {summary}" for name, (_, summary) in group.items())]
    return "\n".join(
        [
            "usage: accel COMMAND [OPTIONS]",
            "",
            "Compression-aware accelerated actors for reinforcement learning.",
            *lines,
            "",
            "accel COMMAND --help lists a command's options. Start with: accel train --preset quickstart",
        ]
    )


def _run(argv: list[str]) -> int:
    """Ranks that act need no command line: the learner tells them everything."""
    info = detect_launch()
    if argv[0] == "train" and is_actor(info):
        from accel.launch.roles import act, start_timeout_s

        return act(info, start_timeout_s(argv))
    module, _, function = COMMANDS[argv[0]][0].partition(":")
    status: int = getattr(importlib.import_module(module), function)(argv[1:])
    return status
