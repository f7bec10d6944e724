"""The policy board against a model written from its promises: what an actor ends up with, and what it cost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from accel.transport.policy_board import PolicyBoard
from accel.transport.wire import decode_policy

ACTORS = 3
actors = st.integers(0, ACTORS - 1)


class Publications(RuleBasedStateMachine):
    """Actors take offers at random moments; whatever they missed, an offer leaves them with the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.board = PolicyBoard(ACTORS)
        self.version = 0
        self.published: bytes | None = None
        self.has: dict[int, tuple[int, bytes]] = {}
        self.gone: set[int] = set()
        self.follows: dict[int, int] = {}
        self.relayed: dict[int, bytes] = {}
        self.relayed_publication: dict[int, int] = {}

    @rule(payload=st.sampled_from([b"a", b"b"]), skips=st.integers(0, 2))
    def publish(self, payload: bytes, skips: int) -> None:
        self.version += skips
        self.published = payload
        self.board.publish(self.version, payload)

    @rule(actor=actors)
    def forget(self, actor: int) -> None:
        self.board.forget(actor)
        self.gone.add(actor)
        self.follows.pop(actor, None)
        self.dissolve(actor)

    @precondition(lambda self: self.published)
    @rule(actor=actors)
    def take(self, actor: int) -> None:
        waits = self.board.has_offer(actor)
        update = self.board.offer(actor)
        assert waits == (update is not None)
        if actor in self.gone or actor in self.follows:
            assert update is None
            return
        if update is not None:
            about, whole = decode_policy(memoryview(self.board.frame(update)))
            assert (about.publication, whole) == (update.publication, update.payload)
            payload = update.payload
            if payload is None:
                assert actor in self.has, "a notice about a policy that the actor never got"
                payload = self.has[actor][1]
            self.has[actor] = update.version, payload
        assert self.has[actor] == (self.version, self.published)
        assert self.board.offer(actor) is None

    @rule(actor=actors, relay=actors)
    def follow(self, actor: int, relay: int) -> None:
        if relay not in self.gone:
            self.board.follow(actor, relay)
            if actor not in self.gone:
                self.follows[actor] = relay

    @rule(actor=actors)
    def unfollow(self, actor: int) -> None:
        self.board.unfollow(actor)
        self.follows.pop(actor, None)

    @rule(relay=actors)
    def dissolve(self, relay: int) -> None:
        self.board.dissolve(relay)
        self.relayed.pop(relay, None)
        self.follows = {actor: other for actor, other in self.follows.items() if other != relay}

    @precondition(lambda self: self.published)
    @rule(relay=actors)
    def take_for_others(self, relay: int) -> None:
        """What a relay has taken is the newest for those who follow it."""
        if True in self.board.waits_for(relay):
            update = self.board.offer(relay, relays=True)
            payload = self.relayed[relay] if update.payload is None else update.payload
            assert (payload, update.version) == (self.published, self.version)
            self.relayed[relay] = payload
            self.relayed_publication[relay] = update.publication
        if relay in self.follows.values():
            assert self.relayed_publication[relay] == self.board.publication

    @invariant()
    def idle_means_that_all_have_the_newest(self) -> None:
        if self.published and not any(self.board.waits_for(actor) for actor in range(ACTORS)):
            for actor in set(range(ACTORS)) - self.gone:
                if (relay := self.follows.get(actor)) is not None:
                    assert self.relayed_publication[relay] == self.board.publication
                else:
                    assert self.has[actor] == (self.version, self.published)


TestPublications = Publications.TestCase


def test_a_relay_that_was_dissolved_without_followers_is_sent_policies_whole() -> None:
    board = PolicyBoard(2)
    board.publish(0, b"a")
    board.follow(1, 0)
    assert board.offer(0, relays=True) is not None
    board.publish(1, b"a")
    board.forget(1)
    board.dissolve(0)
    board.follow(0, 0)
    update = board.offer(0, relays=True)
    assert update is not None and update.payload == b"a"


def test_one_frame_serves_all_actors() -> None:
    board = PolicyBoard(3)
    board.publish(4, b"x" * 100)
    frames = [board.frame(update) for update in map(board.offer, range(3)) if update is not None]
    assert len(frames) == 3
    assert frames[0] is frames[1] is frames[2]


def test_a_publication_waits_for_relays_and_for_nobody_who_follows_them() -> None:
    board = PolicyBoard(1000)
    for actor in range(1000):
        board.follow(actor, actor // 10 * 10)
    board.publish(1, b"x")
    assert sorted(board.news) == list(range(0, 1000, 10))
    assert board.waits_for(0) == board.waits_for(10) == [True] and not board.waits_for(1)
    assert not any(board.has_offer(actor) for actor in range(1000))


def test_a_relay_that_follows_nobody_is_offered_its_own_and_the_others_in_turns() -> None:
    """However often there is something newer."""
    board = PolicyBoard(2)
    board.follow(1, 0)
    taken = []
    for version in range(4):
        board.publish(version, b"%d" % version)
        relays = board.waits_for(0)[0]
        assert board.offer(0, relays=relays) is not None
        taken.append(relays)
    assert set(taken[:2]) == set(taken[2:]) == {False, True}
