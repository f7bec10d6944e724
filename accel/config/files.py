"""Configuration files and the presets that come with the package, as plain values for ``TrainConfig``."""

from __future__ import annotations

from pathlib import Path

from accel.config.models import did_you_mean
from accel.errors import ConfigError
from accel.system.untrusted import read_toml

PRESETS = Path(__file__).parent / "presets"


def load_toml(path: Path) -> dict[str, object]:
    """Read a configuration file; raises ConfigError that names the file and the line."""
    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


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
