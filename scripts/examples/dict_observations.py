"""An environment of your own with a Dict observation and an action mask, and a network that gets the dictionary.

    python scripts/examples/dict_observations.py

trains it for some seconds with int8 actors, acts in a script, and writes a bundle whose ONNX model has one named input
for each entry. The same from the command line, where ``PYTHONPATH`` has this folder:

    accel train --env dict_observations:Courier-v0 --network dict_observations:network --total-env-steps 40000
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

import accel
from accel.envs.spaces import EnvSpec

SIZE = 5
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Courier(gymnasium.Env[Any, Any]):
    """A courier on a map of 5 by 5 fields goes to the bright one; steps off the map are not allowed.

    The map is an image, the courier's place a vector, and the action mask says which of the four moves stay on the map.
    """

    observation_space = spaces.Dict(
        {
            "map": spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8),
            "place": spaces.Box(0, 1, (2,), np.float32),
            "action_mask": spaces.MultiBinary(4),
        }
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new goal and a new place."""
        super().reset(seed=seed)
        self.goal, self.place = self.np_random.integers(0, SIZE, 2), self.np_random.integers(0, SIZE, 2)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One field in one direction; 1 for the goal, where the episode ends."""
        self.place = self.place + MOVES[action]
        self.steps += 1
        arrived = bool((self.place == self.goal).all())
        return self._observe(), float(arrived), arrived, self.steps == 20, {}

    def _observe(self) -> dict[str, object]:
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[tuple(self.goal)] = 255
        reached = self.place + MOVES
        return {
            "map": picture,
            "place": (self.place / (SIZE - 1)).astype(np.float32),
            "action_mask": ((reached >= 0) & (reached < SIZE)).all(1).astype(np.int8),
        }


if "Courier-v0" not in gymnasium.registry:
    gymnasium.register("Courier-v0", entry_point=Courier)


class Network(nn.Module):
    """Features of the dictionary: images arrive as [N, C, H, W] floats in [0, 1], the action mask does not arrive."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        shapes = {part.name: part.shape for part in spec.parts}
        self.map = nn.Conv2d(shapes["map"][0], 8, 3, padding=1)
        self.joined = nn.Linear(8 * SIZE * SIZE + shapes["place"][0], 64)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Each [N, *shape] to [N, 64]."""
        seen = torch.relu(self.map(observation["map"])).flatten(1)
        return torch.tanh(self.joined(torch.cat((seen, observation["place"]), 1)))


def network(spec: EnvSpec) -> nn.Module:
    """What ``--network dict_observations:network`` calls."""
    return Network(spec)


def main() -> None:
    """Train, act, export."""
    with tempfile.TemporaryDirectory() as directory:
        config = accel.TrainConfig.create(
            env=f"{Path(__file__).stem}:Courier-v0", network=f"{Path(__file__).stem}:network", compressor="int8",
            actors=0, envs_per_actor=16, unroll_length=10, passes=8, minibatches=8, learning_rate=3e-3, discount=0.9,
            calibration_size=128, total_env_steps=40_000, stop_at_return=0.95, results_dir=Path(directory),
            name="courier",
        )  # fmt: skip
        print(f"return {accel.train(config).return_mean}")
        run = accel.load_run(Path(directory) / "courier")
        env = gymnasium.make("Courier-v0")
        observation, _ = env.reset(seed=1)
        steps, over = 0, False
        while not over:
            observation, _, ends, cuts, _ = env.step(int(run.act(observation, greedy=False)))
            steps, over = steps + 1, ends or cuts
        print(f"arrived after {steps} steps" if ends else f"lost after {steps} steps")
        bundle = accel.export(run, Path(directory) / "bundle", scheme="int8", episodes=5)
        print("inputs of the model:", ", ".join(tensor["name"] for tensor in bundle.contract["inputs"]))


if __name__ == "__main__":
    main()
