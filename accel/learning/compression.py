"""The compression side of learner 0: its publisher, the sampler of mismatch, and what chooses levels."""

from __future__ import annotations

from pathlib import Path

from accel.algorithms.base import make_divergence
from accel.learning.handshake import LearnerPlace
from accel.learning.learner import Learner
from accel.monitor.decisions import DecisionLog
from accel.publishing.publisher import Publisher
from accel.tuning.autotune import make_steering
from accel.tuning.choice import parse_choice
from accel.tuning.mismatch_sampling import MismatchSampler
from accel.tuning.steering import Steering


def make_compression(
    learner: Learner, cpu_features: frozenset[str], place: LearnerPlace, run: Path
) -> tuple[Publisher, MismatchSampler, Steering]:
    """From the run's configuration, and features of every actor's CPU. Raises ConfigError: a level does not suit."""
    config, algorithm = learner.config, learner.algorithm
    choice = parse_choice(config.compression.compressor)
    publisher = Publisher(
        config,
        algorithm.network,
        divergence=make_divergence(algorithm),
        cpu_features=cpu_features,
        levels=choice.levels,
        beside=learner.device.type == "cuda" and config.acting.actors > 0,
    )
    sampler = MismatchSampler(config, algorithm, publisher.schemes, learner.batcher)
    return publisher, sampler, make_steering(choice, config, publisher, place.transport, sampler, run)


def resume_log(run: Path, steering: Steering, publisher: Publisher, env_steps: int) -> None:
    """Cut the log of decisions at a resumed run's checkpoint."""
    DecisionLog(run).go_on(env_steps, str(steering.metrics().get("level", publisher.levels[0])))
