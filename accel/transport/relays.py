"""Which actor relays policies to the others of its node, as the learner decides.

An actor says with its hello where its memory is (``node_memory.Place``). The lowest of at least two live actors of a
node relays for all of them, itself included: they are asked to follow it, and do so from their answer on, so that one
that cannot open the relay's memory goes on being sent its policies. When the relay dies, leaves or falls silent, all
are sent theirs again at once, whole, until they follow the next one: nobody waits for a relay. Each asking has a
number, by which a late answer is told.
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
    number: int = 0


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
        self._asked: set[int] = set()
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
            self._ask(actor, node.number, node.relay)

    def leave(self, actor: int, is_gone: bool = True) -> None:
        """An actor neither follows nor relays any more.

        Args:
            is_gone: it cannot be told.
        """
        if (node := self._node_of(actor)) is None or actor not in node.members:
            return
        node.members.discard(actor)
        self._board.unfollow(actor)
        if is_gone:
            self._asked.discard(actor)
        else:
            self._ask(actor, node.number, None)
        if node.relay == actor:
            self._board.dissolve(actor)
            self._elect(node)

    def hear(self, actor: int, answer: Json) -> None:
        """An actor answered whether it can follow."""
        node = self._node_of(actor)
        if node is None or actor not in node.members or node.relay is None or answer.get("number") != node.number:
            return
        if answer.get("follows"):
            self._board.follow(actor, node.relay)

    def close(self) -> None:
        """Ask nobody any more: the run ends."""
        self._is_closed = True
        self._asked.clear()

    def _elect(self, node: _Node) -> None:
        """One of several members relays for all; one alone does without."""
        node.relay = min(node.members) if len(node.members) > 1 and not self._is_closed else None
        node.number += 1
        for actor in sorted(node.members):
            self._ask(actor, node.number, node.relay)

    def _ask(self, actor: int, number: int, relay: int | None) -> None:
        """Ask an actor to follow a relay; None: nobody, which one that was never asked does anyway."""
        if relay is not None or actor in self._asked:
            (self._asked.discard if relay is None else self._asked.add)(actor)
            place = None if relay is None else self._places[relay]
            self._post(actor, "follow", {"number": number, "place": place})

    def _node_of(self, actor: int) -> _Node | None:
        place = self._places.get(actor)
        return None if place is None else self._nodes.setdefault(place.node, _Node())
