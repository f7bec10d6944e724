"""One run on the learner's side: the composition of its parts, and its way to the end: train, checkpoint, summary."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from safetensors.torch import save as save_tensors

from accel.algorithms.catalogue import agree, make_algorithm, make_store
from accel.algorithms.exchange import GradientExchange, LocalGradients
from accel.algorithms.graphs import make_runner
from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.config.experience import KeptConfig
from accel.display.progress import LineProgress, LiveProgress, Progress, ProgressLogHandler, SilentProgress
from accel.display.status import EvaluationStatus, TrainingStatus
from accel.envs.spaces import EnvSpec
from accel.errors import CheckpointError, RunDirectoryError
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import KeptStore, Sample
from accel.learning.actors import Actors
from accel.learning.asynchronous import AsynchronousGradients
from accel.learning.collapse import CollapseDetector
from accel.learning.device import choose_device, choose_precision, keep_freed_memory, phase_events
from accel.learning.following import NoPublisher, NoSampler
from accel.learning.handshake import Crew, Stop
from accel.learning.loop import Loop
from accel.learning.schedule import make_schedule
from accel.learning.turns import SharedTurns
from accel.monitor.decisions import DecisionLog
from accel.monitor.recorder import METRICS_FILE, Recorder
from accel.publishing.distillation import make_divergence
from accel.publishing.publisher import Publisher
from accel.runs.backend_comparison import compare_backends
from accel.runs.checkpoint import CheckpointState, load_generators, pack_generators, pack_state, unpack_state
from accel.runs.directory import RunDirectory
from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.job import Job
from accel.runs.live_evaluation import TIMEOUT_S, LiveEvaluation, NoEvaluation, ProcessEvaluation
from accel.runs.loading import PREFIX
from accel.runs.replay_files import ReplayFiles, fingerprint
from accel.runs.state_tree import Tree
from accel.runs.summary import BackendComparison, SchemeComparison, Summary
from accel.runs.wandb_upload import FINISH_TIMEOUT_S, Metrics, NoUpload, Upload, WandbUpload
from accel.system.energy import Energy, RunEnergy
from accel.system.machine import usable_cores
from accel.transport.base import LearnerTransport
from accel.tuning.autotune import make_steering
from accel.tuning.choice import parse_choice
from accel.tuning.mismatch_sampling import MismatchSampler
from accel.tuning.steering import FixedSteering, Steering

if TYPE_CHECKING:
    from accel.acting.actor import Actor

_OPTIMISER_COPIES = 2  # Adam's moments
_RECORDS_BYTES = 2**20
_REPLAY_ON_DISK = 1.25  # of its memory: pieces of which a part is still needed
_LONG_S = 30.0  # a run for whose environment it pays to look for a faster backend
_PATIENCE_S = 4.0  # for what goes on beside training, where other learners' ranks end ten seconds after it

logger = logging.getLogger("accel")


class Learning:
    """What every learner of a run has: the algorithm, its store, and what takes part in an update.

    Args:
        config: the run's. crew: what the actors announced.
        cores: what this process may use; decides torch's threads where the config does not.
        actors: how many this learner has at the moment.
        join: meets the run's other learners, once the gradients' device is known; None: there are none.
    """

    def __init__(
        self,
        config: TrainConfig,
        crew: Crew,
        cores: tuple[int, ...],
        actors: Callable[[], int],
        join: Callable[[torch.device], GradientExchange] | None = None,
    ) -> None:
        self.config, self.device = config, device = _prepare_torch(config, cores)
        self.spec = spec = crew.spec
        self.exchange: GradientExchange = LocalGradients() if join is None else join(device)
        self.runner = make_runner(config, self.exchange, device)
        self.algorithm = make_algorithm(config, spec, device, self.exchange, self.runner)
        self.agreement, self.layout = agree(config, self.algorithm)
        channels_last = self.algorithm.network.channels_last
        self.batcher = Batcher(spec, device, pinned=config.learner.pinned_transfers, channels_last=channels_last)
        self.rewards = RewardTransform(config.rewards, config.algorithm.discount)
        share = config.share(self.exchange.learner)
        self.store = make_store(share, self.layout, device, self.batcher, self.rewards, actors)

    def join(self, loop: Loop, state: CheckpointState | None) -> None:
        """Begin alike: every learner takes the state that learner 0 gives. With one learner nothing happens."""
        if isinstance(self.exchange, AsynchronousGradients):
            loop.turns = self.exchange.turns(self.config, self.algorithm, loop.counters, self.rewards)
            return  # Others get the state with learner 0's first answer.
        if self.exchange.learners == 1:
            return
        content = self.exchange.share(None if state is None else pack_state(state))
        if self.exchange.learner > 0:
            self.take(loop, unpack_state(content))
        loop.turns = SharedTurns(self.exchange, loop.counters, self.rewards)

    def state(self, loop: Loop) -> CheckpointState:
        """Everything that training goes on from; environments alone start anew."""
        tensors = {f"{PREFIX}{name}": value for name, value in self.algorithm.networks.state_dict().items()}
        counters: dict[str, Tree] = {
            "env_steps": loop.counters.env_steps,
            "version": loop.counters.updates,
            "spec": cast(Tree, self.spec.to_json()),
            "loop": loop.counters.to_json(),
            "rewards": cast(Tree, loop.rewards.state()),
            "generators": pack_generators(),
        }
        return CheckpointState(tensors, self.algorithm.save(), counters)

    def take(self, loop: Loop, state: CheckpointState) -> None:
        """Inverse of ``state``. Raises what its parts raise on a state of something else."""
        counters = state.counters
        self.algorithm.networks.load_state_dict(
            {k.removeprefix(PREFIX): v for k, v in state.tensors.items() if k.startswith(PREFIX)}
        )
        self.algorithm.load(state.algorithm)
        load_generators(counters["generators"])  # type: ignore[arg-type]
        loop.counters.restore(counters["loop"])  # type: ignore[arg-type]
        loop.rewards.restore(counters["rewards"])  # type: ignore[arg-type]


class Session:
    """The objects of one run, built once the environment's layout is known.

    Args:
        job, run, transport, stop: what the session has prepared.
        crew: what the actors announced.
        cores, join: as ``Learning`` takes them.
        restart: how many processes worked on this run before this one.
        actor: the actor of a run in a single process, otherwise None.
        allowed_cores: how many cores this process might use before it was pinned; None: it was not.
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
        allowed_cores: int | None = None,
        join: Callable[[torch.device], GradientExchange] | None = None,
    ) -> None:
        self.job, self.run, self.crew, self.transport, self.actor = job, run, crew, transport, actor
        self.restart = restart
        self._stop, self._allowed_cores = stop, allowed_cores
        self._evaluation: LiveEvaluation = NoEvaluation()
        self._actors = actors = Actors(transport, crew.processes)
        self.learning = learning = Learning(job.config, crew, cores, lambda: len(actors.prompt), join)
        self.config, self.algorithm, self.device = learning.config, learning.algorithm, learning.device
        self.agreement, self.layout = learning.agreement, learning.layout
        config, algorithm = self.config, self.algorithm
        self._choice = choice = parse_choice(config.compression.compressor)
        self.publisher = Publisher(
            config,
            algorithm.network,
            divergence=make_divergence(algorithm),
            cpu_features=crew.cpu_features,
            levels=choice.levels,
        )
        self.sampler = MismatchSampler(config, algorithm, self.publisher.schemes, learning.batcher)
        self._replay = self._replay_files()
        self._lost_actors = 0
        self._lacks_space = False
        self._progress: Progress = SilentProgress()
        self._energy = RunEnergy(config.run.watts_per_core)
        self._recorder: Recorder | None = None
        self._evaluated: EvaluationStatus | None = None
        self._collapse = CollapseDetector(job.config, crew.spec.action)
        self._upload: Upload = NoUpload()
        self.loop = self._make_loop()

    def join(self) -> None:
        """Begin alike with the run's other learners."""
        learning = self.learning
        learning.join(self.loop, learning.state(self.loop) if learning.exchange.learners > 1 else None)

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
                self._collapse.read(self.run.path / METRICS_FILE)
                level = str(self.loop.steering.metrics().get("level", self._choice.levels[0]))
                DecisionLog(self.run.path).go_on(self.loop.counters.env_steps, level)
            self._announce()
            self._evaluation = self._evaluate_meanwhile()
            self._upload = self._upload_meanwhile()
            reason = self._run()
            wall_s = time.time() - self.job.started_at
            self._lost_actors = max(config.acting.actors, 1) - self.loop.actors_alive
            self._finish_beside(reason)  # While actors wait: those that were stopped give the job ten seconds to end.
            deaf = self.transport.stop(config.run.peer_timeout_s)
            if deaf:
                logger.warning("actors %s did not stop within %g s", sorted(deaf), config.run.peer_timeout_s)
            return self._finish(reason, wall_s)
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
            self._evaluation.close()
            self._recorder.close()
            self._progress.close()

    def save(self) -> None:
        """Write a checkpoint of everything that training goes on from; environments alone start anew."""
        state = self.learning.state(self.loop)
        if self.actor is not None:
            actor = cast(Tree, self.actor.generator_state())
            state = replace(state, counters={**state.counters, "actor_generator": actor})
        self.run.save_checkpoint(state, keep=self.config.run.keep_checkpoints)
        if self._replay is not None:
            files, store = self._replay
            try:
                files.save(store)
            except OSError as error:
                logger.warning("the replay could not be saved, the one before is kept: %s", error)

    def check_space(self) -> None:
        """Before training: whether the run's checkpoints and policies will fit. Raises RunDirectoryError."""
        weights = sum(tensor.nbytes for tensor in self.algorithm.networks.state_dict().values())
        state = sum(value.nbytes for value in self.algorithm.networks.parameters()) * _OPTIMISER_COPIES
        keep, existing = self.config.run.keep_checkpoints, len(list(self.run.checkpoints.glob("step-*")))
        missing = max(keep + 1 - existing, 1)  # the new one is whole before the oldest is removed
        replay = 0 if self._replay is None else round(_REPLAY_ON_DISK * self._replay[1].nbytes)
        self.run.check_space(missing * (weights + state) + 2 * weights + _RECORDS_BYTES + replay)

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
            self.learning.take(loop, state)
            if self.actor is not None and "actor_generator" in counters:
                self.actor.set_generator_state(counters["actor_generator"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint in {self.run.path} lacks what training needs: {error!r}") from error
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint in {self.run.path} is of another network ({str(error).splitlines()[-1].strip()}): "
                "resume with its own --network and --algorithm"
            ) from None
        loop.steering = self._steer(loop.counters.env_steps)
        if self._replay is not None:
            files, store = self._replay
            try:
                if not files.load(store):
                    logger.info("%s holds no replay: it is filled anew", self.run.path)
            except CheckpointError as error:
                logger.warning("%s: the replay is filled anew", error)

    def _make_loop(self) -> Loop:
        learning, actor = self.learning, self.actor
        return Loop(
            self.config,
            self.algorithm,
            learning.store,
            make_schedule(self.config),
            learning.rewards,
            self.publisher,
            self.transport,
            self.layout,
            sampler=self.sampler,
            steering=self._steer(0),
            record=self._record,
            checkpoint=self._checkpoint,
            save_sample=self._save_sample,
            actors=self._actors,
            published=self._published,
            collect=None if actor is None else actor.turn,
            stop_requested=self._stop,
            make_event=phase_events(self.device),
        )

    def _replay_files(self) -> tuple[ReplayFiles, KeptStore] | None:
        """Where the replay is saved, and the store that keeps it; None: it is not."""
        options = self.config.store
        if not (isinstance(options, KeptConfig) and options.save_replay):
            return None
        shape = fingerprint(
            layout=self.layout.digest, store=options.model_dump(exclude={"save_replay", "batch_size"}),
            actors=self.config.acting.actors, n_step=self.config.algorithm.bootstrap_steps,
            steps=self.config.algorithm.wants_steps,
        )  # fmt: skip
        return ReplayFiles(self.run.path / "replay", shape), cast(KeptStore, self.learning.store)

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
            cores=usable_cores(self._allowed_cores),
        )

    def _run(self) -> str:
        """Train with a checkpoint behind it, whatever ends it; returns why it stopped.

        Raises: RunDirectoryError: what was learned since the newest checkpoint does not fit on the disk.
        """
        self._saved = self._progress_made()
        try:
            self.transport.configure(self.layout.nbytes)
            self.loop.publish()
            if self.actor is not None:
                self.actor.start()
            self._progress.begin(f"{self.config.environment.env} · {self.config.compression.compressor}")
            self._energy = RunEnergy(self.config.run.watts_per_core)
            reason = self.loop.run()
        except BaseException:
            self.publisher.close()
            if self._is_sound():
                with suppress(RunDirectoryError):  # the first error counts
                    self._checkpoint()
            raise
        self.publisher.close()
        if self._is_sound():
            try:
                self.save()
            except RunDirectoryError as error:
                raise RunDirectoryError(f"{error}; make room, and resume the run") from error
        return reason

    def _is_sound(self) -> bool:
        """Whether there is something to save that training can go on from."""
        if self.learning.exchange.broken or self.loop.counters.env_steps == 0:
            return False
        return self.algorithm.is_finite() and self.loop.rewards.is_finite()

    def _progress_made(self) -> tuple[int, int]:
        return self.loop.counters.env_steps, self.loop.counters.updates

    def _checkpoint(self) -> None:
        """``save`` where there is something new: environments may be slower than checkpoints, and state is large.

        That a checkpoint does not fit is logged once. Raises RunDirectoryError where the run is gone.
        """
        if self._saved == (made := self._progress_made()):
            return
        try:
            self.save()
        except RunDirectoryError as error:
            self.run.check_exists()
            if not self._lacks_space:
                logger.warning("%s; the run goes on", error)
            self._lacks_space = True
        else:
            self._saved = made
            if self._lacks_space:
                logger.warning("checkpoints are written again")
            self._lacks_space = False

    def _open_progress(self) -> Progress:
        """Live only where the user's command has a terminal: mpirun gives its ranks one even where it has none."""
        columns = self.job.columns
        return LineProgress(sys.stdout) if columns is None else LiveProgress(sys.stdout, columns=columns)

    def _announce(self) -> None:
        config = self.job.config
        if config.acting.actors and not self.transport.fault_tolerant:
            logger.info(
                "this MPI ends the job when a rank or node is lost; a checkpoint every %g s",
                config.run.checkpoint_interval_s,
            )
        if self.job.resume is not None:
            logger.info("going on at %d environment steps", self.loop.counters.env_steps)

    def _evaluate_meanwhile(self) -> LiveEvaluation:
        """What plays the policies of this run while it trains."""
        every = self.config.run.evaluate_every
        if every is None:
            return NoEvaluation()
        return ProcessEvaluation(
            self.run.path,
            self.crew.spec.to_json(),
            every=every,
            env_steps=self.loop.counters.env_steps,
            waits=self.actor is not None,
            cores=self._allowed_cores,
            limits_s=(self.config.acting.actor_timeout_s, self.config.run.peer_timeout_s),
            stopped=self._stop,
            meanwhile=self.transport.pump,
        )

    def _upload_meanwhile(self) -> Upload:
        project = self.config.run.wandb
        return NoUpload() if project is None else WandbUpload(project, self.run.path, self.config.to_json())

    def _published(self, version: int, payload: bytes) -> None:
        acts_with_torch = self.config.acting.actor_runtime == "torch"
        artifact = b"" if acts_with_torch else payload
        self._evaluation.offer(self.loop.counters.env_steps, version, artifact, self._weights)

    def _weights(self) -> bytes:
        """A copy of the networks as they are now, safetensors."""
        networks = self.algorithm.networks.state_dict()
        return save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in networks.items()})

    def _finish_beside(self, reason: str) -> None:
        """Play the policy that the run ends with and send what is not yet sent, unless its user waits for the end."""
        counters, alone = self.loop.counters, self.loop.turns.alone
        if self.config.run.evaluate_every is not None and self._stop() is None:
            self._progress.begin("evaluating the final policy")
            artifact = self.publisher.artifact(counters.updates)
            content = b"" if artifact is None else artifact.to_bytes()
            patience_s = TIMEOUT_S if alone else _PATIENCE_S
            self._evaluation.finish(counters.env_steps, counters.updates, content, self._weights, patience_s)
            while self._recorder is not None and (news := self._evaluation.metrics()):
                self._recorder.record(counters.env_steps, news)
                self._upload.record(counters.env_steps, news)
        outcome: Metrics = {"reason": reason, "env_steps": counters.env_steps, "return_mean": counters.mean_return}
        self._upload.finish(outcome, self.transport.pump, FINISH_TIMEOUT_S if alone else _PATIENCE_S)

    def _record(self, env_steps: int, metrics: dict[str, float | int | str | None]) -> None:
        self.run.check_exists()
        metrics = metrics | self._evaluation.metrics()
        self._energy.poll()
        if self._recorder is not None:
            self._recorder.record(env_steps, metrics)
            self._upload.record(env_steps, metrics)
        config = self.job.config
        status = TrainingStatus.from_record(
            metrics | {"env_steps": env_steps},
            total_env_steps=config.run.total_env_steps,
            return_target=config.run.stop_at_return,
            actors=max(config.acting.actors, 1),
            evaluation=self._evaluated,
        )
        self._evaluated = status.evaluation
        if (finding := self._collapse.observe(env_steps, metrics)) is not None:
            logger.warning("%s", finding)
        self._progress.advance(status)

    def _save_sample(self, sample: Sample) -> str:
        content = save_tensors(
            {name: tensor.detach().cpu().clone().contiguous() for name, tensor in sample.tensors().items()}
        )
        try:
            return str(self.run.write_diverged(content))
        except RunDirectoryError as error:
            return f"no file ({error})"

    def _finish(self, reason: str, wall_s: float) -> Summary:
        """Write the policies and the summary."""
        loop = self.loop
        acted_s = loop.time_totals()["actor_s"] if self.config.acting.actors > 0 else {}
        busy_s = sum(seconds for phase, seconds in acted_s.items() if phase != "wait")
        energy = self._energy.end(busy_s, self.job.config.learner.learners)
        artifact = self.publisher.artifact(loop.counters.updates)
        if artifact is not None and loop.trained_env_steps:
            self._write_policies(artifact)
        vector_steps = max(loop.unrolls * self.config.acting.unroll_length, 1)
        env_us = 1e6 * loop.time_totals()["actor_s"]["env"] / vector_steps
        comparison = None if artifact is None else self._compare(artifact, env_us)
        scheme = self.config.compression.compressor if artifact is None else artifact.scheme
        summary = self._summary(reason, wall_s, scheme, comparison, energy)
        self.run.write_summary(summary.to_json())
        if summary.bottleneck == "environment" and (backends := self._compare_backends(summary)) is not None:
            summary = replace(summary, backends=backends)
            self.run.write_summary(summary.to_json())
        return summary

    def _compare_backends(self, summary: Summary) -> BackendComparison | None:
        """Whether EnvPool is faster, after a run that took long and that nobody waits for."""
        asked, acting = self.config.environment, self.config.acting
        known = asked.backend == "gymnasium" and not (asked.wrapper or asked.env_arg or asked.task)
        if not (known and self.loop.turns.alone and summary.finished and summary.training_s >= _LONG_S):
            return None
        self._progress.begin("timing the environment on EnvPool")
        return compare_backends(asked.env, acting.envs_per_actor, squash_actions=asked.squash_actions)

    def _summary(
        self, reason: str, wall_s: float, scheme: str, comparison: SchemeComparison | None, energy: Energy
    ) -> Summary:
        config, loop = self.config, self.loop
        counters, times = loop.counters, loop.time_totals()
        return Summary(
            path=str(self.run.path),
            reason=reason,
            env=config.environment.env,
            scheme=scheme,
            actor_runtime=", ".join(sorted(loop.actors.runtimes)) or config.acting.actor_runtime,
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
            actor_restarts=counters.actor_restarts,
            environment_restarts=counters.environment_restarts,
            learner_s=times["learner_s"],
            actor_s=times["actor_s"],
            comparison=comparison,
            compressor=config.compression.compressor,
            compressor_chosen=self.job.compressor_chosen,
            mixed_precision=config.learner.mixed_precision,
            learner_graphs=self.learning.runner.outcome,
            finished=loop.finished() is not None,
            evaluation=self._evaluation.result,
            warnings=self._collapse.findings,
            job=self.job.token,
            cpu_s=energy.cpu_s,
            energy_j=energy.joules,
            energy_source=energy.source,
        )

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
        algorithm, envs = self.algorithm, self.publisher.rows_per_actor
        return compare_with_fp32(
            artifact,
            fp32,
            inputs,
            lambda outputs: algorithm.distribution(outputs, None),
            self.crew.spec.action,
            batch=envs,
            env_us=env_us,
            runtime=self.config.acting.session_runtime,
        )


