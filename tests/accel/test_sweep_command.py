"""``accel sweep`` without its optional dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In front of everything: an installation without Optuna, whose package and metadata cannot be found.
_WITHOUT_OPTUNA = """
import importlib.metadata, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "optuna":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def version(name, known=importlib.metadata.version):
    if name == "optuna":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

sys.meta_path.insert(0, Absent())
importlib.metadata.version = version
"""


def without_optuna(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT_OPTUNA + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [("--run", "{dir}"), ("--config", "{dir}/sweep.toml"), ("--run", "{dir}", "--bits", "int8", "--seed", "1")],
)
def test_without_optuna_the_command_is_one_line_that_says_how_to_install_it(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("sweep", *(argument.format(dir=tmp_path) for argument in arguments))
    done = without_optuna("from accel.cli import main; sys.exit(main(sys.argv[1:]))", *words)
    assert done.returncode == 2
    assert done.stderr == "accel: accel sweep needs optuna: pip install 'accel-rl[sweep]'\n"
    assert done.stdout == ""


def test_without_optuna_the_help_is_printed_and_the_function_raises() -> None:
    done = without_optuna("from accel.cli import main; sys.exit(main(['sweep', '--help']))")
    assert done.returncode == 0 and "--constraint" in done.stdout, done.stderr
    code = "import accel\ntry: accel.sweep_run\nexcept accel.AccelError as error: print(error)"
    assert without_optuna(code).stdout == "accel sweep needs optuna: pip install 'accel-rl[sweep]'\n"
