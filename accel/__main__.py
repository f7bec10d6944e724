"""``python -m accel``: the same as the ``accel`` command."""

from __future__ import annotations

import sys

from accel.cli import main

if __name__ == "__main__":
    sys.exit(main())
