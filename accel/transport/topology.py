"""Which rank plays which role. Nothing else in the project compares a rank with a number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self

from accel.errors import LaunchError
from accel.transport.launcher import LaunchInfo


def is_actor(info: LaunchInfo) -> bool:
    """Whether a launched process acts, told from the launcher's word alone, before anything heavy is imported.

    A lone rank, and a rank whose launcher does not say how many there are, is judged by the single-learner layout.
    """
    size = max(info.size or info.rank + 1, 2)
    return info.is_launched and Topology.single_learner(size).role(info.rank) is Role.ACTOR


class Role(Enum):
    """What a rank does."""

    LEARNER = "learner"
    ACTOR = "actor"


@dataclass(frozen=True)
class LearnerGroup:
    """A learner and the actors that feed it. ``actors[i]`` is the rank of actor i."""

    learner: int
    actors: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """Every rank's role. Ranks of all groups together are 0 … size−1, each once; LaunchError otherwise."""

    groups: tuple[LearnerGroup, ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for group in self.groups for rank in (group.learner, *group.actors))
        if ranks != list(range(len(ranks))) or not ranks:
            raise LaunchError(f"a topology must give each of the ranks 0 … n-1 one role, got {ranks}")
        if any(not group.actors for group in self.groups):
            raise LaunchError(
                f"too few ranks: {len(ranks)} for {len(self.groups)} learner(s) with at least one actor each; "
                f"start at least {2 * len(self.groups)} (mpirun -n {2 * len(self.groups)} …)"
            )

    @classmethod
    def single_learner(cls, size: int) -> Self:
        """The first rank learns, the others act. Raises LaunchError when fewer than two ranks were started."""
        return cls((LearnerGroup(0, tuple(range(1, size))),))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(1 + len(group.actors) for group in self.groups)

    def role(self, rank: int) -> Role:
        """What ``rank`` does."""
        return Role.LEARNER if self.group(rank).learner == rank else Role.ACTOR

    def group(self, rank: int) -> LearnerGroup:
        """The group that ``rank`` belongs to. Raises LaunchError for a rank outside the topology."""
        for group in self.groups:
            if rank == group.learner or rank in group.actors:
                return group
        raise LaunchError(f"rank {rank} is outside a topology of {self.size} ranks")

    def actor_index(self, rank: int) -> int:
        """Index of an actor within its group. Raises LaunchError for a learner."""
        group = self.group(rank)
        if rank == group.learner:
            raise LaunchError(f"rank {rank} is a learner, not an actor")
        return group.actors.index(rank)
