"""Runs in one process: whatever ends them, their environments are closed."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

import accel
from accel.errors import AccelError

OPEN: list[gymnasium.Env[object, object]] = []


class Watched(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Counts itself among the open environments until it is closed; the one of episode 3 fails if it is told to."""

    fails = False
    steps = 0

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        self.steps += 1
        if self.fails and self.steps > 3:  # again and again: it is made anew once
            raise KeyError("no such joint")
        return super().step(action)  # type: ignore[return-value]

    def close(self) -> None:
        OPEN.remove(self)
        super().close()


def watched(env: gymnasium.Env[object, object]) -> Watched:
    OPEN.append(Watched(env))
    return OPEN[-1]  # type: ignore[return-value]


def failing(env: gymnasium.Env[object, object]) -> Watched:
    made = watched(env)
    made.fails = True
    return made


@pytest.mark.parametrize("wrapper", ["watched", "failing"])
def test_environments_are_closed_at_the_end(wrapper: str, tmp_path: Path) -> None:
    config = accel.TrainConfig(
        env="CartPole-v1", network="mlp:8x1", actors=0, envs_per_actor=2, total_env_steps=400, results_dir=tmp_path,
        calibration_size=32, wrapper=(f"tests.accel.learning.test_single_process:{wrapper}",),
    )  # fmt: skip
    if wrapper == "watched":
        assert accel.train(config).env_steps >= 400
    else:
        with pytest.raises((AccelError, KeyError), match="no such joint"):
            accel.train(config)
    assert OPEN == []
