"""What the learners of a run agree on in every iteration of their loops, so that none waits alone in a collective call.

``SynchronousLearners`` gather a few numbers of every learner in each iteration: whether it has a batch, whether it
stops, what it counted, the sums of its reward statistics. An update is made when all have a batch; one learner's reason
to stop ends all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accel.algorithms.gradient_exchange import GradientExchange
from accel.experience.rewards import RewardTransform
from accel.learning.counters import Counters

IDLE_S = 0.05
"""How long a learner waits for experience before it looks around."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What all learners do in one iteration.

    Attributes:
        reason: why the run stops; None: it goes on.
        learns: whether there is an update. publishes: whether a policy is wanted beyond the schedule.
        actors_alive: of all learners.
    """

    reason: str | None
    learns: bool
    publishes: bool
    actors_alive: int


class Coordination:
    """Called once an iteration. This one is a single learner's.

    Attributes:
        leads: this learner publishes, records and sees the run's limits. alone: there are no others.
        idle_s: how long it may wait for experience in an iteration.
    """

    leads = alone = True
    idle_s = IDLE_S

    def agree(self, reason: str | None, *, due: bool, publishes: bool, actors_alive: int) -> Iteration:
        """What this learner has, and what all do."""
        return Iteration(reason, due, publishes, actors_alive)

    def share_policy(self, version: int, policy: bytes | None) -> tuple[int, bytes | None]:
        """The leading learner's policy and its version, on all of them; None: there is no new one."""
        return version, policy

    def metrics(self) -> Mapping[str, float | int | None]:
        """For a record, of what happened since the last one."""
        return {}


class SynchronousLearners(Coordination):
    """Several learners. Counters and reward statistics are those of all after every iteration."""

    alone = False

    def __init__(self, exchange: GradientExchange, counters: Counters, rewards: RewardTransform) -> None:
        self.leads = exchange.learner == 0
        self._exchange = exchange
        self._counters = counters
        self._rewards = rewards
        self._before = counters.counted()
        rewards.share()

    def agree(self, reason: str | None, *, due: bool, publishes: bool, actors_alive: int) -> Iteration:
        """Gathers every learner's numbers and adds up."""
        counted = [now - before for now, before in zip(self._counters.counted(), self._before, strict=True)]
        episodes = min(int(counted[-1]), len(self._counters.returns), len(self._counters.lengths))
        own = [reason is not None, due, publishes, actors_alive, episodes, *self._rewards.collected(), *counted]
        everyone = self._exchange.gather([float(number) for number in own])
        self._counters.take([int(sum(theirs)) for theirs in zip(*(n[8:] for n in everyone), strict=True)], self._before)
        self._before = self._counters.counted()
        self._rewards.moments.merge(tuple(sum(numbers[i] for numbers in everyone) for i in (5, 6, 7)))  # type: ignore[arg-type]
        if any(numbers[4] for numbers in everyone):
            self._add_episodes(episodes, [int(numbers[4]) for numbers in everyone])
        stopping = [learner for learner, numbers in enumerate(everyone) if numbers[0]]
        if stopping:
            text = self._exchange.share((reason or "").encode(), stopping[0]).decode()
            reason = text if stopping[0] == 0 else f"{text} (learner {stopping[0]})"
        return Iteration(
            reason,
            learns=all(numbers[1] for numbers in everyone),
            publishes=any(numbers[2] for numbers in everyone),
            actors_alive=int(sum(numbers[3] for numbers in everyone)),
        )

    def share_policy(self, version: int, policy: bytes | None) -> tuple[int, bytes | None]:
        """One message."""
        return version, self._exchange.share(policy or b"") or None

    def _add_episodes(self, episodes: int, everyone: list[int]) -> None:
        """The other learners' returns and lengths, behind this one's."""
        counters, most = self._counters, max(everyone)
        own = [0.0] * (2 * most)
        own[:episodes], own[most : most + episodes] = counters.newest(episodes)
        for learner, numbers in enumerate(self._exchange.gather(own)):
            if learner != self._exchange.learner:
                counters.returns.extend(numbers[: everyone[learner]])
                counters.lengths.extend(int(length) for length in numbers[most : most + everyone[learner]])
