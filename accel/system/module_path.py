"""Where the modules of ``module:id`` environments, networks and wrappers are looked for."""

from __future__ import annotations

import os
import sys


def add_working_directory() -> None:
    """Put the working directory at the end of the module path.

    A user's modules are found there, and none replaces a module of the standard library or an installed one. That is
    also why ranks and child processes are started with ``python -P``: ``-m`` alone puts the directory in front.
    """
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.append(directory)
