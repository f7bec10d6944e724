"""Microseconds, bytes and mismatch of a policy's call on every runtime and under every scheme."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from accel.acting.torch_policy import serialise_module
from accel.bench.calls import CHANNELS_LAST, Call, compiled_call, eager_modules, session_call, torch_call
from accel.bench.checks import check_budget, check_counts, check_networks, check_schemes
from accel.bench.rows import Notify, Row, number, provenance, spread
from accel.bench.subject import (
    FULL_PRECISION,
    NO_MISMATCH,
    Inputs,
    Subject,
    environment_spec,
    make_subject,
)
from accel.bench.timing import interleave, timed_calls, torch_threads
from accel.config import TrainConfig
from accel.envs.spaces import EnvSpec
from accel.errors import ConfigError
from compressors.artifact import CompressedPolicy

RUNTIMES = ("torch", "torch.compile", "onnxruntime")
SCHEMES = ("fp32", "fp16", "int8", "int8(per_channel)", "int8-dynamic", "prune(0.5)", "prune(0.5)+int8")

logger = logging.getLogger("accel")


def bench_policy(
    networks: Sequence[str] = ("mlp:64x2",),
    *,
    batches: Sequence[int] = (1, 8, 32),
    schemes: Sequence[str] = SCHEMES,
    runtimes: Sequence[str] = RUNTIMES,
    spec: EnvSpec | None = None,
    config: TrainConfig | None = None,
    run: Path | None = None,
    activation: str = "tanh",
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Time one call of a policy on one thread, runtimes and schemes in turns, and measure what compression changes.

        rows = bench_policy(["mlp:256x2"], batches=[8], schemes=["fp32", "int8"], runtimes=["torch", "onnxruntime"])

    Args:
        networks: network texts; with ``run`` its own network is measured and these are not looked at.
        batches: rows per call: environments that one actor steps together.
        schemes: compression schemes, on onnxruntime. Full precision is always measured beside them.
        runtimes: any of ``torch`` (eager, in the memory format that is faster here), ``torch.compile`` (compiled for
            each batch, seconds to minutes) and ``onnxruntime``.
        spec: observations and actions; None: those of ``config``'s environment, or ``default_spec``.
        config: a configuration whose environment gives layout and real inputs; inputs are random numbers without.
        run: a run's directory: its trained weights, on inputs that it meets.
        activation: of mlp torsos with random weights, without ``config``.
        seconds: measuring time in all; exporting, compressing and compiling come on top.
        repeats: samples of each cell at most, each 2 ms or one call.
        notify: told in a line what is refused or does not work here.
    Returns:
        Flat rows: ``network``, ``batch``, ``runtime``, ``scheme``; ``us``, ``us_low``, ``us_high`` (median, 10th and
        90th percentile of a call, µs); ``bytes`` of the policy as it travels; ``speedup_torch``, ``speedup_fp32``
        (against torch eager, and against onnxruntime's fp32; None where that was not measured); ``kl``, ``ess``,
        ``greedy_agreement`` against torch on held-out inputs (KL(fp32‖scheme) in nats; None on torch); ``weights``
        (``random`` ones say little about mismatch) and ``inputs``; ``memory_format``, ``compile_s``; threads, machine
        and versions.
    Raises:
        ConfigError: an empty list, an unknown network or runtime, a batch that is not positive, a run beside a config.
        SchemeError: an unknown scheme. EnvError, MissingExtraError: the environment cannot be made.
        RunDirectoryError, CheckpointError: the run cannot be read.
    """
    check_budget(seconds, repeats)
    batches, schemes = check_counts(batches, "batch"), check_schemes(schemes)
    _check_runtimes(runtimes)
    if run is not None and (config is not None or spec is not None):
        raise ConfigError("a run brings its own environment and network: leave out the others")
    texts = ("",) if run is not None else check_networks(networks)
    if config is not None and spec is None:
        spec = environment_spec(config)
    rows: list[Row] = []
    with torch_threads():
        for text in texts:
            subject = make_subject(text, spec, config, run, activation)
            budget_s = seconds / len(texts) / len(batches)
            rows += _measure(subject, batches, schemes, runtimes, budget_s, repeats, notify)
    shared = provenance()
    return [row | shared for row in rows]


def _check_runtimes(runtimes: Sequence[str]) -> None:
    unknown = sorted(set(runtimes) - set(RUNTIMES))
    if unknown or not runtimes:
        raise ConfigError(f"unknown runtimes {unknown}: choose from {', '.join(RUNTIMES)}")


