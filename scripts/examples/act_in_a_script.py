"""A policy that was trained, acting in a script of your own.

accel train --preset quickstart --name cartpole
python scripts/examples/act_in_a_script.py results/cartpole
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium

import accel


def main(path: Path) -> None:
    """Play an episode."""
    run = accel.load_run(path)
    env = gymnasium.make(run.config.environment.env)
    observation, _ = env.reset(seed=0)
    total, over = 0.0, False
    first = True  # A recurrent policy starts from a state of zeros.
    while not over:
        action = run.act(observation, first=first)  # The most likely one; greedy=False samples.
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over, first = total + float(reward), terminated or truncated, False
    print(f"return {total:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    main(parser.parse_args().run)
