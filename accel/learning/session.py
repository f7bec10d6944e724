"""One run on the learner's side: the composition of its parts, and its way to the end: train, checkpoint, summary."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from safetensors.torch import save as save_tensors

from accel.errors import RunDirectoryError
from accel.experience.stores.base import Sample
from accel.learning.actors import Actors
from accel.learning.checkpoints import Checkpoints
from accel.learning.compression import make_compression, resume_log
from accel.learning.handshake import ActorGroup, LearnerPlace
from accel.learning.learner import Learner
from accel.learning.loop import Callback, Loop, Metrics
from accel.learning.outcome import write_outcome
from accel.learning.records import Records
from accel.publishing.publisher import NoPublisher
from accel.runs.directory import RunDirectory
from accel.runs.job import Job
from accel.runs.live_evaluation import TIMEOUT_S, LiveEvaluation, ProcessEvaluation
from accel.runs.summary import Summary
from accel.transport.base import LearnerTransport
from accel.tuning.mismatch_sampling import NoSampler
from accel.tuning.steering import Steering

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from accel.acting.joining import InlineActor
    from accel.algorithms.gradient_exchange import GradientExchange

_PATIENCE_S = 4.0  # for what goes on beside training, where other learners' ranks end ten seconds after it
_UPLOAD_PATIENCE_S = 60.0

logger = logging.getLogger("accel")


class Session(Callback):
    """The objects of one run, built once the environment's layout is known.

    Args:
        inline: the actor of a run in a single process, otherwise None. connect: as ``Learner`` takes it.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        group: ActorGroup,
        place: LearnerPlace,
        inline: InlineActor | None = None,
        connect: Callable[[torch.device], GradientExchange] | None = None,
    ) -> None:
        self.job, self.run, self.transport = job, run, place.transport
        self.actor = None if inline is None else inline.actor
        self._place = place
        # The clock may be set while the run goes on.
        self._before_s, self._made_s = max(time.time() - job.started_at, 0.0), time.monotonic()
        self._evaluation = LiveEvaluation()
        actors = Actors(place.transport, group.processes)
        own = os.uname().nodename
        here = 0 if inline is not None else group.hosts.count(own)
        self._hosts = len({own, *group.hosts})
        self.learner = Learner(job.config, group.spec, place.cores, actors.count_prompt, connect, here)
        self.learner.lend_network(self.actor)
        self.publisher, sampler, steering = make_compression(self.learner, group.cpu_features, place, run.path)
        self.loop = Loop(
            self.learner,
            place.transport,
            actors,
            self.publisher,
            NoSampler() if self.learner.on_device else sampler,  # There its own network acts.
            steering,
            callback=self,
            collect=None if inline is None else inline.turn,
            stop_requested=place.stop,
        )
        self.checkpoints = Checkpoints(run, self.learner, self.actor)

    def train(self) -> Summary:
        """Publish, train, and leave a checkpoint, the policy and a summary behind.

        Raises AccelError: a checkpoint of the last sound state was written if there is one.
        """
        counters, spec = self.learner.counters, self.learner.spec
        resumed_at = None if self.job.resume is None else counters.env_steps
        with Records(self.job, self.run.path, spec.action, resumed_at) as self._records:
            self._announce(resumed_at)
            with closing(self._evaluate_meanwhile()) as self._evaluation:
                reason = self._learn()
                wall_s = self._before_s + time.monotonic() - self._made_s
                self._finish_beside(reason)  # While actors wait: those that were stopped give the job ten seconds.
                stop_actors(self.transport, self.job.config.run.peer_timeout_s)
                return write_outcome(
                    self.job,
                    self.run,
                    self.learner,
                    self.loop,
                    self.publisher,
                    reason=reason,
                    wall_s=wall_s,
                    records=self._records,
                    evaluation=self._evaluation.result,
                )

    def record(self, env_steps: int, metrics: Metrics) -> None:
        """See ``Callback``."""
        self.run.check_exists()
        self._records.add(env_steps, metrics | self._evaluation.metrics())

    def checkpoint(self) -> None:
        """See ``Callback``."""
        self.checkpoints.save_new()

    def published(self, env_steps: int, version: int, policy: bytes) -> None:
        """See ``Callback``."""
        artifact = b"" if self.job.config.acting.actor_runtime == "torch" else policy
        self._evaluation.offer(env_steps, version, artifact, self._weights)

    def stopping(self) -> None:
        """See ``Callback``."""
        if self.learner.counters.env_steps > 0:
            self.checkpoints.save_apart()

    def save_sample(self, sample: Sample) -> str:
        """See ``Callback``."""
        try:
            return str(self.run.write(self.run.path / "diverged.safetensors", _pack(sample.tensors())))
        except RunDirectoryError as error:
            return f"no file ({error})"

    def _learn(self) -> str:
        """Train with a checkpoint behind it, whatever ends it; returns why it stopped.

        Raises: RunDirectoryError: what was learned since the newest checkpoint does not fit on the disk.
        """
        try:
            self.transport.configure(self.learner.layout.nbytes)
            self.loop.publish()
            if self.actor is not None:
                self.actor.start()
            self._records.begin()
            reason = self.loop.run()
        except BaseException:
            self.publisher.close()
            if self._is_worth_saving():
                with suppress(RunDirectoryError):  # the first error counts
                    self.checkpoints.save_new()
            raise
        self.publisher.close()
        if self._is_worth_saving():
            try:
                self.checkpoints.save()
            except RunDirectoryError as error:
                raise RunDirectoryError(f"{error}; make room, and resume the run") from error
        return reason

    def _is_worth_saving(self) -> bool:
        return self.learner.counters.env_steps > 0 and self.learner.is_sound()

    def _announce(self, resumed_at: int | None) -> None:
        config = self.job.config
        if config.acting.actors and not self.transport.fault_tolerant:
            logger.info(
                "this MPI ends the job when a rank or node is lost; a checkpoint every %g s",
                config.run.checkpoint_interval_s,
            )
        if self._hosts > 1:
            logger.info(
                "ranks of %d hosts listen for each other on the network: whoever reaches these ports can end the run "
                "(docs/clusters.md, Ports)",
                self._hosts,
            )
        if resumed_at is not None:
            resume_log(self.run.path, self.loop.steering, self.publisher, resumed_at)
            logger.info("going on at %d environment steps", resumed_at)

    def _evaluate_meanwhile(self) -> LiveEvaluation:
        """What plays the policies of this run while it trains."""
        config = self.job.config
        if config.run.evaluate_every is None:
            return LiveEvaluation()
        return ProcessEvaluation(
            self.run.path,
            self.learner.spec.to_json(),
            every=config.run.evaluate_every,
            env_steps=self.learner.counters.env_steps,
            waits=self.actor is not None,
            cores=self._place.allowed_cores,
            limits_s=(config.acting.actor_timeout_s, config.run.peer_timeout_s),
            stopped=self._place.stop,
            meanwhile=self.transport.pump,
        )

    def _weights(self) -> bytes:
        return _pack(self.learner.algorithm.networks.state_dict())

    def _finish_beside(self, reason: str) -> None:
        """Play the policy that the run ends with and send what is not yet sent, unless its user waits for the end."""
        counters, alone = self.learner.counters, self.learner.coordination.alone
        if self.job.config.run.evaluate_every is not None and self._place.stop() is None:
            self._records.progress.begin("evaluating the final policy")
            artifact = self.publisher.artifact(counters.updates)
            content = b"" if artifact is None else artifact.to_bytes()
            patience_s = TIMEOUT_S if alone else _PATIENCE_S
            self._evaluation.finish(counters.env_steps, counters.updates, content, self._weights, patience_s)
            while news := self._evaluation.metrics():
                self._records.write(counters.env_steps, news)
        outcome: Metrics = {"reason": reason, "env_steps": counters.env_steps, "return_mean": counters.mean_return}
        self._records.upload.finish(outcome, self.transport.pump, _UPLOAD_PATIENCE_S if alone else _PATIENCE_S)


def follow(
    job: Job, group: ActorGroup, place: LearnerPlace, connect: Callable[[torch.device], GradientExchange]
) -> None:
    """Train with learner 0, which publishes and records, to the end that all agree on. Args: as for ``Session``."""
    transport, actors = place.transport, Actors(place.transport, group.processes)
    learner = Learner(job.config, group.spec, place.cores, actors.count_prompt, connect)
    transport.welcome(learner.agreement.to_json())
    learner.synchronise()
    parts = (NoPublisher(), NoSampler(), Steering(), Callback())
    loop = Loop(learner, transport, actors, *parts, stop_requested=place.stop)
    transport.configure(learner.layout.nbytes)
    loop.publish()
    loop.run()
    stop_actors(transport, job.config.run.peer_timeout_s)


def stop_actors(transport: LearnerTransport, timeout_s: float) -> None:
    """Tell every actor that the run is over; warns of those that do not answer."""
    if silent := transport.stop(timeout_s):
        logger.warning("actors %s did not stop within %g s", sorted(silent), timeout_s)


def _pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A copy of tensors as they are now, safetensors."""
    return save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})