def _measure(
    subject: Subject,
    batches: Sequence[int],
    schemes: Sequence[str],
    runtimes: Sequence[str],
    budget_s: float,
    repeats: int,
    notify: Notify,
) -> list[Row]:
    logger.info("compressing %s", subject.network)
    artifacts = subject.artifacts(schemes, notify) if "onnxruntime" in runtimes else {}
    mismatches = {scheme: subject.mismatch_of(artifact) for scheme, artifact in artifacts.items()}
    torch_bytes = len(serialise_module(subject.run.policy))
    rows: list[Row] = []
    for batch in batches:
        inputs = {name: np.resize(a, (batch, *a.shape[1:])) for name, a in subject.held_out.items()}
        contest = _Contest(subject, inputs, runtimes, artifacts, notify)
        logger.info("measuring %s, batch %d", subject.network, batch)
        with torch.inference_mode():
            takers = {key: timed_calls(call) for key, call in contest.calls.items()}
            samples, cpu_share = interleave(takers, budget_s, repeats)
        cells: list[Row] = []
        for (runtime, scheme), (detail, times_us) in contest.best(samples).items():
            size = torch_bytes if runtime != "onnxruntime" else len(artifacts[scheme].to_bytes())
            cell: Row = {"network": subject.network, "batch": batch, "runtime": runtime, "scheme": scheme}
            cell |= spread("us", times_us) | {"bytes": size, "samples": len(times_us), "cpu_share": cpu_share}
            cell |= mismatches.get(scheme, NO_MISMATCH) if runtime == "onnxruntime" else NO_MISMATCH
            cell |= {"memory_format": detail, "compile_s": contest.compile_s if runtime == "torch.compile" else None}
            cells.append(cell)
        rows += [row | _speedups(row, cells) for row in cells]
    shared: Row = {"weights": subject.weights, "inputs": subject.source, "torch_threads": 1, "onnxruntime_threads": 1}
    return [row | shared for row in rows]


class _Contest:
    """Everything that is called in turns for one batch; keys are runtime, scheme and memory format."""

    def __init__(
        self,
        subject: Subject,
        inputs: Inputs,
        runtimes: Sequence[str],
        artifacts: dict[str, CompressedPolicy],
        notify: Notify,
    ) -> None:
        self.calls: dict[tuple[str, str, str | None], Call] = {}
        self.compile_s = 0.0
        eager = eager_modules(subject.run)
        with torch.inference_mode():
            if "torch" in runtimes:
                for layout, module in eager.items():
                    self.calls["torch", FULL_PRECISION, layout] = torch_call(module, inputs, layout)
        if "torch.compile" in runtimes:
            layout = CHANNELS_LAST if CHANNELS_LAST in eager else next(iter(eager))
            logger.info("compiling %s by torch.compile", subject.network)
            try:
                call, self.compile_s = compiled_call(eager[layout], inputs, layout)
                self.calls["torch.compile", FULL_PRECISION, layout] = call
            except (RuntimeError, ImportError, OSError) as error:
                first_line = str(error).strip().partition("\n")[0]
                notify(f"torch.compile does not work here: {type(error).__name__}: {first_line}")
        for scheme, artifact in artifacts.items():
            self.calls["onnxruntime", scheme, None] = session_call(artifact, inputs)

    @staticmethod
    def best(
        samples: dict[tuple[str, str, str | None], list[float]],
    ) -> dict[tuple[str, str], tuple[str | None, list[float]]]:
        """Of the memory formats the one with the lower median."""
        chosen: dict[tuple[str, str], tuple[str | None, list[float]]] = {}
        for (runtime, scheme, layout), times_us in sorted(samples.items(), key=lambda item: float(np.median(item[1]))):
            chosen.setdefault((runtime, scheme), (layout, times_us))
        order = [(runtime, scheme) for runtime, scheme, _ in samples]
        return {key: chosen[key] for key in dict.fromkeys(order)}


def _speedups(row: Row, cells: Sequence[Row]) -> Row:
    """How many times as fast as torch eager and as onnxruntime's full precision at the same batch."""
    found: Row = {}
    for name, runtime in (("speedup_torch", "torch"), ("speedup_fp32", "onnxruntime")):
        baseline = [c for c in cells if c["runtime"] == runtime and c["scheme"] == FULL_PRECISION]
        found[name] = number(baseline[0], "us") / number(row, "us") if baseline else None
    return found
