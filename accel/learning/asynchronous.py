"""Learners that exchange gradients without waiting for each other: learner 0 keeps the parameters (A3C, GORILA).

After each of its updates another learner asks learner 0: it sends its gradient and what it has counted, and gets the
newest parameters, the statistics that go with them, and a new policy for its actors. Meanwhile it takes in experience.
Learner 0 makes a step with every gradient that arrives, between its own ones, so that all share the optimiser's
moments; one that missed more updates than the algorithm allows is dropped. Steps and updates count over all learners,
so that a ratio of the two holds for the run. A learner has one open question at most, and each has one answer: memory
is bounded, and no learner waits for any other but learner 0.

Source: Mnih et al. 2016, arXiv:1602.01783, sections 4 and 5; Nair et al. 2015, arXiv:1507.04296, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from accel.algorithms.base import Algorithm, GradientAlgorithm
from accel.algorithms.gradient_exchange import GradientExchange
from accel.algorithms.optimizers import Optimiser
from accel.algorithms.state_tree import Tree
from accel.config import TrainConfig
from accel.errors import ConfigError, TransportError
from accel.experience.rewards import RewardTransform
from accel.learning.coordination import Coordination, Iteration
from accel.learning.counters import Counters, LagStatistics
from accel.runs.checkpoint import CheckpointState, pack_state, unpack_state
from accel.supervision.clock import AwakeClock
from accel.transport.endpoint import Backoff
from accel.transport.learners import LearnerLink

ASK_S = 0.25
"""How often a learner asks that has nothing to learn from."""
_GRADIENT = "gradient"
_IDLE_S = 0.002
_LISTENS_S = 1.0


class Question(TypedDict):
    """What a learner tells learner 0, beside its gradient.

    Attributes:
        version: of the parameters that the gradient is of, in updates.
        counted: by ``COUNTED``, since the last question. returns, lengths: of the episodes among them, the newest.
        actors: how many are alive. publishes: whether it wants a policy.
        reason: why it wants to stop. done: it has heard that the run stops, and sends nothing more.
    """

    version: int
    counted: list[int]
    returns: list[float]
    lengths: list[int]
    actors: int
    publishes: bool
    reason: str | None
    done: bool


class Answer(TypedDict):
    """What learner 0 answers, beside the networks.

    Attributes:
        updates, env_steps: of the run so far. moments: mean, variance and count of the reward normalisation.
        version, policy: the newest one's version, and its bytes where the learner does not have them.
        reason: why the run stops; None: it goes on.
    """

    updates: int
    env_steps: int
    moments: list[float]
    version: int
    policy: npt.NDArray[np.uint8] | None
    reason: str | None


class AsynchronousGradients(GradientExchange):
    """Of a learner whose sums are its own alone, and whose steps learner 0 makes.

    Attributes:
        pending: whether the parameters' gradients are to be sent to learner 0.
    """

    def __init__(self, post: LearnerLink) -> None:
        self.learner = post.learner
        self.pending = False
        self._post = post

    def step(self, optimizer: Optimiser) -> None:
        """On learner 0; the others' gradients are sent to it in their next iteration."""
        if self.learner == 0:
            optimizer.step()
        else:
            self.pending = True

    def coordination(
        self, config: TrainConfig, algorithm: Algorithm, counters: Counters, rewards: RewardTransform
    ) -> Coordination:
        """How this learner works with the others.

        Raises ConfigError: the algorithm has no gradients to exchange, or its networks are too large to be sent.
        """
        if not isinstance(algorithm, GradientAlgorithm):
            raise ConfigError("learners can exchange the gradients of a GradientAlgorithm only")
        networks_bytes = sum(tensor.nbytes for tensor in algorithm.networks.state_dict().values())
        if networks_bytes > (largest := self._post.largest_bytes):
            raise ConfigError(
                f"learners of '{config.algorithm.algorithm}' send each other networks of {networks_bytes:,} bytes, and "
                f"a message of this MPI has {largest:,} at most: make --network smaller, use MPICH, or --learners 1"
            )
        if self.learner == 0:
            return ParameterServer(self._post, config, algorithm, counters, rewards)
        return ParameterClient(self, self._post, config, algorithm, counters, rewards)


