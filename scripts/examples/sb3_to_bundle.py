"""A policy of Stable-Baselines3 as an int8 bundle that runs on numpy and onnxruntime alone.

    python -c "import stable_baselines3 as s; s.PPO('MlpPolicy', 'CartPole-v1').learn(50_000).save('ppo')"
    python scripts/examples/sb3_to_bundle.py ppo.zip --env CartPole-v1 --out ppo-int8
    python ppo-int8/run_policy.py --verify

The first line needs stable-baselines3, the others do not: the zip file is read without it, and nothing in it is
unpickled. The same as one command: ``accel export --policy ppo.zip --env CartPole-v1 --scheme int8 --out ppo-int8``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import accel
from accel.imports.policy import import_policy


def main() -> None:
    """Import, compare with full precision, export, verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--env", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--normaliser", type=Path, help="VecNormalize's statistics: docs/policies-you-already-have.md")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--accept-loss", action="store_true", help="export what int8 does not keep, too")
    options = parser.parse_args()
    policy = import_policy(options.file, accel.TrainConfig(env=options.env), normaliser=options.normaliser)
    print(f"{options.file}: {policy.architecture}")
    bundle = accel.export(
        policy, options.out, scheme="int8", episodes=options.episodes, accept_loss=options.accept_loss
    )
    print(bundle.text())
    print(accel.verify(options.out).text())


if __name__ == "__main__":
    main()
