"""Mismatch, bytes and return of a policy quantised to 2 to 8 bits, simulated in floating point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from accel.bench.checks import check_counts
from accel.bench.policies import MeasuredPolicy, Policies
from accel.bench.rows import Row, provenance
from accel.compressors.quantisation.simulation import Simulation, check_width
from accel.errors import ConfigError
from accel.monitor.statistics import mean_interval
from accel.runs.playing import play
from accel.system.timing import torch_threads

WIDTHS = tuple(range(2, 9))
_LEAST_EPISODES = 2

logger = logging.getLogger("accel")


def bench_bits(
    policies: Policies,
    *,
    bits: Sequence[int] = WIDTHS,
    per_channel: bool = False,
    episodes: int = 0,
    seed: int = 0,
) -> list[Row]:
    """Round a policy to every width, with weights alone and with weights and activations.

        for row in bench_bits(Policies(run=Path("results/cartpole")), episodes=20):
            print(row["bits"], row["rounded"], row["kl"], row["return"])

    Args:
        policies: what is rounded.
        bits: widths, each from 2 to 16.
        per_channel: one scale per output channel instead of one per weight.
        episodes: greedy episodes at each width and in full precision, on the same seeds; 0 for none, else at least 2.
        seed: of the episodes.
    Returns:
        Flat rows: ``network``, ``bits``, ``rounded`` (``weights``, or ``weights and activations``), ``per_channel``;
        ``simulated``, as nothing runs in integer kernels; ``kl`` (fp32‖rounded, nats),
        ``ess``, ``greedy_agreement`` on held-out inputs; ``bytes`` of the quantised numbers; ``return``,
        ``return_low``, ``return_high`` (mean and its 95 % interval), ``return_fp32`` and ``episodes``, None without
        any; ``weights`` and ``inputs``; machine and versions.
    Raises:
        ConfigError: an empty list, episodes without an environment.
        SchemeError: a width out of range. What ``Policies`` raises.
    """
    bits = check_counts(bits, "width")
    for width in bits:
        check_width(width)
    if episodes and policies.run is None and policies.config is None:
        raise ConfigError("episodes need an environment: give a run (--run) or an environment (--env)")
    if episodes and episodes < _LEAST_EPISODES:
        raise ConfigError(f"episodes = {episodes}: an interval needs at least {_LEAST_EPISODES}, or give 0 for none")
    rows: list[Row] = []
    with torch_threads():
        for measured in policies:
            rows += _study(measured, bits, per_channel, episodes, seed)
    shared: Row = {"torch_threads": 1} | provenance()
    return [row | shared for row in rows]


def _study(measured: MeasuredPolicy, bits: Sequence[int], per_channel: bool, episodes: int, seed: int) -> Iterator[Row]:
    run = measured.run
    simulation = Simulation(run.policy, measured.calibration, per_channel=per_channel)
    fp32_return: float | None = None
    if episodes:
        logger.info("playing %d episodes in full precision", episodes)
        fp32_return = float(play(run.policy, run, episodes=episodes, seed=seed).returns.mean())
    for rounded, activations in (("weights", False), ("weights and activations", True)):
        for width in bits:
            policy = simulation.policy(width, activations=activations)
            row: Row = {
                "network": measured.network,
                "bits": width,
                "rounded": rounded,
                "per_channel": per_channel,
                "simulated": True,
            }
            row |= measured.mismatch(measured.outputs(policy)) | {"bytes": simulation.size_bytes(width)}
            row |= {
                "per_channel": per_channel,
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
            yield row | {"weights": measured.weights, "inputs": measured.source}
