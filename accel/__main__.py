"""``python -m accel``: the same as the ``accel`` command."""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # which ``python -m`` puts in front of all else
    del sys.path[0]

from accel.cli import main

if __name__ == "__main__":
    sys.exit(main())
