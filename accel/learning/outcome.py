"""What a run leaves behind at its end: the last policies, their comparison with fp32, and the summary."""

from __future__ import annotations

import numpy as np

from accel.compressors.artifact import CompressedPolicy
from accel.learning.learner import Learner
from accel.learning.loop import Loop
from accel.learning.records import Records
from accel.publishing.publisher import Publisher
from accel.runs.directory import RunDirectory
from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.job import Job
from accel.runs.summary import EvaluationSummary, SchemeComparison, Summary


def write_outcome(
    job: Job,
    run: RunDirectory,
    learner: Learner,
    loop: Loop,
    publisher: Publisher,
    *,
    reason: str,
    wall_s: float,
    records: Records,
    evaluation: EvaluationSummary | None,
) -> Summary:
    """Write the policies and the summary of a run whose loop has ended. Raises RunDirectoryError.

    Args:
        reason: why it stopped. wall_s: since the user's command. evaluation: as in ``Summary``.
    """
    config, counters, times = learner.config, learner.counters, loop.time_totals()
    acted_s = times["actor_s"] if config.acting.actors > 0 else {}
    # The other learners have spent as much, each with its actors.
    busy_s = sum(s for phase, s in acted_s.items() if phase != "wait")
    cpu_s = config.learner.learners * (records.cpu_s + busy_s)
    artifact = publisher.artifact(counters.updates)
    if artifact is not None and loop.trained_env_steps:
        _write_policies(run, publisher, artifact)
    vector_steps = max(loop.unrolls * config.acting.unroll_length, 1)
    env_us = 1e6 * times["actor_s"]["env"] / vector_steps
    summary = Summary(
        path=str(run.path),
        reason=reason,
        env=config.environment.env,
        scheme=config.compression.compressor if artifact is None else artifact.scheme,
        actor_runtime=", ".join(sorted(loop.actors.runtimes)) or config.acting.actor_runtime,
        algorithm=config.algorithm.algorithm,
        corrector=str(config.options().get("corrector", "none")),
        actors=config.acting.actors,
        device=str(learner.device),
        seed=config.run.seed,
        env_steps=counters.env_steps,
        updates=counters.updates,
        updates_owed=loop.updates_owed,
        episodes=counters.episodes,
        return_mean=float(np.mean(counters.returns)) if counters.returns else None,
        training_s=loop.training_s,
        wall_s=wall_s,
        env_steps_per_s=loop.trained_env_steps / max(loop.training_s, 1e-9),
        lag=loop.lag.as_json(),
        dropped_unrolls=counters.dropped_unrolls,
        dead_actors=max(config.acting.actors, 1) - loop.actors_alive,
        actor_restarts=counters.actor_restarts,
        environment_restarts=counters.environment_restarts,
        learner_s=times["learner_s"],
        actor_s=times["actor_s"],
        comparison=None if artifact is None else _compare(learner, publisher, artifact, env_us),
        compressor=config.compression.compressor,
        compressor_chosen=job.compressor_chosen,
        mixed_precision=config.learner.mixed_precision,
        learner_graphs=learner.runner.outcome,
        finished=loop.finished() is not None,
        evaluation=evaluation,
        warnings=records.warnings,
        job=job.token,
        cpu_s=cpu_s,
    )
    run.write(run.summary, summary.to_json())
    return summary


def _write_policies(run: RunDirectory, publisher: Publisher, artifact: CompressedPolicy) -> None:
    """The final policy; beside it, of the same weights, the uncompressed one where there is a difference."""
    run.write(run.policy / "final.accel", artifact.to_bytes())
    if artifact.scheme != "fp32" or (run.policy / "fp32.accel").exists():
        run.write(run.policy / "fp32.accel", publisher.full_precision(artifact.version).to_bytes())


def _compare(
    learner: Learner, publisher: Publisher, artifact: CompressedPolicy, env_us: float
) -> SchemeComparison | None:
    inputs = publisher.recent_inputs()
    if artifact.scheme == "fp32" or not inputs:
        return None
    return compare_with_fp32(
        artifact,
        publisher.full_precision(artifact.version),
        inputs,
        lambda outputs: learner.algorithm.distribution(outputs, None),
        learner.spec.action,
        batch=publisher.rows_per_actor,
        env_us=env_us,
        runtime=learner.config.acting.session_runtime,
    )
