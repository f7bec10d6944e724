"""Environments and wrappers that misbehave on purpose, and wrappers that tell what happened in actor processes.

Wrappers find their instructions in the environment variables that a test gives its run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

DIARY = "TROUBLED_DIARY"
HEAVY = ("torch", "onnx", "safetensors", "tensorboard", "pydantic", "tyro")
SLOW_RANK = 2
SLOW_S = 0.004
FIRST_TROUBLE = 200

gymnasium.register("Nameless-v0", entry_point="tests.environments.troubled:TextEnv")
gymnasium.register("Targets-v0", entry_point="tests.environments.troubled:TargetEnv", kwargs={"box": False})
gymnasium.register("BoxTarget-v0", entry_point="tests.environments.troubled:TargetEnv", kwargs={"box": True})


def rank() -> int:
    """This process's rank, 0 outside mpirun."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


class TextEnv(gymnasium.Env[Any, Any]):
    """An environment whose observations nobody can flatten."""

    observation_space = spaces.Text(8)
    action_space = spaces.Discrete(2)


class TargetEnv(gymnasium.Env[Any, Any]):
    """Ten steps, each of which shows a target and pays for hitting it: the best return is 10, a random one far less.

    Discrete: two components of three choices each, half a point for each that is right. Box: 1 − |a − target|² of two.
    """

    def __init__(self, box: bool) -> None:
        self.box = box
        self.observation_space = spaces.Box(-1, 1, (2 if box else 6,), np.float32)
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if box else spaces.MultiDiscrete([3, 3])
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        miss = np.square(action - self.target).sum() if self.box else (action != self.target).mean()
        self.t += 1
        return self._draw(), float(1 - miss), self.t == 10, False, {}

    def _draw(self) -> Any:
        if self.box:
            self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
            return self.target
        self.target = self.np_random.integers(0, 3, 2)
        return np.eye(3, dtype=np.float32)[self.target].reshape(6)


class _Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts its steps."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return super().step(action)


class NanReward(_Counting):
    """Pays NaN from some step on."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float("nan") if self.steps > FIRST_TROUBLE else reward, terminated, truncated, info


class NanObservation(_Counting):
    """Shows NaN from some step on."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return observation * (float("nan") if self.steps > FIRST_TROUBLE else 1), *rest  # type: ignore[return-value]


class Crash(_Counting):
    """Raises in the last of two actors, after some steps."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.steps > FIRST_TROUBLE and rank() == SLOW_RANK:
            raise ValueError("the simulator broke")
        return super().step(action)


class Slow(_Counting):
    """Takes its time in one actor."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if rank() == SLOW_RANK:
            time.sleep(SLOW_S)
        return super().step(action)


class Diary(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps this process's number of steps in ``steps-RANK``, and at the end writes what it imported."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        path = Path(os.environ[DIARY])
        self._report = path / f"modules-{rank()}.json"
        self._steps = np.memmap(path / f"steps-{rank()}", np.int64, "r+" if self._report.exists() else "w+", shape=(1,))
        self._report.write_text("null")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps[0] += 1
        return super().step(action)

    def close(self) -> None:
        self._report.write_text(json.dumps([name for name in HEAVY if name in sys.modules]))
        super().close()


def steps_taken(diary: Path) -> dict[int, int]:
    """Steps of every environment together, by the rank of their process."""
    return {int(p.name.partition("-")[2]): int(np.fromfile(p, np.int64)[0]) for p in sorted(diary.glob("steps-*"))}
