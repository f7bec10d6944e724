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


class Compression:
    """Composed from the run's configuration.

    Args:
        learner: whose policy is compressed.
        cpu_features: what every actor's CPU offers.
        place: of the learner. run: path of the run directory, for the log of decisions.
    """

    def __init__(self, learner: Learner, cpu_features: frozenset[str], place: LearnerPlace, run: Path) -> None:
        config, algorithm = learner.config, learner.algorithm
        self._config, self._place, self._run = config, place, run
        self._choice = choice = parse_choice(config.compression.compressor)
        divergence = make_divergence(algorithm)
        self.publisher = Publisher(
            config,
            algorithm.network,
            divergence=divergence,
            cpu_features=cpu_features,
            levels=choice.levels,
            beside=learner.device.type == "cuda" and config.acting.actors > 0,
        )
        self.sampler = MismatchSampler(config, algorithm, self.publisher.schemes, learner.batcher)

    def steer(self) -> Steering:
        """What chooses levels. Raises ConfigError: full precision does not suit the network."""
        parts = (self._choice, self._config, self.publisher, self._place.transport, self.sampler, self._run)
        return make_steering(*parts)

    def resume_log(self, steering: Steering, env_steps: int) -> None:
        """Cut the log of decisions at a resumed run's checkpoint."""
        level = str(steering.metrics().get("level", self._choice.levels[0]))
        DecisionLog(self._run).go_on(env_steps, level)
