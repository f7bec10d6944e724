"""A discrete-event simulation of actors, the learner's network link and one learner, fed with measured costs.

Actors collect unrolls, load the newest policy that has arrived before each, and hold ``in_flight`` unrolls that the
learner has not taken beside the one they collect; then they wait. Unrolls share the learner's inbound link, policies
its outbound one, each in order of arrival. Between two updates the learner takes in unrolls until a batch is whole; an
update takes time in proportion to the batch; every ``publish_interval`` updates it compresses the policy and sends it.
A policy that has not left when a newer one is published is replaced by it, as in ``transport/remote_learner.py``. Where
there are fewer receivers than actors, each receiver relays to its node (``transport/relays.py``).

Not simulated: failures, several learners, environments whose steps depend on the policy, memory and caches that ranks
of one node share.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

_WARM_UP = 0.25


@dataclass(frozen=True)
class Costs:
    """What was measured.

    Attributes:
        unroll_s: an actor's seconds for an unroll, without waiting and loading. load_s: for a new policy.
        take_s: the learner's seconds for taking in an unroll. update_s: for an unroll's share of an update.
        refresh_s: for compressing a policy and framing it, once. post_s: for sending it to one receiver.
        relay_s: from a receiver's having a policy until its node has it, where it relays.
        unroll_bytes, policy_bytes: as they travel.
        unroll_env_steps: valid steps of an unroll.
        spread: relative standard deviation of ``unroll_s``, log-normal.
    """

    unroll_s: float
    load_s: float
    take_s: float
    update_s: float
    refresh_s: float
    post_s: float
    unroll_bytes: float
    policy_bytes: float
    unroll_env_steps: float
    spread: float = 0.05
    relay_s: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What a user chooses.

    Attributes:
        actors: processes that act.
        batch_unrolls: of an update.
        publish_interval: updates between publications.
        in_flight: unrolls an actor may have sent that the learner has not taken.
        link_bytes_per_s: of the learner's node in each direction; infinite: one node.
        latency_s: of a message.
        receivers: copies of a policy on the link: actors, or nodes where a process shares it out; None: actors.
    """

    actors: int
    batch_unrolls: int = 1
    publish_interval: int = 1
    in_flight: int = 1
    link_bytes_per_s: float = math.inf
    latency_s: float = 50e-6
    receivers: int | None = None


@dataclass(frozen=True)
class Prediction:
    """A run after its warm-up.

    Attributes:
        env_steps_per_s: that the learner learns from.
        learner_wait, actor_wait: shares of time.
        inbound, outbound: shares of time in which the link carries unrolls, and policies.
        lag: mean number of updates between the policy of an unroll and its use.
    """

    env_steps_per_s: float
    learner_wait: float
    actor_wait: float
    inbound: float
    outbound: float
    lag: float


@dataclass
class _Actor:
    held: int = 0  # version it acts with
    arrived: int = 0
    sent: int = 0
    began_with: int = 0
    waits_since: float | None = None


@dataclass
class _Clock:
    """Events by time, and what is counted once the warm-up is over."""

    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    count: int = 0
    now: float = 0.0

    def at(self, time: float, kind: str, who: int = 0, version: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, kind, who, version))


