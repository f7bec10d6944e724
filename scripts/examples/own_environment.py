"""An environment of your own, registered under a name, trained on in seconds.

    python scripts/examples/own_environment.py

The same from the command line, with this folder on ``PYTHONPATH`` or as the working directory:

    accel train --env own_environment:Tank-v0 --env-arg leak=0.2 --discount 0.9 --total-env-steps 40000

``module:id`` imports the module first, in every process, which registers the id.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

import accel

Observation = npt.NDArray[np.float32]


class Tank(gymnasium.Env[Observation, int]):
    """A leaking tank whose valve is closed or open; the level shall stay near one half.

    Args:
        leak: share of the level that is lost in a step.
    """

    # Bundles name what goes in and comes out.
    metadata = {  # noqa: RUF012  (gymnasium's own)
        "render_modes": [],
        "observation_names": ["level", "flow"],
        "action_names": ["valve"],
    }
    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, leak: float = 0.1) -> None:
        self.leak = leak

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Any level, no flow."""
        super().reset(seed=seed)  # Seeds self.np_random.
        self.level, self.flow, self.steps = float(self.np_random.uniform()), 0.0, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """The flow follows the valve slowly. The reward is 1 less four times the distance from one half."""
        self.flow += 0.3 * (0.2 * action - self.flow)
        self.level = min(self.level * (1 - self.leak) + self.flow, 1.0)
        self.steps += 1
        reward = 1.0 - 4.0 * abs(self.level - 0.5)
        truncated = self.steps == 100  # Not terminated: the task goes on, only the episode ends.
        return self._observe(), reward, False, truncated, {}

    def _observe(self) -> Observation:
        return np.array([self.level, self.flow], np.float32)


if "Tank-v0" not in gymnasium.registry:
    gymnasium.register("Tank-v0", entry_point=Tank)


def main() -> None:
    """Train, and say what was reached."""
    with tempfile.TemporaryDirectory() as directory:
        config = accel.TrainConfig.create(
            env=f"{Path(__file__).stem}:Tank-v0", actors=0, discount=0.9, unroll_length=64, passes=4, minibatches=4,
            total_env_steps=40_000, stop_at_return=85.0, stop_window=20, results_dir=Path(directory), name="tank",
        )  # fmt: skip
        print(f"return {accel.train(config).return_mean}")


if __name__ == "__main__":
    main()
