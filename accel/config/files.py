"""Configuration files and the presets that come with the package, as plain values for ``TrainConfig``."""

from __future__ import annotations

from pathlib import Path

from accel.config.train import did_you_mean
from accel.errors import ConfigError
from accel.system.untrusted import read_toml

PRESETS = Path(__file__).parent / "presets"
FORMAT_VERSION = 1
VERSION_KEY = "format_version"


def load_toml(path: Path) -> dict[str, object]:
    """Read a configuration file; raises ConfigError that names the file and the line."""
    try:
        return read_options(path)
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def read_options(path: Path) -> dict[str, object]:
    """The options in a TOML file. Raises OSError; ValueError; ConfigError for one of another version's format."""
    values = read_toml(path)
    version = values.pop(VERSION_KEY, FORMAT_VERSION)
    if version is True or version != FORMAT_VERSION:
        raise ConfigError(
            f"{path} has configuration format {version!r}, this version of accel reads {FORMAT_VERSION}: go on with "
            "the version that wrote it"
        )
    return values


def preset_names() -> tuple[str, ...]:
    """The presets that come with the package."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def load_preset(name: str) -> dict[str, object]:
    """The values a preset sets; raises ConfigError that lists the presets."""
    if name not in preset_names():
        raise ConfigError(
            f"unknown preset '{name}'{did_you_mean(name, preset_names())}; presets: {', '.join(preset_names())}"
        )
    return load_toml(PRESETS / f"{name}.toml")
