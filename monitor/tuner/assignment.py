"""Which level each actor, or each part of an actor's environments, acts with at every stage of the tuner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Split = tuple[tuple[str, int], ...]
"""An actor's levels and how many of its environments each acts on, in order; 0: only timed on the actor."""

TRIAL_SHARE = 4
AUDIT_SHARE = 8


def whole(level: str, envs: int) -> Split:
    """All environments of one actor on one level."""
    return ((level, envs),)


def survey(actors: Sequence[int], envs: int, level: str, timed: Sequence[str]) -> Mapping[int, Split]:
    """Every actor acts with ``level`` and times the other levels."""
    others = tuple((other, 0) for other in timed if other != level)
    return dict.fromkeys(actors, ((level, envs), *others))


def trial(
    actors: Sequence[int], envs: int, *, incumbent: str, candidate: str, reference: str, turn: int
) -> Mapping[int, Split]:
    """Candidate and reference at the same time, the remaining actors on the incumbent.

    With two or more actors each side gets a quarter of them, at least one; a single actor's environments are halved.
    ``turn`` rotates the roles, because machines differ in speed.
    """
    if len(actors) == 1:
        half = envs // 2
        return {actors[0]: ((candidate, envs - half), (reference, half))}
    share = max(1, len(actors) // TRIAL_SHARE)
    order = _rotated(actors, turn)
    levels = [candidate] * share + [reference] * share + [incumbent] * (len(order) - 2 * share)
    return {actor: whole(level, envs) for actor, level in zip(order, levels, strict=True)}


def audit(actors: Sequence[int], envs: int, *, incumbent: str, reference: str, turn: int) -> Mapping[int, Split]:
    """The reference on an eighth of the actors; with fewer than eight actors, on a quarter of one's environments."""
    order = _rotated(actors, turn)
    share = len(order) // AUDIT_SHARE
    part = max(1, envs // 4)
    if share == 0 and part < envs:
        split = ((incumbent, envs - part), (reference, part))
        return {order[0]: split, **{actor: whole(incumbent, envs) for actor in order[1:]}}
    share = max(share, 1)
    levels = [reference] * share + [incumbent] * (len(order) - share)
    return {actor: whole(level, envs) for actor, level in zip(order, levels, strict=True)}


def can_compare(actors: Sequence[int], envs: int) -> bool:
    """Whether two levels can act at the same time: there are at least two environments."""
    return len(actors) * envs >= 2


def _rotated(actors: Sequence[int], turn: int) -> list[int]:
    start = turn % len(actors)
    return [*actors[start:], *actors[:start]]
