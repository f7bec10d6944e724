"""Who relays policies on a node, as actors come, answer and leave: each is offered its policy by exactly one way."""

from __future__ import annotations

import pytest

from accel.json_object import Json
from accel.transport.node_memory import Place
from accel.transport.policy_board import PolicyBoard
from accel.transport.relays import Relays


class Learner:
    """A board and relays, with the messages to actors kept."""

    def __init__(self, actors: int) -> None:
        self.board = PolicyBoard(actors)
        self.posted: list[tuple[int, str, Json]] = []
        self.relays = Relays(self.board, lambda actor, kind, body: self.posted.append((actor, kind, body)))
        self.board.publish(0, b"x")

    def joins(self, actor: int, node: str = "a") -> None:
        self.relays.join(actor, Place(node, 100 + actor, 3, str(actor)))

    def asked(self) -> dict[int, int]:
        """Whom each actor was asked to follow since the last call, by the process."""
        posted, self.posted = self.posted, []
        places = {actor: Place.of(body["place"]) for actor, kind, body in posted if kind == "follow"}
        return {actor: place.process - 100 for actor, place in places.items() if place is not None}

    def receivers(self) -> set[int]:
        """Who would be sent something of the next publication."""
        self.board.publish(self.board.version + 1, bytes([self.board.version + 1]))
        return {actor for actor in range(self.board.actors) if self.board.waits_for(actor)}


@pytest.fixture
def three() -> Learner:
    """Three actors of a node, of which the lowest relays."""
    learner = Learner(3)
    for actor in (1, 0, 2):
        learner.joins(actor)
    assert learner.asked() == {0: 0, 1: 0, 2: 0} and learner.receivers() == {0} and learner.relays.relays == {0}
    return learner


def test_actors_alone_on_their_nodes_are_sent_their_policies() -> None:
    learner = Learner(2)
    learner.joins(0, "a")
    learner.joins(1, "b")
    assert learner.asked() == {} and learner.receivers() == {0, 1}


def test_one_that_cannot_follow_is_sent_its_own_from_then_on(three: Learner) -> None:
    three.relays.refuse(2)
    assert three.receivers() == {0, 2}
    three.relays.come_back(2)
    assert three.asked() == {} and three.receivers() == {0, 2}


def test_when_the_relay_is_gone_all_are_offered_theirs_until_they_follow_the_next(three: Learner) -> None:
    three.relays.leave(0)
    three.board.forget(0)
    assert three.asked() == {1: 1, 2: 1} and three.relays.relays == {1}
    assert three.board.waits_for(1) == [True], "at once, and whole"
    update = three.board.offer(1, relays=True)
    assert update is not None and update.payload is not None
    three.relays.leave(1)
    three.board.forget(1)
    assert three.asked() == {} and three.board.waits_for(2) == [False] and three.receivers() == {2}


def test_a_relay_that_is_slow_follows_the_next_when_it_is_heard_again(three: Learner) -> None:
    three.relays.leave(0)
    assert three.asked() == {1: 1, 2: 1} and three.receivers() == {0, 1}
    three.relays.come_back(0)
    assert three.asked() == {0: 1} and three.receivers() == {1}


def test_at_the_end_nobody_is_asked_any_more(three: Learner) -> None:
    three.relays.close()
    for actor in range(3):
        three.relays.leave(actor)
        three.board.forget(actor)
    assert three.posted == [] and not any(three.board.waits_for(actor) for actor in range(3))
