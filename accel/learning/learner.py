"""What every learner of a run has: the algorithm, its store and schedule, counters, and its state for checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import torch

from accel.acting.device import DeviceActor
from accel.algorithms.base import GradientAlgorithm
from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.cuda_graphs import make_runner
from accel.algorithms.gradient_exchange import GradientExchange
from accel.algorithms.state_tree import Tree
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.experience.batch import Batcher
from accel.experience.on_device import DeviceBatcher, DeviceRewards
from accel.experience.rewards import RewardTransform
from accel.experience.stores.catalogue import make_store
from accel.learning.asynchronous import AsynchronousGradients
from accel.learning.coordination import Coordination, SynchronousLearners
from accel.learning.counters import Counters
from accel.learning.device import choose_device, choose_precision, keep_freed_memory
from accel.learning.memory import check_memory
from accel.learning.schedule import make_schedule
from accel.runs.checkpoint import CheckpointState, load_generators, pack_generators, pack_state, unpack_state
from accel.runs.loading import PREFIX

logger = logging.getLogger("accel")


class Learner:
    """The parts that train, composed from a configuration.

    Args:
        cores: what this process may use; decides torch's threads where the config does not.
        actors: how many actors this learner waits for at the moment. actors_here: how many other processes of its host
            act.
        connect: connects to the run's other learners, once the gradients' device is known; None: there are none.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvSpec,
        cores: tuple[int, ...],
        actors: Callable[[], int],
        connect: Callable[[torch.device], GradientExchange] | None = None,
        actors_here: int = 0,
    ) -> None:
        self.config, self.device = config, device = _prepare_torch(config, cores)
        check_memory(config, spec, device, actors_here)
        self.spec = spec
        self.exchange = GradientExchange() if connect is None else connect(device)
        self.runner = make_runner(config, self.exchange, device)
        self.algorithm = make_algorithm(config, spec, device, self.exchange, self.runner)
        self.agreement, self.layout = agree(config, self.algorithm)
        channels_last = self.algorithm.network.channels_last
        self.on_device = config.environment.backend == "device"
        self.batcher = DeviceBatcher() if self.on_device else Batcher(spec, device, channels_last=channels_last)
        transform = DeviceRewards if self.on_device else RewardTransform
        self.rewards = transform(config.rewards, config.algorithm.discount)
        share = config.share(self.exchange.learner)
        self.store = make_store(share, self.layout, self.batcher, self.rewards, actors)
        self.schedule = make_schedule(config)
        self.counters = Counters(config.run.stop_window)
        self.coordination = Coordination()

    def lend_network(self, actor: object) -> None:
        """Where environments are on the device: let their actor act with this network."""
        if isinstance(actor, DeviceActor):
            actor.act_for(cast(GradientAlgorithm, self.algorithm), lambda: self.counters.updates)

    def synchronise(self) -> None:
        """Start from the state of learner 0, where there are several learners."""
        exchange = self.exchange
        if isinstance(exchange, AsynchronousGradients):  # Learner 0's first answer has its state.
            self.coordination = exchange.coordination(self.config, self.algorithm, self.counters, self.rewards)
        elif exchange.learners > 1:
            content = exchange.share(pack_state(self.state()) if exchange.learner == 0 else None)
            if exchange.learner > 0:
                self.restore(unpack_state(content))
            self.coordination = SynchronousLearners(exchange, self.counters, self.rewards)

    def is_sound(self) -> bool:
        """Whether training can go on from this state."""
        return not self.exchange.broken and self.algorithm.is_finite() and self.rewards.is_finite()

    def state(self) -> CheckpointState:
        """Everything that training goes on from; environments alone start anew."""
        tensors = {f"{PREFIX}{name}": value for name, value in self.algorithm.networks.state_dict().items()}
        counters: dict[str, Tree] = {
            "env_steps": self.counters.env_steps,
            "version": self.counters.updates,
            "spec": cast(Tree, self.spec.to_json()),
            "loop": self.counters.to_json(),
            "rewards": cast(Tree, self.rewards.state()),
            "generators": pack_generators(),
        }
        return CheckpointState(tensors, self.algorithm.save(), counters)

    def restore(self, state: CheckpointState) -> None:
        """Inverse of ``state``. Raises what its parts raise on a state of something else."""
        counters = state.counters
        self.algorithm.networks.load_state_dict(
            {k.removeprefix(PREFIX): v for k, v in state.tensors.items() if k.startswith(PREFIX)}
        )
        self.algorithm.load(state.algorithm)
        load_generators(counters["generators"])  # type: ignore[arg-type]
        self.counters.restore(counters["loop"])  # type: ignore[arg-type]
        self.rewards.restore(counters["rewards"])  # type: ignore[arg-type]


def _prepare_torch(config: TrainConfig, cores: tuple[int, ...]) -> tuple[TrainConfig, torch.device]:
    """Set threads, memory and torch's own generators for the learner; its device, and the configuration with the
    precision chosen for it."""
    torch.set_num_threads(config.learner.learner_threads or max(len(cores), 1))
    torch.manual_seed(config.run.seed)  # An algorithm or module of a user's own may draw from them.
    device = choose_device(config.learner.device)
    precision = choose_precision(config, device)
    if config.learner.mixed_precision == "auto":
        logger.info("the learner computes in %s", "single precision" if precision == "none" else precision)
    if device.type == "cpu":
        keep_freed_memory()
    return config.replace(mixed_precision=precision), device
