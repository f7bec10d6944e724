"""The configuration of a run: models, what actors get of it, TOML files, presets."""

from accel.config.models import TrainConfig, did_you_mean

__all__ = ["TrainConfig", "did_you_mean"]
