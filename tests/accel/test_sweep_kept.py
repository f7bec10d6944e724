"""Kept training configurations, those of sweeps among them, are read by today's ``accel train``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.errors import ConfigError
from accel.runs.job import check_config

PROJECT = Path(__file__).parents[2]
IN_CHECKOUT = (PROJECT / ".git").exists()
pytestmark = pytest.mark.skipif(not IN_CHECKOUT, reason="results are kept in a git checkout; run it in one")


def _kept() -> list[Path]:
    """Those that git knows; a user's own runs lie beside them."""
    if not IN_CHECKOUT:
        return []
    command = ["git", "ls-files", "-z", "--", "results/**/*.toml"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [PROJECT / name for name in names if name and (PROJECT / name).exists()]
    return [file for file in files if "env" in load_toml(file)]


KEPT = _kept()


def test_there_are_kept_configurations_of_runs_and_of_sweeps() -> None:
    assert any(path.name == "config.toml" for path in KEPT)
    assert any(path.parent.name == "best" for path in KEPT)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(PROJECT)))
def test_a_kept_configuration_is_read(path: Path) -> None:
    config = check_config(TrainConfig.create(**load_toml(path)))
    assert config.environment.env == load_toml(path)["env"]


def test_an_option_that_is_no_more_is_refused() -> None:
    values = load_toml(KEPT[0])
    with pytest.raises(ConfigError, match="unknown option 'quantisation_aware'"):
        TrainConfig.create(**{**values, "quantisation_aware": False})
