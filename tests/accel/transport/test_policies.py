"""The policy board against a model written from its promises: what an actor ends up with, and what it cost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from accel.transport.policy_board import PolicyBoard
from accel.transport.wire import decode_policy

ACTORS = 3
SCHEMES = ("fp32", "int8", "prune(0.5)")
actors = st.integers(0, ACTORS - 1)


class Publications(RuleBasedStateMachine):
    """Actors take offers at random moments; whatever they missed, an offer leaves them with the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.board = PolicyBoard(ACTORS)
        self.version = 0
        self.published: dict[str, bytes] = {}
        self.wanted = dict.fromkeys(range(ACTORS), SCHEMES[0])
        self.has: dict[int, tuple[int, str, bytes]] = {}
        self.gone: set[int] = set()
        self.follows: dict[int, int] = {}
        self.relayed: dict[tuple[int, str], bytes] = {}
        self.relayed_version: dict[tuple[int, str], int] = {}

    @rule(payloads=st.tuples(*[st.sampled_from([b"a", b"b"])] * len(SCHEMES)), skips=st.integers(0, 2))
    def publish(self, payloads: tuple[bytes, ...], skips: int) -> None:
        self.version += skips
        self.published = dict(zip(SCHEMES, payloads, strict=True))
        self.board.publish(self.version, self.published)

    @rule(actor=actors, scheme=st.sampled_from(SCHEMES))
    def assign(self, actor: int, scheme: str) -> None:
        self.board.assign(actor, scheme)
        self.wanted[actor] = scheme

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
            assert decode_policy(memoryview(self.board.frame(update))) == update
            before = self.has.get(actor)
            if update.payload is None:
                assert before is not None, "a notice about a policy that the actor never got"
                assert before[1] == update.scheme
            payload = before[2] if update.payload is None and before else update.payload
            assert payload is not None
            self.has[actor] = (update.version, update.scheme, payload)
        scheme = self.wanted[actor]
        assert self.has[actor] == (self.version, scheme, self.published[scheme])
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
        self.relayed = {key: value for key, value in self.relayed.items() if key[0] != relay}
        self.follows = {actor: other for actor, other in self.follows.items() if other != relay}

    @precondition(lambda self: self.published)
    @rule(relay=actors)
    def take_for_others(self, relay: int) -> None:
        """What a relay has taken is the newest of every scheme of those who follow it."""
        for scheme in self.board.waits_for(relay):
            if scheme is None:
                continue
            update = self.board.offer(relay, scheme)
            assert update is not None and update.scheme == scheme
            payload = self.relayed[relay, scheme] if update.payload is None else update.payload
            assert payload == self.published[scheme] and update.version == self.version
            self.relayed[relay, scheme] = payload
            self.relayed_version[relay, scheme] = update.publication
        for actor, other in self.follows.items():
            if other == relay:
                assert self.relayed_version[relay, self.wanted[actor]] == self.board.publication

    @invariant()
    def idle_means_that_all_have_the_newest(self) -> None:
        if self.board.is_idle and self.published:
            for actor in set(range(ACTORS)) - self.gone:
                scheme = self.wanted[actor]
                if (relay := self.follows.get(actor)) is not None:
                    assert self.relayed_version[relay, scheme] == self.board.publication
                    continue
                assert self.has[actor] == (self.version, scheme, self.published[scheme])


TestPublications = Publications.TestCase


def test_a_relay_that_was_dissolved_without_followers_is_sent_policies_whole() -> None:
    board = PolicyBoard(2)
    board.publish(0, {"fp32": b"a"})
    board.follow(1, 0)
    assert board.offer(0, "fp32") is not None
    board.publish(1, {"fp32": b"a"})
    board.forget(1)
    board.dissolve(0)
    board.follow(0, 0)
    update = board.offer(0, "fp32")
    assert update is not None and update.payload == b"a"


def test_equal_payloads_are_sent_once_and_other_schemes_in_full() -> None:
    board = PolicyBoard(1)
    sent = []
    for version, payload in enumerate((b"a", b"a", b"b", b"b", b"a")):
        board.publish(version, {"fp32": payload, "int8": b"same"})
        update = board.offer(0)
        assert update is not None
        sent.append(update.payload)
    assert sent == [b"a", None, b"b", None, b"a"]
    board.assign(0, "int8")
    update = board.offer(0)
    assert update is not None and update.payload == b"same"


def test_one_frame_serves_all_actors() -> None:
    board = PolicyBoard(3)
    board.publish(4, {"fp32": b"x" * 100})
    frames = [board.frame(update) for update in map(board.offer, range(3)) if update is not None]
    assert len(frames) == 3
    assert frames[0] is frames[1] is frames[2]


def test_a_publication_waits_for_relays_and_for_nobody_who_follows_them() -> None:
    board = PolicyBoard(1000)
    for actor in range(1000):
        board.follow(actor, actor // 10 * 10)
    board.assign(5, "int8")
    board.publish(1, {"fp32": b"x", "int8": b"y"})
    assert sorted(board.take_news()) == list(range(0, 1000, 10))
    assert set(board.waits_for(0)) == {"fp32", "int8"} and set(board.waits_for(10)) == {"fp32"}
    assert not any(board.has_offer(actor) for actor in range(1000))


def test_a_relay_of_two_schemes_is_offered_both_in_turns() -> None:
    """However often there is something newer of the first."""
    board = PolicyBoard(2)
    board.assign(1, "int8")
    board.follow(0, 0)
    board.follow(1, 0)
    taken = []
    for version in range(4):
        board.publish(version, {"fp32": b"%d" % version, "int8": b"%d" % version})
        scheme = next(board.waits_for(0))
        assert board.offer(0, scheme) is not None
        taken.append(scheme)
    assert set(taken[:2]) == set(taken[2:]) == {"fp32", "int8"}
