"""What limits a run's speed: the learner, the actors' policy, the environment, or neither side alone.

From the seconds that both sides spent:

    w_a  share of their time in which actors waited, for a free buffer or a policy
    w_l  share of its time in which the learner waited for unrolls
    e    the environment's share of the time in which actors did not wait

    w_a − w_l ≥ 0.1                  learner: actors wait for it
    w_l − w_a ≥ 0.1 and e ≥ 0.5      environment: no scheme makes it faster
    w_l − w_a ≥ 0.1 and e < 0.5      policy: inference, which compression and runtimes speed up
    otherwise                        balanced: both sides are about equally busy

The gap of 0.1 is how much waiting varies between seeds on a machine that is also used for other work. With
``actors = 0`` both take turns in one thread, so the actor waits while the learner works: w_a = 1 − w_l.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Limit = Literal["learner", "policy", "environment", "balanced"]
WAIT_GAP = 0.1
ENVIRONMENT_SHARE = 0.5


class TimeShares(NamedTuple):
    """Where one run's time went, shares in [0, 1].

    Attributes:
        actor_wait: of the actors' time. learner_wait: of the learner's.
        environment, policy: of the time in which actors did not wait.
    """

    actor_wait: float
    learner_wait: float
    environment: float
    policy: float

    @property
    def limit(self) -> Limit:
        """See the module's docstring."""
        gap = self.actor_wait - self.learner_wait
        if abs(gap) < WAIT_GAP:
            return "balanced"
        if gap > 0:
            return "learner"
        return "environment" if self.environment >= ENVIRONMENT_SHARE else "policy"


def shares_of(
    actor_s: Mapping[str, float], learner_s: Mapping[str, float], *, turns: bool = False
) -> TimeShares | None:
    """Where the time of one run went.

    Args:
        actor_s, learner_s: seconds by phase, ``wait`` and, of the actors, ``env`` and ``policy`` among them.
        turns: whether both took turns in one thread.
    Returns:
        None where either side's time is unknown.
    """
    actors, learner = sum(actor_s.values()), sum(learner_s.values())
    busy = actors - actor_s.get("wait", 0.0)
    if not (actors > 0 and learner > 0 and busy > 0):
        return None
    learner_wait = learner_s.get("wait", 0.0) / learner
    actor_wait = 1 - learner_wait if turns else actor_s.get("wait", 0.0) / actors
    return TimeShares(actor_wait, learner_wait, actor_s.get("env", 0.0) / busy, actor_s.get("policy", 0.0) / busy)
