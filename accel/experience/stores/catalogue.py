"""The store of a run, by the configuration that its options make. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from accel.config import TrainConfig
from accel.config.experience import (
    CircularConfig,
    FifoConfig,
    KeptConfig,
    PrioritisedConfig,
    ReplayConfig,
    SequencesConfig,
    TrajectoriesConfig,
)
from accel.errors import ConfigError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Store
from accel.experience.stores.circular import Circular
from accel.experience.stores.fifo import Fifo, Rounds
from accel.experience.stores.prioritised import PrioritisedReplay
from accel.experience.stores.replay import Replay
from accel.experience.stores.sequences import Sequences
from accel.experience.stores.trajectories import Trajectories
from accel.experience.unroll import UnrollLayout
from accel.system.machine import available_memory_bytes

logger = logging.getLogger("accel")

_KEPT: dict[type[KeptConfig], type[Replay | Sequences | Trajectories]] = {
    ReplayConfig: Replay,
    PrioritisedConfig: PrioritisedReplay,
    SequencesConfig: Sequences,
    TrajectoriesConfig: Trajectories,
}


def make_store(
    config: TrainConfig,
    layout: UnrollLayout,
    batcher: Batcher,
    rewards: RewardTransform,
    actors: Callable[[], int] = lambda: 1,
) -> Store:
    """The store of a run; ``actors`` returns how many there are at the moment. The memory of a replay is stated.

    Raises ConfigError: less is free.
    """
    options = config.store
    if config.schedule.waits_for_policy:
        return Rounds(actors, batcher, rewards)
    if isinstance(options, FifoConfig):
        return Fifo(options.batch_unrolls, batcher, rewards)
    if isinstance(options, CircularConfig):
        return Circular(options.batch_unrolls, options.buffer_batches, options.batch_uses, batcher, rewards)
    generator = np.random.default_rng(np.random.SeedSequence([config.run.seed, 1]))
    store = _KEPT[type(options)](config, layout, batcher, rewards, generator)
    memory = available_memory_bytes()
    logger.info(
        "the replay takes %.4g MiB when it holds %d environment steps", store.nbytes / 2**20, options.replay_capacity
    )
    if store.nbytes > memory:
        raise ConfigError(
            f"replay_capacity = {options.replay_capacity:,} environment steps take {store.nbytes / 2**30:.1f} GiB, "
            f"of this machine's memory {memory / 2**30:.1f} GiB are free: set --replay-capacity to "
            f"{options.replay_capacity * memory // store.nbytes // 2}"
        )
    return store
