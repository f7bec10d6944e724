"""The configuration of a run: models, what actors get of it, TOML files, presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.config.train import TrainConfig, did_you_mean

__all__ = ["TrainConfig", "did_you_mean"]


def __getattr__(name: str) -> object:
    """Resolved when asked for: actors read their part of the configuration without pydantic."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from accel.config import train

    return getattr(train, name)
