"""One run on the learner's side: the composition of its parts, and its way to the end: train, checkpoint, summary."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from safetensors.torch import save as save_tensors

from accel.algorithms.catalogue import agree, make_algorithm, make_store
from accel.display.progress import LineProgress, LiveProgress, Progress, ProgressLogHandler, SilentProgress
from accel.display.status import TrainingStatus
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Sample
from accel.learning.device import choose_device, choose_precision, keep_freed_memory
from accel.learning.handshake import Crew, Stop
from accel.learning.loop import Loop
from accel.learning.schedule import make_schedule
from accel.publishing.distillation import make_divergence
from accel.publishing.publisher import Publisher
from accel.runs.checkpoint import CheckpointState, load_generators, pack_generators
from accel.runs.directory import RunDirectory
from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.job import Job
from accel.runs.state_tree import Tree
from accel.runs.summary import SchemeComparison, Summary
from accel.transport.base import LearnerTransport
from accel.tuning.autotune import make_steering
from accel.tuning.choice import parse_choice
from accel.tuning.mismatch_sampling import MismatchSampler
from accel.tuning.steering import Steering
from compressors.artifact import CompressedPolicy
from monitor.decisions import DecisionLog
from monitor.recorder import Recorder

if TYPE_CHECKING:
    from accel.acting.actor import Actor

PREFIX = "network."

logger = logging.getLogger("accel")


class Session:
    """The objects of one run, built once the environment's layout is known.

    Args:
        job, run, transport, stop: what the session has prepared.
        crew: what the actors announced.
        cores: what this process may use; decides torch's threads where the config does not.
        restart: how many processes worked on this run before this one.
        actor: the actor of a run in a single process, otherwise None.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        crew: Crew,
        transport: LearnerTransport,
        stop: Stop,
        cores: tuple[int, ...],
        restart: int,
        actor: Actor | None,
    ) -> None:
        config = job.config
        self.job, self.run, self.crew, self.transport, self.actor = job, run, crew, transport, actor
        self.restart = restart
        torch.set_num_threads(config.learner.learner_threads or max(len(cores), 1))
        device = choose_device(config.learner.device)
        precision = choose_precision(config, device)
        if config.learner.mixed_precision == "auto":
            logger.info("the learner computes in %s", "single precision" if precision == "none" else precision)
        if device.type == "cpu":
            keep_freed_memory()
        spec = crew.spec
        self.config = config = config.replace(mixed_precision=precision)
        self.algorithm = algorithm = make_algorithm(config, spec, device)
        self.device = device
        self.agreement, self.layout = agree(config, algorithm)
        batcher = Batcher(
            spec, device, pinned=config.learner.pinned_transfers, channels_last=algorithm.network.channels_last
        )
        rewards = RewardTransform(config.rewards, config.algorithm.discount)
        self._choice = choice = parse_choice(config.compression.compressor, config.policy.network)
        self.publisher = Publisher(
            config,
            algorithm.network,
            divergence=make_divergence(algorithm),
            cpu_features=crew.cpu_features,
            levels=choice.levels,
        )
        self.sampler = MismatchSampler(config, algorithm, self.publisher.schemes, batcher)
        self._lost_actors = 0
        self._progress: Progress = SilentProgress()
        self._recorder: Recorder | None = None
        self.loop = Loop(
            config,
            algorithm,
            make_store(config, spec, device, batcher, rewards),
            make_schedule(config),
            rewards,
            self.publisher,
            transport,
            self.layout,
            sampler=self.sampler,
            steering=self._steer(0),
            record=self._record,
            checkpoint=self.save,
            save_sample=self._save_sample,
            collect=None if actor is None else actor.step,
            stop_requested=stop,
        )

    def train(self) -> Summary:
        """Publish, train, and leave a checkpoint, the policy and a summary behind.

        Raises:
            AccelError: a checkpoint of the last sound state was written if there is one.
        """
        config, resumed = self.job.config, self.job.resume is not None
        self._recorder = Recorder(self.run.path, resume_env_steps=self.loop.counters.env_steps if resumed else None)
        self._progress = self._open_progress()
        handler = ProgressLogHandler(self._progress)
        logger.addHandler(handler)
        logger.propagate, propagate = False, logger.propagate
        try:
            if resumed:
                level = str(self.loop.steering.metrics().get("level", self._choice.levels[0]))
                DecisionLog(self.run.path).go_on(self.loop.counters.env_steps, level)
            self._announce()
            reason = self._run()
            wall_s = time.time() - self.job.started_at
            self._lost_actors = self.transport.actors - len(self.transport.alive())
            deaf = self.transport.stop(config.run.peer_timeout_s)
            if deaf:
                logger.warning("actors %s did not stop within %g s", sorted(deaf), config.run.peer_timeout_s)
            return self._finish(reason, wall_s)
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
            self._recorder.close()
            self._progress.close()

    def save(self) -> None:
        """Write a checkpoint of everything that training goes on from; environments alone start anew."""
        loop = self.loop
        tensors = {f"{PREFIX}{name}": value for name, value in self.algorithm.networks.state_dict().items()}
        counters: dict[str, Tree] = {
            "env_steps": loop.counters.env_steps,
            "version": loop.counters.updates,
            "spec": cast(Tree, self.crew.spec.to_json()),
            "loop": loop.counters.to_json(),
            "rewards": cast(Tree, loop.rewards.state()),
            "generators": pack_generators(),
        }
        if self.actor is not None:
            counters["actor_generator"] = cast(Tree, self.actor.generator_state())
        self.run.save_checkpoint(
            CheckpointState(tensors, self.algorithm.save(), counters), keep=self.config.run.keep_checkpoints
        )

    def restore(self) -> None:
        """Go on from the run's newest checkpoint.

        Raises:
            CheckpointError: there is none, it is damaged, or of another environment, algorithm or network.
        """
        state = self.run.load_checkpoint()
        loop, counters, ours = self.loop, state.counters, self.crew.spec
        try:
            spec = EnvSpec.from_json(counters["spec"])  # type: ignore[arg-type]
            if spec != ours:
                raise CheckpointError(
                    f"{self.run.path} was trained on an environment with other spaces ({spec.observation_shape} → "
                    f"{spec.action.kind} {spec.action.sizes}): resume with its own --env and wrappers"
                )
            self.algorithm.networks.load_state_dict(
                {k.removeprefix(PREFIX): v for k, v in state.tensors.items() if k.startswith(PREFIX)}
            )
            self.algorithm.load(state.algorithm)
            load_generators(counters["generators"])  # type: ignore[arg-type]
            loop.counters.restore(counters["loop"])  # type: ignore[arg-type]
            loop.rewards.restore(counters["rewards"])  # type: ignore[arg-type]
            if self.actor is not None and "actor_generator" in counters:
                self.actor.set_generator_state(counters["actor_generator"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint in {self.run.path} lacks what training needs: {error!r}") from error
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint in {self.run.path} is of another network ({str(error).splitlines()[-1].strip()}): "
                "resume with its own --network and --algorithm"
            ) from None
        loop.steering = self._steer(loop.counters.env_steps)

    def _steer(self, env_steps: int) -> Steering:
        """What steers the run from these environment steps on."""
        return make_steering(
            self._choice,
            self.config,
            self.publisher,
            self.transport,
            self.sampler,
            self.run.path,
            env_steps,
        )

    def _run(self) -> str:
        """Train with a checkpoint behind it, whatever ends it; returns why it stopped."""
        try:
            self.transport.configure(self.layout.nbytes)
            self.loop.publish()
            if self.actor is not None:
                self.actor.start()
            self._progress.begin(f"{self.config.environment.env} · {self.config.compression.compressor}")
            return self.loop.run()
        finally:
            self.publisher.close()
            if self.loop.counters.updates > 0 and self.algorithm.is_finite() and self.loop.rewards.is_finite():
                self.save()

    def _open_progress(self) -> Progress:
        """Live only where the user's command has a terminal: mpirun gives its ranks one even where it has none."""
        columns = self.job.columns
        return LineProgress(sys.stdout) if columns is None else LiveProgress(sys.stdout, columns=columns)

    def _announce(self) -> None:
        config = self.job.config
        if config.acting.actors and not self.transport.fault_tolerant:
            logger.info(
                "this MPI ends the job when an actor dies; a checkpoint every %g s", config.run.checkpoint_interval_s
            )
        if self.job.resume is not None:
            logger.info("going on at %d environment steps", self.loop.counters.env_steps)

    def _record(self, env_steps: int, metrics: dict[str, float | int | str | None]) -> None:
        if self._recorder is not None:
            self._recorder.record(env_steps, metrics)
        config = self.job.config
        status = TrainingStatus.from_record(
            metrics | {"env_steps": env_steps},
            total_env_steps=config.run.total_env_steps,
            return_target=config.run.stop_at_return,
            actors=self.transport.actors,
        )
        self._progress.advance(status)

    def _save_sample(self, sample: Sample) -> str:
        content = save_tensors(
            {name: tensor.detach().cpu().clone().contiguous() for name, tensor in sample.tensors().items()}
        )
        return str(self.run.write_diverged(content))

    def _finish(self, reason: str, wall_s: float) -> Summary:
        config, loop = self.config, self.loop
        counters = loop.counters
        times = loop.time_totals()
        vector_steps = max(loop.unrolls * config.acting.unroll_length, 1)
        artifact = self.publisher.artifact(counters.updates)
        if artifact is not None and loop.trained_env_steps:
            self._write_policies(artifact)
        env_us = 1e6 * times["actor_s"]["env"] / vector_steps
        comparison = None if artifact is None else self._compare(artifact, env_us)
        summary = Summary(
            path=str(self.run.path),
            reason=reason,
            env=config.environment.env,
            scheme=config.compression.compressor if artifact is None else artifact.scheme,
            actor_runtime=config.acting.actor_runtime,
            algorithm=config.algorithm.algorithm,
            corrector=str(config.options().get("corrector", "none")),
            actors=config.acting.actors,
            device=str(self.device),
            seed=config.run.seed,
            env_steps=counters.env_steps,
            updates=counters.updates,
            episodes=counters.episodes,
            return_mean=float(np.mean(counters.returns)) if counters.returns else None,
            training_s=loop.training_s,
            wall_s=wall_s,
            env_steps_per_s=loop.trained_env_steps / max(loop.training_s, 1e-9),
            lag=loop.lag.as_json(),
            dropped_unrolls=counters.dropped_unrolls,
            dead_actors=self._lost_actors,
            learner_s=times["learner_s"],
            actor_s=times["actor_s"],
            comparison=comparison,
            compressor=config.compression.compressor,
            mixed_precision=config.learner.mixed_precision,
            finished=loop.finished() is not None,
            job=self.job.token,
        )
        self.run.write_summary(summary.to_json())
        return summary

    def _write_policies(self, artifact: CompressedPolicy) -> None:
        """The final policy; beside it, of the same weights, the uncompressed one where there is a difference."""
        self.run.write_policy("final.accel", artifact.to_bytes())
        if artifact.scheme != "fp32" or (self.run.policy / "fp32.accel").exists():
            self.run.write_policy("fp32.accel", self.publisher.full_precision(artifact.version).to_bytes())

    def _compare(self, artifact: CompressedPolicy, env_us: float) -> SchemeComparison | None:
        inputs = self.publisher.recent_inputs()
        if artifact.scheme == "fp32" or not inputs:
            return None
        fp32 = self.publisher.full_precision(artifact.version)
        envs = self.config.acting.envs_per_actor
        return compare_with_fp32(artifact, fp32, inputs, self.algorithm, batch=envs, env_us=env_us)