class Follower:
    """A learner that trains with learner 0, which publishes and records.

    Args: as for ``Session``.
    """

    def __init__(
        self,
        job: Job,
        crew: Crew,
        transport: LearnerTransport,
        stop: Stop,
        cores: tuple[int, ...],
        join: Callable[[torch.device], GradientExchange],
    ) -> None:
        self.transport = transport
        actors = Actors(transport, crew.processes)
        self.learning = learning = Learning(job.config, crew, cores, lambda: len(actors.prompt), join)
        self.agreement, self.layout = learning.agreement, learning.layout
        self.loop = Loop(
            learning.config,
            learning.algorithm,
            learning.store,
            make_schedule(learning.config),
            learning.rewards,
            NoPublisher(),
            transport,
            self.layout,
            sampler=NoSampler(),
            steering=FixedSteering(),
            record=lambda env_steps, metrics: None,
            checkpoint=lambda: None,
            save_sample=lambda sample: "no file: learner 0 keeps its own",
            actors=actors,
            stop_requested=stop,
            make_event=phase_events(learning.device),
        )

    def join(self) -> None:
        """Begin alike with the run's other learners."""
        self.learning.join(self.loop, None)

    def train(self) -> None:
        """Train to the end that all agree on, then stop this learner's actors."""
        timeout_s = self.learning.config.run.peer_timeout_s
        self.transport.configure(self.layout.nbytes)
        self.loop.publish()
        self.loop.run()
        if deaf := self.transport.stop(timeout_s):
            logger.warning("actors %s did not stop within %g s", sorted(deaf), timeout_s)


def _prepare_torch(config: TrainConfig, cores: tuple[int, ...]) -> tuple[TrainConfig, torch.device]:
    """Set threads and memory for the learner; its device, and the configuration with the precision chosen for it."""
    torch.set_num_threads(config.learner.learner_threads or max(len(cores), 1))
    device = choose_device(config.learner.device)
    precision = choose_precision(config, device)
    if config.learner.mixed_precision == "auto":
        logger.info("the learner computes in %s", "single precision" if precision == "none" else precision)
    if device.type == "cpu":
        keep_freed_memory()
    return config.replace(mixed_precision=precision), device
