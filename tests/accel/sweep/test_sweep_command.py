"""``accel sweep`` without its optional dependencies: what the command itself says is in ``test_cli``."""

from __future__ import annotations

import subprocess
import sys


def without_optuna(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.modules['optuna'] = None\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_optuna_the_help_is_printed_and_the_function_raises() -> None:
    done = without_optuna("from accel.cli import main; sys.exit(main(['sweep', '--help']))")
    assert done.returncode == 0 and "--constraint" in done.stdout, done.stderr
    code = "import accel\ntry: accel.sweep_run\nexcept accel.AccelError as error: print(error)"
    said = "accel.sweep_run needs the module 'optuna': pip install 'accel-rl[sweep]'\n"
    assert without_optuna(code).stdout == said
