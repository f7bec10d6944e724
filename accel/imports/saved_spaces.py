"""The spaces that a file of Stable-Baselines3 was trained on, from what it says in plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces

from accel.envs.spaces import ACTION_MASK
from accel.errors import ConfigError


@dataclass(frozen=True)
class SavedSpaces:
    """What a file says of its spaces in plain text; None and empty where it does not.

    Attributes:
        observation_shape: of one observation. entries: of a Dict, in order. action: the kind of space.
        sizes: numbers of actions of a Discrete or a MultiDiscrete, or the shape of a Box. low, high: bounds of a Box.
    """

    observation_shape: tuple[int, ...] | None = None
    entries: tuple[str, ...] = ()
    action: str | None = None
    sizes: tuple[int, ...] | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @classmethod
    def read(cls, data: Mapping[str, object]) -> SavedSpaces:
        """From the JSON object of a file."""
        observation, action = (data.get(name) for name in ("observation_space", "action_space"))
        observation = observation if isinstance(observation, dict) else {}
        action = action if isinstance(action, dict) else {}
        kinds = ("MultiDiscrete", "MultiBinary", "Discrete", "Box", "Dict", "Tuple")
        kind = next((kind for kind in kinds if f".{kind}'" in str(action.get(":type:"))), None)
        sizes = {"Discrete": action.get("n"), "MultiDiscrete": action.get("nvec")}.get(str(kind), _shape(action))
        low, high = (_numbers(action.get(name)) or () for name in ("low", "high"))
        is_dict = ".Dict'" in str(observation.get(":type:"))
        entries = re.findall(r"'([^']+)': [A-Z]\w+\(", str(observation.get("spaces"))) if is_dict else []
        return cls(_integers(_shape(observation)), (*entries,), kind, _integers(sizes), low, high)

    def require(
        self, observation: spaces.Space[object] | None, action: spaces.Space[object], path: Path, env: str
    ) -> None:
        """Raise ConfigError where an environment's spaces differ."""
        remedy = "give the environment of its training, with its --env-arg and --wrapper"
        shape = getattr(observation, "shape", None)
        if self.observation_shape is not None and shape is not None and _flat(self.observation_shape) != _flat(shape):
            raise ConfigError(
                f"{path} was trained on observations of shape {self.observation_shape}, and {env} has {shape}: {remedy}"
            )
        entries = observation.spaces if isinstance(observation, spaces.Dict) else {}
        found = [name for name in entries if name != ACTION_MASK or name in self.entries]
        if self.entries and found != [*self.entries]:
            raise ConfigError(
                f"{path} was trained on the entries {list(self.entries)}, and {env} has {found}: {remedy}"
            )
        kind, sizes = type(action).__name__, _integers(getattr(action, "nvec", getattr(action, "n", action.shape)))
        if self.action is not None and (kind, sizes) != (self.action, self.sizes or sizes):
            raise ConfigError(
                f"{path} was trained on actions {self.action} {self.sizes}, and {env} has {kind} {sizes}: {remedy}"
            )
        if isinstance(action, spaces.Box) and len(self.low) == action.low.size == len(self.high):
            theirs = np.stack((self.low, self.high)).astype(np.float32)
            ours = np.stack((action.low.ravel(), action.high.ravel()))
            if not np.allclose(theirs, ours, rtol=1e-4):
                raise ConfigError(
                    f"{path} was trained with actions in [{theirs[0]}, {theirs[1]}], and {env} has {action}: {remedy}"
                )
        start = np.asarray(getattr(action, "start", 0))
        if start.any():
            raise ConfigError(
                f"{env} numbers its actions from {start}, and Stable-Baselines3 from 0: wrap the environment as it was "
                "in training, so that its actions begin with 0"
            )


def _shape(space: Mapping[str, object]) -> object:
    return space.get("shape", space.get("_shape"))


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Images are transposed in training: their sizes in any order."""
    return tuple(sorted(shape))


def _numbers(text: object) -> tuple[float, ...] | None:
    """Of an array that was printed; None for one that was printed in part, and for anything else."""
    try:
        return tuple(float(word) for word in re.sub(r"[\[\](),]", " ", str(text)).split())
    except ValueError:
        return None


def _integers(value: object) -> tuple[int, ...] | None:
    found = None if value is None else _numbers(value)
    return tuple(map(int, found)) if found is not None and all(map(math.isfinite, found)) else None
