"""Which seed every single environment gets. No two environments of a run share a stream."""

from __future__ import annotations

import numpy as np

from accel.envs.base import Seed


def env_seeds(seed: Seed, num_envs: int) -> list[int]:
    """One seed per environment.

    Environment i gets the first word of ``SeedSequence(seed, spawn_key=(*rest, i))``, cut to 31 bits because ALE and
    EnvPool take int32 seeds.

    Args:
        seed: the run's seed, or a sequence (run's seed, *rest) where ``rest`` says who asks, such as the actor's rank.
    Returns:
        B integers in [0, 2**31).
    """
    entropy, *rest = [seed] if isinstance(seed, int) else [int(part) for part in seed]
    words = (np.random.SeedSequence(entropy, spawn_key=(*rest, i)).generate_state(1)[0] for i in range(num_envs))
    return [int(word) & 0x7FFFFFFF for word in words]