class ParameterServer(Coordination):
    """Learner 0: applies the others' gradients and answers them. Its counters and statistics are the run's."""

    leads, alone = True, False
    idle_s = _IDLE_S

    def __init__(
        self,
        post: LearnerLink,
        config: TrainConfig,
        algorithm: GradientAlgorithm,
        counters: Counters,
        rewards: RewardTransform,
    ) -> None:
        self._post, self._algorithm, self._counters, self._rewards = post, algorithm, counters, rewards
        self._total_env_steps = config.run.total_env_steps
        self._timeout_s = config.run.peer_timeout_s
        self._interval = config.schedule.publish_interval_updates
        self._lag_limit = config.algorithm.gradient_lag_limit
        self._considered = counters.updates
        self._published: tuple[int, bytes | None] = -1, None
        others = range(1, post.learners)
        self._actors = dict.fromkeys(others, 0)
        self._has = dict.fromkeys(others, -1)
        self._clock = AwakeClock(_LISTENS_S)
        self._heard_s = dict.fromkeys(others, 0.0)
        self._lag, self._dropped = LagStatistics(), 0

    def agree(self, reason: str | None, *, due: bool, publishes: bool, actors_alive: int) -> Iteration:
        """What this learner wants, once every question is answered."""
        now_s = self._clock.look()
        for learner in self._actors:
            if (content := self._post.poll(learner)) is not None:
                self._heard_s[learner] = now_s
                question = self._take(content, learner)
                publishes |= question["publishes"]
                if question["reason"] is not None:
                    reason = reason or f"{question['reason']} (learner {learner})"
                self._answer(learner, None)
            elif now_s - self._heard_s[learner] > self._timeout_s:
                raise TransportError(f"learner {learner} was silent for {self._timeout_s:g} s")
        if reason is not None:
            self._stop(reason)
        return Iteration(reason, due, publishes or self._passed(due), actors_alive + sum(self._actors.values()))

    def share_policy(self, version: int, policy: bytes | None) -> tuple[int, bytes | None]:
        """Kept for the others' next questions."""
        self._considered = version
        if policy is not None:
            self._published = version, policy
        return version, policy

    def metrics(self) -> Mapping[str, float | int | None]:
        """``gradient_lag_*``: updates that others' gradients missed, from their parameters to their application.
        ``dropped_gradients``: how many missed too many, since the run began or was resumed."""
        lag, self._lag = self._lag.as_json(), LagStatistics()
        return {f"gradient_{name}": value for name, value in lag.items()} | {"dropped_gradients": self._dropped}

    def _passed(self, due: bool) -> bool:
        """Whether a publication is due by the updates that others' gradients made, and not by an own one at once."""
        updates = self._counters.updates
        own = due and (updates + 1) % self._interval == 0
        return updates // self._interval > self._considered // self._interval and not own

    def _take(self, content: bytes, learner: int) -> Question:
        """Count what another learner counted, and make a step with its gradient."""
        state, counters = unpack_state(content), self._counters
        question = cast(Question, state.counters)
        counters.take(question["counted"])
        counters.returns.extend(question["returns"])
        counters.lengths.extend(question["lengths"])
        self._actors[learner] = question["actors"]
        lag = counters.updates - question["version"]
        if state.tensors and self._lag_limit is not None and lag > self._lag_limit:
            self._dropped += 1
        elif state.tensors:
            self._lag.add(lag)
            self._algorithm.apply(state.tensors[_GRADIENT], min(counters.env_steps / self._total_env_steps, 1.0))
            counters.updates += 1
        return question

    def _answer(self, learner: int, reason: str | None) -> None:
        version, policy = self._published
        moments = self._rewards.moments
        is_new = policy is not None and version > self._has[learner] and reason is None
        answer = Answer(
            updates=self._counters.updates,
            env_steps=self._counters.env_steps,
            moments=[moments.mean, moments.variance, moments.count],
            version=version,
            policy=np.frombuffer(policy, np.uint8) if policy is not None and is_new else None,
            reason=reason,
        )
        self._has[learner] = version
        networks = {} if reason is not None else self._algorithm.networks.state_dict()
        self._post.post(learner, _pack(networks, answer))

    def _stop(self, reason: str) -> None:
        """Tell the others, and wait until they have heard it; what they still send is left out."""
        for learner in self._actors:
            self._answer(learner, reason)
        backoff = Backoff(self._timeout_s)
        waiting = set(self._actors)
        while waiting:
            for learner in sorted(waiting):
                content = self._post.poll(learner)
                if content is not None and cast(Question, unpack_state(content).counters)["done"]:
                    waiting.remove(learner)
            if waiting and not backoff.pause():
                raise TransportError(f"learners {sorted(waiting)} did not stop within {self._timeout_s:g} s")


