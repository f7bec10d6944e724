"""Which actor relays policies to the others of its node, as the learner decides.

An actor says with its hello where its memory is (``node_memory.Place``). The lowest of at least two live actors of a
node relays for all of them, itself included: they are asked to follow it, and one that cannot open the relay's memory
says so and is sent its own policies from then on. When the relay dies, leaves or falls silent, all are sent theirs
again at once, whole, until they follow the next one: nobody waits for a relay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from accel.json_object import Json
from accel.transport.node_memory import Place
from accel.transport.policy_board import PolicyBoard


@dataclass
class _Node:
    members: set[int] = field(default_factory=set)
    relay: int | None = None


class Relays:
    """The relays of a learner's actors.

    Args:
        board: where followers leave their policies to a relay.
        post: sends an actor a message of a kind.
    """

    def __init__(self, board: PolicyBoard, post: Callable[[int, str, Json], None]) -> None:
        self._board, self._post = board, post
        self._places: dict[int, Place] = {}
        self._nodes: dict[str, _Node] = {}
        self._is_closed = False

    @property
    def relays(self) -> frozenset[int]:
        """Actors that relay."""
        return frozenset(node.relay for node in self._nodes.values() if node.relay is not None)

    def join(self, actor: int, place: Place | None) -> None:
        """An actor said where its memory is; None: it has none to share."""
        if place is not None and actor not in self._places:
            self._places[actor] = place
            self.come_back(actor)

    def come_back(self, actor: int) -> None:
        """An actor that had left may follow, and relay, again."""
        if (node := self._node_of(actor)) is None or actor in node.members or self._is_closed:
            return
        node.members.add(actor)
        if node.relay is None:
            self._elect(node)
        else:
            self._follow(actor, node.relay)

    def leave(self, actor: int) -> None:
        """An actor neither follows nor relays any more."""
        if (node := self._node_of(actor)) is None or actor not in node.members:
            return
        node.members.discard(actor)
        self._board.unfollow(actor)
        if node.relay == actor:
            self._board.dissolve(actor)
            self._elect(node)

    def refuse(self, actor: int) -> None:
        """An actor cannot follow: it is left alone from now on."""
        self.leave(actor)
        self._places.pop(actor, None)

    def close(self) -> None:
        """Ask nobody any more: the run ends."""
        self._is_closed = True

    def _elect(self, node: _Node) -> None:
        """One of several members relays for all; one alone does without."""
        node.relay = min(node.members) if len(node.members) > 1 and not self._is_closed else None
        if node.relay is not None:
            for actor in sorted(node.members):
                self._follow(actor, node.relay)

    def _follow(self, actor: int, relay: int) -> None:
        self._board.follow(actor, relay)
        self._post(actor, "follow", {"place": self._places[relay]})

    def _node_of(self, actor: int) -> _Node | None:
        place = self._places.get(actor)
        return None if place is None else self._nodes.setdefault(place.node, _Node())
