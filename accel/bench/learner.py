"""Time of the learner's update per environment step, by phase, precision and CUDA graphs: a run's upper limit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product

import numpy as np
import torch

from accel.algorithms.catalogue import agree, make_algorithm
from accel.algorithms.cuda_graphs import WARM_RUNS, make_runner, why_unrecorded
from accel.algorithms.gradient_exchange import GradientExchange
from accel.bench.checks import check_budget
from accel.bench.rows import Notify, Row, number, provenance, spread
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.experience.batch import Batcher
from accel.experience.stores.base import Sample
from accel.experience.unroll import Unroll, UnrollLayout
from accel.learning.device import choose_device, choose_precision, keep_freed_memory, update_phases
from accel.monitor.timers import PhaseTimer
from accel.networks.dense import torch_alone
from accel.system.machine import read_machine
from accel.system.timing import interleave, torch_threads

EAGER = "eager"
TRAINING = ("network", "device", "T", "B", "algorithm", "passes", "minibatches")
PHASES = ("batch", "forward", "correct", "backward")
"""Of an update: joining the unrolls, forward passes, correction, backward passes with steps."""
_SHARE_OF_ENDS = 0.01
# Small enough that hundreds of updates on random rewards leave the policy unchanged.
_LEARNING_RATE = 1e-7

logger = logging.getLogger("accel")


def bench_learner(
    configs: Sequence[TrainConfig],
    spec: EnvSpec,
    *,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time whole updates of real learners on random experience of the right shapes, all cells in turns.

        config = TrainConfig.create(network="nature-cnn", algorithm="ppo", passes=3, minibatches=4)
        rows = bench_learner([config], default_spec("nature-cnn"))

    Nothing is published, ``qat`` does not round, and no ``target_kl`` ends the passes early. Experience comes from the
    learner's own policy. On a GPU every update is waited for, which a run's is not, its phases are timed by the
    device's events, and each configuration is measured with its steps recorded as CUDA graphs too, where they can be.
    On a CPU it is measured with layers and gradients left to torch too (``eager``).

    Args:
        configs: network, algorithm, passes, minibatches, unroll length, environments; all run on the first one's
            device with its ``learner_threads`` (0: the cores that its actors leave free).
        spec: observations and actions.
        seconds: measuring time in all.
        repeats: updates of each cell at most.
        notify: called with a message where a precision or CUDA graphs do not work here.
    Returns:
        Flat rows: ``learner`` (``accel`` or ``eager``), ``network``, ``precision``, ``graphs`` (``on`` or ``off``;
        with them every phase but ``batch`` counts as ``backward``), ``mode`` (both), ``device``, ``T``, ``B``
        (environments in a batch), ``algorithm``, ``passes``, ``minibatches``; ``us_per_env_step`` (median, with
        ``_low`` and ``_high``), ``batch_us``, ``forward_us``, ``correct_us`` and ``backward_us`` (medians);
        ``env_steps_per_s``, the learner's limit; ``speedup_none`` over accel's in single precision without graphs (None
        where that was not measured); ``samples``, ``cpu_share``; threads, machine and versions.
    Raises:
        ConfigError: a missing device, a number that is not positive, a network that does not take the observations, no
            configuration.
    """
    check_budget(seconds, repeats)
    if not configs:
        raise ConfigError("no configuration is given: name at least one")
    where, threads = choose_device(configs[0].learner.device), learner_threads(configs[0])
    if where.type == "cpu":
        keep_freed_memory()
    with torch_threads(threads):
        cells = _cells(configs, spec, where, notify)
        samples, cpu_share = interleave({place: cell.take for place, cell in enumerate(cells)}, seconds, repeats)
    rows = [cell.row(samples[place]) | {"cpu_share": cpu_share} for place, cell in enumerate(cells)]
    shared: Row = {"torch_threads": threads} | provenance()
    return [row | {"speedup_none": speedup_none(row, rows)} | shared for row in rows]


def _cells(configs: Sequence[TrainConfig], spec: EnvSpec, device: torch.device, notify: Notify) -> list[LearnerCell]:
    cells, eager = list[LearnerCell](), list[LearnerCell]()
    for precision, given in product(("none", "bf16"), configs):
        # the actors' scheme does not affect the update, and qat refuses bf16
        config = given.replace(mixed_precision=precision, compressor="fp32")
        try:
            choose_precision(config, device)
        except ConfigError:
            notify(f"no row for {precision}: this CPU has no instructions for it, so it would be slower")
            break
        cells.append(LearnerCell(config.replace(learner_graphs="off"), spec, device))
        if device.type == "cpu" and precision == "none":
            eager.append(LearnerCell(config, spec, device, eager=True))
        if device.type == "cuda":
            if (reason := why_unrecorded(config, GradientExchange(), device)) is None:
                cells.append(LearnerCell(config.replace(learner_graphs="on"), spec, device))
            else:
                notify(f"without CUDA graphs: {reason}")
    return cells + eager