class ParameterClient(Coordination):
    """Every other learner: sends its gradients and takes what learner 0 answers, whose state replaces its own."""

    leads = alone = False
    idle_s = _IDLE_S

    def __init__(
        self,
        exchange: AsynchronousGradients,
        post: LearnerLink,
        config: TrainConfig,
        algorithm: GradientAlgorithm,
        counters: Counters,
        rewards: RewardTransform,
    ) -> None:
        self._exchange, self._post = exchange, post
        self._algorithm, self._counters, self._rewards = algorithm, counters, rewards
        self._timeout_s = config.run.peer_timeout_s
        self._told = counters.counted()
        self._version = -1
        self._policy: tuple[int, bytes | None] = 0, None
        self._publishes = False
        self._reason: str | None = None
        self._clock = AwakeClock(_LISTENS_S)
        self._asks, self._asked_s = False, 0.0

    def agree(self, reason: str | None, *, due: bool, publishes: bool, actors_alive: int) -> Iteration:
        """Asks where there is something to send or to hear; waits for the answer only where an update is due."""
        self._publishes |= publishes
        backoff = Backoff(None)
        while self._reason is None:
            self._hear()
            waited_s = self._clock.look() - self._asked_s
            idle = not due and waited_s >= ASK_S
            if not self._asks and (self._exchange.pending or reason is not None or self._version < 0 or idle):
                self._ask(reason, actors_alive)
            elif self._asks and waited_s > self._timeout_s:
                raise TransportError(f"learner 0 was silent for {self._timeout_s:g} s")
            if not (self._asks and (due or reason is not None)):
                break
            backoff.pause()
        return Iteration(self._reason, due, self._policy[1] is not None, actors_alive)

    def share_policy(self, version: int, policy: bytes | None) -> tuple[int, bytes | None]:
        """The one that learner 0 has published last, if that was since the last time."""
        found, self._policy = self._policy, (version, None)
        return found

    def _ask(self, reason: str | None, actors_alive: int, *, done: bool = False) -> None:
        counters, before, self._told = self._counters, self._told, self._counters.counted()
        counted = [now - then for now, then in zip(self._told, before, strict=True)]
        returns, lengths = counters.newest(counted[-1])
        question = Question(
            version=self._version,
            counted=counted,
            returns=returns,
            lengths=lengths,
            actors=actors_alive,
            publishes=self._publishes,
            reason=reason,
            done=done,
        )
        self._post.post(
            0, _pack({_GRADIENT: self._algorithm.parameters.gradient} if self._exchange.pending else {}, question)
        )
        self._exchange.pending = self._publishes = False
        self._asks, self._asked_s = True, self._clock.look()

    def _hear(self) -> None:
        content = self._post.poll(0)
        if content is None:
            return
        state = unpack_state(content)
        answer = cast(Answer, state.counters)
        self._asks = False
        if answer["reason"] is not None:
            self._reason = answer["reason"]
            self._ask(None, 0, done=True)
            return
        self._algorithm.networks.load_state_dict(state.tensors)
        if (normaliser := self._algorithm.network.normaliser) is not None:
            normaliser.collected()  # From another mean: learner 0's statistics count.
        moments = self._rewards.moments
        moments.mean, moments.variance, moments.count = answer["moments"]
        self._version = self._counters.updates = self._algorithm.updates = answer["updates"]
        self._counters.env_steps += answer["env_steps"] - self._told[0]
        self._told[0] = answer["env_steps"]
        if answer["policy"] is not None:
            self._policy = answer["version"], answer["policy"].tobytes()


def _pack(tensors: Mapping[str, Tensor], told: Question | Answer) -> bytes:
    return pack_state(CheckpointState(tensors, {}, cast(Mapping[str, Tree], told)))