class Pipeline:
    """One simulated run."""

    def __init__(self, costs: Costs, setting: Setting, seed: int = 0) -> None:
        self._costs, self._setting = costs, setting
        self._rng = np.random.default_rng(seed)
        self._clock = _Clock()
        self._actors = [_Actor() for _ in range(setting.actors)]
        self._queue: deque[tuple[int, int]] = deque()
        self._taken: list[int] = []
        self._updates = self._version = 0
        self._updating = False
        self._free_at = self._inbound_free = 0.0
        self._outbox: deque[int] = deque()
        self._waiting_receivers: set[int] = set()
        self._outbound_busy = False
        self._spread = math.sqrt(math.log1p(costs.spread**2))
        self._busy = {"learner": 0.0, "inbound": 0.0, "outbound": 0.0, "actor wait": 0.0}
        self._lags: list[int] = []

    def run(self, updates: int) -> Prediction:
        """Simulate so many updates, of which the first quarter is warm-up."""
        for actor in range(self._setting.actors):
            # Actors begin within one unroll of each other, as their environments do.
            self._collect(actor, self._rng.uniform(0.0, self._costs.unroll_s))
        warm_up = max(int(_WARM_UP * updates), 1)
        self._go_on(warm_up)
        since, before, first = self._clock.now, dict(self._busy), self._updates
        self._lags.clear()
        self._go_on(updates)
        span = self._clock.now - since
        shares = {name: (value - before[name]) / span for name, value in self._busy.items()}
        unrolls = (self._updates - first) * self._setting.batch_unrolls
        return Prediction(
            unrolls * self._costs.unroll_env_steps / span,
            max(1.0 - shares["learner"], 0.0),
            shares["actor wait"] / self._setting.actors,
            shares["inbound"],
            shares["outbound"],
            float(np.mean(self._lags)),
        )

    def _go_on(self, updates: int) -> None:
        while self._updates < updates:
            self._clock.now, _, kind, who, version = heapq.heappop(self._clock.events)
            getattr(self, f"_{kind}")(who, version)

    def _collect(self, number: int, delay: float = 0.0) -> None:
        """Begin an unroll with the newest policy that has arrived."""
        actor, costs = self._actors[number], self._costs
        load = costs.load_s if actor.arrived > actor.held else 0.0
        actor.held = actor.began_with = actor.arrived
        seconds = costs.unroll_s * math.exp(self._spread * self._rng.standard_normal() - self._spread**2 / 2)
        self._clock.at(self._clock.now + delay + load + seconds, "collected", number)

    def _collected(self, number: int, _: int) -> None:
        if self._actors[number].sent < self._setting.in_flight:
            self._send(number)
            self._collect(number)
        else:
            self._actors[number].waits_since = self._clock.now

    def _send(self, number: int) -> None:
        actor = self._actors[number]
        actor.sent += 1
        seconds = self._costs.unroll_bytes / self._setting.link_bytes_per_s
        self._inbound_free = max(self._inbound_free, self._clock.now) + seconds
        self._busy["inbound"] += seconds
        self._clock.at(self._inbound_free + self._setting.latency_s, "unroll", number, actor.began_with)

    def _unroll(self, number: int, version: int) -> None:
        self._queue.append((number, version))
        if not self._updating:
            self._take_in()

    def _take_in(self) -> None:
        """Take unrolls until a batch is whole, and then update."""
        costs, setting = self._costs, self._setting
        while self._queue and len(self._taken) < setting.batch_unrolls:
            number, version = self._queue.popleft()
            self._free_at = max(self._free_at, self._clock.now) + costs.take_s
            self._busy["learner"] += costs.take_s
            self._taken.append(version)
            self._lags.append(self._updates - version)
            self._clock.at(self._free_at + setting.latency_s, "released", number)
        if len(self._taken) == setting.batch_unrolls:
            self._taken.clear()
            seconds = costs.update_s * setting.batch_unrolls
            if (self._updates + 1) % setting.publish_interval == 0:
                seconds += costs.refresh_s + costs.post_s * self._receivers
            self._busy["learner"] += seconds
            self._updating = True
            self._clock.at(max(self._free_at, self._clock.now) + seconds, "updated")

    def _released(self, number: int, _: int) -> None:
        """An actor learns that its unroll was taken, not before a policy that was sent earlier."""
        actor = self._actors[number]
        actor.sent -= 1
        if actor.waits_since is not None:
            self._busy["actor wait"] += self._clock.now - actor.waits_since
            actor.waits_since = None
            self._send(number)
            self._collect(number)

    def _updated(self, _: int, __: int) -> None:
        self._updates += 1
        self._updating = False
        self._free_at = self._clock.now
        if self._updates % self._setting.publish_interval == 0:
            self._version = self._updates
            missing = [i for i in range(self._receivers) if i not in self._waiting_receivers]
            self._outbox.extend(missing)
            self._waiting_receivers.update(missing)
            if not self._outbound_busy:
                self._depart()
        self._take_in()

    @property
    def _receivers(self) -> int:
        return self._setting.receivers or self._setting.actors

    def _depart(self) -> None:
        """Send the newest policy to whoever has waited longest for one."""
        if not self._outbox:
            return
        receiver = self._outbox.popleft()
        self._waiting_receivers.discard(receiver)
        seconds = self._costs.policy_bytes / self._setting.link_bytes_per_s
        delay = self._setting.latency_s + (self._costs.relay_s if self._receivers < self._setting.actors else 0.0)
        self._outbound_busy = True
        self._busy["outbound"] += seconds
        self._clock.at(self._clock.now + seconds + delay, "policy", receiver, self._version)
        self._clock.at(self._clock.now + seconds, "departed")

    def _departed(self, _: int, __: int) -> None:
        self._outbound_busy = False
        self._depart()

    def _policy(self, receiver: int, version: int) -> None:
        for number in range(receiver, self._setting.actors, self._receivers):
            self._actors[number].arrived = max(self._actors[number].arrived, version)


def simulate(costs: Costs, setting: Setting, updates: int, seed: int = 0) -> Prediction:
    """Predict a run; see the module.

    Args:
        costs: measured. setting: chosen.
        updates: simulated; the first quarter of them is not counted.
        seed: of the spread of unrolls.
    """
    return Pipeline(costs, setting, seed).run(updates)
