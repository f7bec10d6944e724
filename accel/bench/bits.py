"""Mismatch, bytes and return of a policy quantised to 2 to 8 bits, simulated in floating point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from accel.bench.checks import check_counts, check_source
from accel.bench.rows import Row, provenance
from accel.bench.subject import Subject, make_subject
from accel.bench.timing import torch_threads
from accel.compressors.quantisation.study import Simulation, check_width
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from accel.monitor.statistics import mean_interval
from accel.runs.playing import play
from accel.runs.trained_policy import TrainedPolicy

WIDTHS = tuple(range(2, 9))
ARITHMETIC = "simulated"
_LEAST_EPISODES = 2

logger = logging.getLogger("accel")


def bench_bits(
    networks: Sequence[str] = ("mlp:64x2",),
    *,
    bits: Sequence[int] = WIDTHS,
    per_channel: bool = False,
    spec: EnvSpec | None = None,
    config: TrainConfig | None = None,
    run: Path | TrainedPolicy | None = None,
    activation: str = "tanh",
    episodes: int = 0,
    seed: int = 0,
) -> list[Row]:
    """Round a policy to every width, with weights alone and with weights and activations.

        for row in bench_bits(run=Path("results/cartpole"), episodes=20):
            print(row["bits"], row["rounded"], row["kl"], row["return"])

    Args:
        networks: network texts; ignored with ``run``, which has its own network.
        bits: widths, each from 2 to 16.
        per_channel: one scale per output channel instead of one per weight.
        spec: observations and actions; None: those of ``config``'s environment, or ``default_spec``.
        config: a configuration whose environment provides layout and inputs; inputs are random numbers without it.
        run: a run's directory or a trained policy: its weights, on inputs from its environment.
        activation: of mlp torsos with random weights, without ``config``.
        episodes: greedy episodes at each width and in full precision, on the same seeds; 0 for none, else at least 2.
        seed: of the episodes.
    Returns:
        Flat rows: ``network``, ``bits``, ``rounded`` (``weights``, or ``weights and activations``), ``per_channel``;
        ``arithmetic`` and ``simulated``, as nothing runs in integer kernels; ``kl`` (fp32‖rounded, nats),
        ``ess``, ``greedy_agreement`` on held-out inputs; ``bytes`` of the quantised numbers; ``return``,
        ``return_low``, ``return_high`` (mean and its 95 % interval), ``return_fp32`` and ``episodes``, None without
        any; ``weights`` and ``inputs``; machine and versions.
    Raises:
        ConfigError: an empty list, an unknown network, episodes without an environment, a run beside a config.
        SchemeError: a width out of range. EnvError, MissingExtraError: the environment cannot be made.
        RunDirectoryError, CheckpointError: the run cannot be read.
    """
    bits = check_counts(bits, "width")
    for width in bits:
        check_width(width)
    texts = check_source(networks, run, config, spec)
    if episodes and run is None and config is None:
        raise ConfigError("episodes need an environment: give a run (--run) or an environment (--env)")
    if episodes and episodes < _LEAST_EPISODES:
        raise ConfigError(f"episodes = {episodes}: an interval needs at least {_LEAST_EPISODES}, or give 0 for none")
    rows: list[Row] = []
    with torch_threads():
        for text in texts:
            subject = make_subject(text, spec, config, run, activation)
            rows += _study(subject, bits, per_channel, episodes, seed)
    shared: Row = {"torch_threads": 1} | provenance()
    return [row | shared for row in rows]


def _study(subject: Subject, bits: Sequence[int], per_channel: bool, episodes: int, seed: int) -> Iterator[Row]:
    run = subject.run
    simulation = Simulation(run.policy, subject.calibration, per_channel=per_channel)
    fp32_return: float | None = None
    if episodes:
        logger.info("playing %d episodes in full precision", episodes)
        fp32_return = float(play(run.policy, run, episodes=episodes, seed=seed).returns.mean())
    for rounded, activations in (("weights", False), ("weights and activations", True)):
        for width in bits:
            policy = simulation.policy(width, activations=activations)
            row: Row = {"network": subject.network, "bits": width, "rounded": rounded, "per_channel": per_channel}
            row |= {"arithmetic": ARITHMETIC, "simulated": True}
            row |= subject.mismatch(subject.outputs(policy)) | {"bytes": simulation.size_bytes(width)}
            row |= {
                "return": None,
                "return_low": None,
                "return_high": None,
                "return_fp32": fp32_return,
                "episodes": episodes,
            }
            if episodes:
                logger.info("playing %d episodes with %d bits, %s rounded", episodes, width, rounded)
                returns = play(policy, run, episodes=episodes, seed=seed).returns
                found = mean_interval(returns)
                row |= {"return": float(returns.mean()), "return_low": found.low, "return_high": found.high}
            yield row | {"weights": subject.weights, "inputs": subject.source}