class LearnerCell:
    """One learner in one precision, with a batch of experience; eager: with layers and gradients left to torch."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, device: torch.device, *, eager: bool = False) -> None:
        self._config, self._eager = config, eager
        quiet = {"target_kl": None} if "target_kl" in config.options() else {}
        self._device, runner = device, make_runner(config, GradientExchange(), device)
        unmoved = config.replace(learning_rate=_LEARNING_RATE, **quiet)
        self.algorithm = make_algorithm(unmoved, spec, device, runner=runner)
        self._timer = PhaseTimer(PHASES)
        self._phases = update_phases(device, self._timer)
        network = self.algorithm.network
        _, layout = agree(config, self.algorithm)
        self._batcher = Batcher(spec, device, channels_last=network.channels_last)
        self._unrolls = [random_experience(layout, seed) for seed in range(config.store.held_unrolls)]
        for unroll in self._unrolls:
            self._act(unroll)
        self.valid_steps = sum(int(np.count_nonzero(unroll["valid"][:-1])) for unroll in self._unrolls)
        if runner.fixed_shapes:
            for _ in range(WARM_RUNS + 1):
                self.take()

    @torch.no_grad()
    def _act(self, unroll: Unroll) -> None:
        """Fill in the actions and probabilities of the learner's policy."""
        batch = self._batcher.build([unroll])
        params = self.algorithm.network(batch.observations, batch.first, batch.states).params[:-1].float().cpu()
        distribution = self.algorithm.distribution(params, None)
        actions = distribution.sample(torch.Generator().manual_seed(0))
        unroll["actions"][...] = actions.numpy()
        unroll["behaviour_params"][...] = params.numpy()
        unroll["behaviour_log_prob"][...] = distribution.log_prob(actions).numpy()

    def take(self) -> dict[str, float]:
        """Seconds of one update by phase."""
        timer, phases = self._timer, self._phases
        timer.restart()
        batch = self._batcher.build(self._unrolls)
        timer.mark("batch")
        phases.begin()
        with torch_alone() if self._eager else nullcontext():
            self.algorithm.update(Sample(self.valid_steps, batch, batch.rewards), 0.0, phases.mark)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        phases.end()
        phases.settle(wait=True)
        return timer.snapshot()

    def row(self, samples: Sequence[dict[str, float]]) -> Row:
        """Microseconds per environment step."""
        scale, graphs = 1e6 / self.valid_steps, self._config.learner.learner_graphs == "on"
        row: Row = {"learner": EAGER if self._eager else "accel"}
        row |= training_row(self._config, self._device, graphs=graphs)
        row |= spread("us_per_env_step", [scale * sum(times.values()) for times in samples])
        row |= {f"{phase}_us": scale * float(np.median([times[phase] for times in samples])) for phase in PHASES}
        return row | {"env_steps_per_s": 1e6 / number(row, "us_per_env_step"), "samples": len(samples)}


def random_experience(layout: UnrollLayout, seed: int) -> Unroll:
    """Random observations and rewards, with occasional episode ends."""
    rng = np.random.default_rng(seed)
    unroll = layout.view(np.zeros(layout.nbytes, np.uint8))
    for name in ("frames", "observations", "final_observations"):
        if name in unroll:
            array = unroll[name]
            is_image = array.dtype == np.uint8
            array[...] = rng.integers(0, 256, array.shape) if is_image else rng.standard_normal(array.shape)
            if layout.spec.float_bytes:
                floats = array[..., : layout.spec.float_bytes].view(np.float32)
                floats[...] = rng.standard_normal(floats.shape)
    unroll["rewards"][...] = rng.standard_normal(unroll["rewards"].shape)
    ends = rng.random(unroll["terminated"].shape) < _SHARE_OF_ENDS
    valid = unroll["valid"]
    valid[...] = True
    if layout.spec.autoreset == "same_step":
        unroll["first"][1:] = ends
    else:
        valid[1:] = ~ends  # the row after an end is the reset
        unroll["first"][1:] = ~valid[:-1].view(np.bool_)
        ends = ends & valid[:-1].view(np.bool_)
    unroll["terminated"][...] = ends
    return unroll


def training_row(config: TrainConfig, device: torch.device, *, graphs: bool) -> Row:
    """What is trained, where and how; passes and minibatches are 1 where the algorithm has none."""
    precision, acting, options = config.learner.mixed_precision, config.acting, config.options()
    row: Row = {"network": config.policy.network, "precision": precision, "graphs": "on" if graphs else "off"}
    row |= {"mode": f"{precision}, graphs" if graphs else precision, "device": str(device)}
    row |= {"T": acting.unroll_length, "B": acting.envs_per_actor * config.store.held_unrolls}
    row |= {name: int(str(options.get(name, 1))) for name in ("passes", "minibatches")}
    return row | {"algorithm": config.algorithm.algorithm}


def learner_threads(config: TrainConfig) -> int:
    """Torch threads of a configuration's learner."""
    return config.learner.learner_threads or max(int(read_machine().usable_cores) - config.acting.actors, 1)


def speedup_none(row: Row, rows: Sequence[Row]) -> float | None:
    """Over accel's row of the same training in single precision without graphs; None without one."""
    for other in rows:
        if (other["learner"], other["precision"], other["graphs"]) == ("accel", "none", "off") and all(
            other[name] == row[name] for name in TRAINING
        ):
            return number(other, "us_per_env_step") / number(row, "us_per_env_step")
    return None
