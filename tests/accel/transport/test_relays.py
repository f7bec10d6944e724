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

    def asked(self) -> dict[int, int | None]:
        """Whom each actor was asked to follow since the last call, by the process; None: nobody."""
        posted, self.posted = self.posted, []
        places = {actor: Place.of(body["place"]) for actor, kind, body in posted if kind == "follow"}
        self.number = max((int(str(body["number"])) for _, _, body in posted if "number" in body), default=0)
        return {actor: None if place is None else place.process - 100 for actor, place in places.items()}

    def answers(self, *actors: int, follows: bool = True, number: int | None = None) -> None:
        for actor in actors:
            self.relays.hear(actor, {"number": self.number if number is None else number, "follows": follows})

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
    assert learner.asked() == {0: 0, 1: 0, 2: 0}
    learner.answers(0, 1, 2)
    assert learner.receivers() == {0} and learner.relays.relays == {0}
    return learner


def test_actors_alone_on_their_nodes_are_sent_their_policies() -> None:
    learner = Learner(2)
    learner.joins(0, "a")
    learner.joins(1, "b")
    assert learner.asked() == {} and learner.receivers() == {0, 1}


def test_an_actor_follows_from_its_answer_on_and_only_if_it_can() -> None:
    learner = Learner(3)
    for actor in range(3):
        learner.joins(actor)
    assert learner.asked() == {0: 0, 1: 0, 2: 0} and learner.receivers() == {0, 1, 2}
    learner.answers(0, 1)
    learner.answers(2, follows=False)
    assert learner.receivers() == {0, 2}
    learner.answers(2, number=learner.number - 1)
    assert learner.receivers() == {0, 2}, "an answer to an earlier asking"


def test_when_the_relay_is_gone_all_are_offered_theirs_until_they_follow_the_next(three: Learner) -> None:
    before = three.number
    three.relays.leave(0)
    three.board.forget(0)
    assert three.asked() == {1: 1, 2: 1} and three.relays.relays == {1}
    assert {actor for actor in range(3) if three.board.waits_for(actor)} == {1, 2}, "at once, not the next one"
    three.answers(1, 2, number=before)
    assert three.receivers() == {1, 2}
    three.answers(1, 2)
    assert three.receivers() == {1}
    three.relays.leave(1)
    three.board.forget(1)
    assert three.asked() == {2: None} and three.receivers() == {2}


def test_a_relay_that_is_slow_follows_the_next_when_it_is_heard_again(three: Learner) -> None:
    three.relays.leave(0, is_gone=False)
    assert three.asked() == {0: None, 1: 1, 2: 1} and three.receivers() == {0, 1, 2}
    three.answers(1, 2)
    three.relays.come_back(0)
    assert three.asked() == {0: 1}
    three.answers(0)
    assert three.receivers() == {1}


def test_at_the_end_nobody_is_asked_any_more(three: Learner) -> None:
    three.relays.close()
    for actor in range(3):
        three.relays.leave(actor)
        three.board.forget(actor)
    assert three.posted == [] and not any(three.board.waits_for(actor) for actor in range(3))
