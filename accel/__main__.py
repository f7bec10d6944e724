"""``python -m accel``: the same as the ``accel`` command."""

from __future__ import annotations

import sys

from accel.system.module_path import remove_working_directory_from_front

remove_working_directory_from_front()

from accel.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
