"""Local policies against central inference: what actors of both kinds achieve together, with the same policy."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accel.algorithms.catalogue import agreement_for
from accel.bench.checks import check_budget, check_counts, check_schemes
from accel.bench.inference_job import ActingJob, ActingResult
from accel.bench.policies import MeasuredPolicy, Policies, of_free_actors
from accel.bench.rows import FULL_PRECISION, Notify, Row, number, provenance, spread
from accel.compressors.artifact import CompressedPolicy
from accel.config.actor import ActorConfig

INFERENCES = ("local", "central")
SCHEMES = (FULL_PRECISION, "int8")
SAMPLE_S = 2.0

logger = logging.getLogger("accel")


def bench_inference(
    policies: Policies,
    *,
    actors: int = 2,
    envs_per_actor: Sequence[int] = (8,),
    schemes: Sequence[str] = SCHEMES,
    seconds: float = 20.0,
    repeats: int = 50,
    notify: Notify = logger.info,
) -> list[Row]:
    """Compare actors that run a policy of their own with actors that ask one rank, in jobs of real ranks.

    Every job has ``actors`` actors, a rank more where inference is central, and a learner that learns nothing: it takes
    the unrolls, and publishes another policy after one of each actor, so that nobody waits for an update. Jobs of all
    cells run in turns.

    Args:
        policies, envs_per_actor, schemes: as for ``bench_actor``. Full precision is always measured too.
        actors: processes that step environments.
        seconds: total measuring time, without starting jobs, which takes several seconds each.
        repeats: jobs of each cell at most, each measured for two seconds or more.
        notify: called with a message about each refused scheme.
    Returns:
        Flat rows: ``env``, ``network``, ``envs``, ``actors``, ``inference``, ``scheme``; ``env_steps_per_s`` of all
        actors together with ``_low`` and ``_high`` (median, 10th and 90th percentile); ``cpu_s_per_million`` with its
        spread, CPU-seconds of all processes but the learner's per million environment steps (None where the system
        does not tell); ``lag`` (versions published between an unroll's oldest step and its arrival) and ``step_lag``
        (of its mean step); ``speedup_local``, over the local policy of the same scheme; ``raw_env_steps_per_s``, each
        job's; ``bytes``; machine and versions.
    Raises:
        ConfigError, SchemeError: as ``bench_actor``, and what ``Policies`` raises.
        LaunchError: no mpirun, or a job failed.
    """
    check_budget(seconds, repeats)
    schemes, counts = check_schemes(schemes), check_counts(envs_per_actor, "envs-per-actor")
    check_counts((actors,), "actors")
    with tempfile.TemporaryDirectory() as directory:
        cells: list[_Cell] = []
        for measured in policies.in_environment(actors=actors):
            logger.info("compressing %s", measured.network)
            artifacts = measured.artifacts(schemes, notify)
            for envs in counts:
                for scheme, artifact in artifacts.items():
                    files = _write(artifact, Path(directory) / str(len(cells)))
                    cells += [_make_cell(measured, actors, envs, kind, scheme, files) for kind in INFERENCES]
        rounds = max(1, min(repeats, int(seconds / SAMPLE_S / len(cells))))
        sample_s = seconds / rounds / len(cells)
        for turn in range(1, rounds + 1):
            logger.info("round %d of %d: %d jobs of %.3g s", turn, rounds, len(cells), sample_s)
            for cell in cells:
                cell.samples.append(replace(cell.job, seconds=sample_s).run())
    rows = [cell.measured() for cell in cells]
    for row in rows:
        local = next(r for r in rows if _same(r, row) and r["inference"] == "local")
        row["speedup_local"] = number(row, "env_steps_per_s") / number(local, "env_steps_per_s")
    shared = provenance() | {"onnxruntime_threads": 1}
    return [row | shared for row in rows]


@dataclass(eq=False)
class _Cell:
    """One row: its job, and what came of it."""

    row: Row
    job: ActingJob
    samples: list[ActingResult] = field(default_factory=list)

    def measured(self) -> Row:
        """The row, with the medians of its samples."""
        rates = [sample.env_steps / sample.seconds for sample in self.samples]
        row = self.row | spread("env_steps_per_s", rates)
        used = [1e6 * s.cpu_s / s.env_steps for s in self.samples if s.cpu_s is not None and s.env_steps]
        name = "cpu_s_per_million"
        lacking: Row = dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        row |= spread(name, used) if used else lacking
        row |= {"lag": _mean([s.lag for s in self.samples]), "step_lag": _mean([s.step_lag for s in self.samples])}
        row |= {"samples": len(rates), "raw_env_steps_per_s": " ".join(f"{rate:.6g}" for rate in rates)}
        return row | {"raw_cpu_s_per_million": " ".join(f"{value:.4g}" for value in used)}


def _make_cell(
    measured: MeasuredPolicy, actors: int, envs: int, kind: str, scheme: str, files: Sequence[Path]
) -> _Cell:
    run = measured.run
    changes = {"actors": actors, "envs_per_actor": envs, "inference": kind, "pin_cores": False, "compressor": scheme}
    config = of_free_actors(run.config).replace(**changes)
    rule = run.rule
    agreement, _ = agreement_for(
        config, run.spec, run.policy.state_shapes, run.rule_spec, rule.output_size, rule.explores
    )
    told = ActorConfig.of(config, schemes=(scheme,))
    row: Row = {"env": config.environment.env, "network": measured.network, "envs": envs, "actors": actors}
    row |= {"inference": kind, "scheme": scheme, "weights": measured.weights, "bytes": files[0].stat().st_size}
    row |= {"unroll_length": config.acting.unroll_length}
    return _Cell(row, ActingJob(told.to_json(), agreement.to_json(), [str(file) for file in files], 0.0))


def _write(artifact: CompressedPolicy, path: Path) -> list[Path]:
    """Two files of one policy, whose headers differ: one that is the same as the last is not sent again."""
    found = []
    for version in (1, 2):
        found.append(path.with_suffix(f".{version}"))
        found[-1].write_bytes(replace(artifact, version=version).to_bytes())
    return found


def _same(row: Row, other: Row) -> bool:
    return all(row[name] == other[name] for name in ("network", "envs", "scheme"))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
