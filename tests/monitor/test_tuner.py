"""The tuner's choice against its definition, and what it does where compression pays, does not, or does harm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from accel.monitor.errors import TunerError
from accel.monitor.tuner import ActorTiming, LevelTiming, Measurements, Tuner, TunerOptions

LEVELS = ("fp32", "int8", "prune(0.5)+int8")
ROUNDS = 8


def _timing(call_us: float, noise: float = 0.01, seed: int = 0, **mismatch: float) -> LevelTiming:
    factors = 1.0 + noise * np.random.default_rng(seed).standard_normal(ROUNDS)
    return LevelTiming((call_us * factors).tolist(), 0.0, **mismatch)


def _look(
    time_s: float,
    calls_us: Mapping[str, float],
    *,
    acting: str = "fp32",
    env_us: float = 100.0,
    learner_rate: float | Mapping[str, float] = 1e9,
    noise: float = 0.01,
    actors: int = 1,
    shared: bool = False,
    turns: bool = False,
    seed: int = 0,
    mismatch: Mapping[str, Mapping[str, float]] | None = None,
    quality: Mapping[str, float] | None = None,
) -> Measurements:
    found = []
    for actor in range(actors):
        levels = {
            level: _timing(call, noise, seed + 10 * actor + i, **(mismatch or {}).get(level, {}))
            for i, (level, call) in enumerate(calls_us.items())
        }
        found.append(ActorTiming(env_us + calls_us[acting], env_us, 1.0, 0.0, levels))
    rates = learner_rate if isinstance(learner_rate, Mapping) else dict.fromkeys(calls_us, learner_rate)
    return Measurements(time_s, found, rates, shared, turns, (1,), quality or {})


FASTER = {"fp32": 1000.0, "int8": 200.0}


def test_a_gain_is_its_definition() -> None:
    random = np.random.default_rng(0)
    calls = {"fp32": (1000.0 + 50.0 * random.random(15)).tolist(), "int8": (190.0 + 50.0 * random.random(15)).tolist()}
    levels = {
        "fp32": LevelTiming(calls["fp32"], 500.0),
        "int8": LevelTiming(calls["int8"], 300.0, 0.01, 0.98, 0.9),
    }
    actor = ActorTiming(1150.0, 100.0, 2.0, 0.1, levels)
    m = Measurements(0.0, [actor, actor], {"fp32": 3000.0, "int8": 3500.0}, False, False, (2, 1), {})
    ratios = []
    for fp32, int8 in zip(*calls.values(), strict=True):
        step_us = 1150.0 + int8 - fp32 + 0.1 * (300.0 - 500.0)
        effective = min(2 * 2.0 / step_us * 1e6, 3500.0) * 0.98 * (0.9**2 + 0.9) / 2
        ratios.append(effective / min(2 * 2.0 / 1150.0 * 1e6, 3000.0))
    gain = Tuner(("fp32", "int8")).gains(m)["int8"]
    assert (gain.median, gain.low) == (pytest.approx(np.median(ratios)), pytest.approx(sorted(ratios)[3]))


@pytest.mark.parametrize(
    ("learner_rates", "turns", "wanted"),
    [
        ({}, False, 5.0),
        ({"fp32": 1e9}, False, 5.0),
        ({"fp32": 2000.0, "int8": 1500.0}, False, 2.0),
        ({"fp32": 500.0}, False, 1.0),
        ({"fp32": 1000.0}, True, (1 / 1000 + 1 / 1000) / (1 / 5000 + 1 / 1000)),
    ],
)
def test_headroom_is_what_a_policy_without_cost_would_bring(
    learner_rates: Mapping[str, float], turns: bool, wanted: float
) -> None:
    """1000 µs a step, 800 of them the policy's call."""
    actor = ActorTiming(1000.0, 100.0, 1.0, 0.0, {"fp32": LevelTiming([800.0] * 8, 0.0)})
    assert Measurements(0.0, [actor], learner_rates, False, turns).headroom("fp32") == pytest.approx(wanted)


@pytest.mark.parametrize("rounds", [5, 6, 8, 15, 24])
def test_the_lower_bound_holds_as_often_as_it_says(rounds: int) -> None:
    """The median gain is 1.2; a bound above it errs, in 2 % of timings at most, and there is none below six rounds."""
    random, errors, bounds = np.random.default_rng(1), 0, 0
    for _ in range(400):
        fp32 = LevelTiming([1000.0] * rounds, 0.0)
        int8 = LevelTiming((1000.0 / 1.2 / np.exp(0.1 * random.standard_cauchy(rounds).clip(-20, 20))).tolist(), 0.0)
        m = Measurements(0.0, [ActorTiming(1000.0, 0.0, 1.0, 0.0, {"fp32": fp32, "int8": int8})], {})
        low = Tuner(("fp32", "int8")).gains(m)["int8"].low
        errors, bounds = errors + (low > 1.2), bounds + (low > 0.0)
    assert errors <= 400 * 0.02 + 3 * math.sqrt(400 * 0.02)
    assert (bounds > 0) == (rounds >= 6)


def test_a_level_that_is_faster_for_certain_is_taken_at_the_first_look() -> None:
    tuner = Tuner(("fp32", "int8"))
    decision = tuner.look(_look(0.0, FASTER))
    assert decision is not None and (decision.kind, decision.after) == ("accept", "int8")
    assert "the policy is the bottleneck" in decision.reason and "effective experience" in decision.reason
    assert decision.figures["rate/int8"] > decision.figures["rate/fp32"]  # type: ignore[operator]
    # noise as large as the gain hides it
    assert Tuner(("fp32", "int8")).look(_look(0.0, {"fp32": 1000.0, "int8": 900.0}, noise=0.3)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learner_rate": 500.0}, "the learner is the bottleneck"),
        ({"env_us": 100_000.0}, "the environment is the bottleneck"),
        ({"mismatch": {"int8": {"kl": 0.2}}}, "at least, but its KL from full precision is 0.2 nats"),
        ({"mismatch": {"int8": {"ess": 0.29}}}, "at least, but its ESS is 0.29"),
        ({"mismatch": {"int8": {"overlap": 0.15}}}, "the policy is the bottleneck"),
    ],
)
def test_full_precision_stays_where_compression_does_not_pay(changes: dict[str, object], reason: str) -> None:
    tuner = Tuner(("fp32", "int8"))
    for time_s in range(100):
        assert tuner.look(_look(float(time_s), FASTER, **changes)) is None  # type: ignore[arg-type]
    assert reason in tuner.stays(_look(0.0, FASTER, **changes))  # type: ignore[arg-type]


def test_where_learner_and_actor_share_cores_a_slow_learner_does_not_hide_the_gain() -> None:
    """One step takes 1.1 ms of the actor and 2 of the learner: int8 saves 0.8 of 3.1."""
    m = _look(0.0, FASTER, learner_rate=500.0, shared=True, noise=0.0)
    assert Tuner(("fp32", "int8")).gains(m)["int8"].median == pytest.approx(3.1 / 2.3)
    assert Tuner(("fp32", "int8")).gains(_look(0.0, FASTER, learner_rate=500.0, noise=0.0))["int8"].median == 1.0


def test_where_learner_and_actors_take_turns_the_actors_time_adds_to_the_learners() -> None:
    """A step of each of two actors takes 1.1 ms at the same time, and its two the learner 4 afterwards."""
    m = _look(0.0, FASTER, learner_rate=500.0, turns=True, noise=0.0, actors=2)
    assert Tuner(("fp32", "int8")).gains(m)["int8"].median == pytest.approx((1.1 + 4.0) / (0.3 + 4.0))


def test_the_finest_level_within_the_tolerance_is_preferred() -> None:
    assert _chosen({**FASTER, "prune(0.5)+int8": 199.0}) == "int8"
    assert _chosen({**FASTER, "prune(0.5)+int8": 100.0}) == "prune(0.5)+int8"


def _chosen(calls_us: Mapping[str, float]) -> str:
    decision = Tuner(LEVELS).look(_look(0.0, calls_us, noise=0.001))
    assert decision is not None
    return decision.after


def test_a_finer_level_that_is_as_good_comes_back_after_several_looks() -> None:
    tuner, options = Tuner(("fp32", "int8")), TunerOptions()
    assert tuner.look(_look(0.0, FASTER)) is not None
    looks = [_look(10.0 + i, FASTER, acting="int8", learner_rate=100.0) for i in range(options.agreeing)]
    slow = [tuner.look(look) for look in looks[:-1]]
    assert slow == [None] * (options.agreeing - 1)
    assert tuner.stays(looks[-1]).endswith(f"; so {options.agreeing - 1} of {options.agreeing} looks say")
    slow.append(tuner.look(looks[-1]))
    assert slow[-1] is not None and (slow[-1].kind, slow[-1].after) == ("relax", "fp32")


def test_a_level_is_tried_where_only_full_precision_is_known_to_leave_the_learner_slow() -> None:
    """It stays where the learner is faster beside it, and is left where it is not, once that is known."""
    for rate, kept in ((1500.0, True), (505.0, False)):
        tuner, options = Tuner(("fp32", "int8")), TunerOptions()
        first = tuner.look(_look(0.0, FASTER, learner_rate={"fp32": 500.0}))
        assert first is not None and (first.kind, first.after) == ("accept", "int8")
        assert "the learner is the bottleneck" in first.reason and first.figures["learner_rate/fp32"] == 500.0
        unknown = [_look(10.0 + i, FASTER, acting="int8", learner_rate={"fp32": 500.0}) for i in range(9)]
        assert [tuner.look(m) for m in unknown] == [None] * 9
        known = {"fp32": 500.0, "int8": rate}
        looks = [
            tuner.look(_look(20.0 + i, FASTER, acting="int8", learner_rate=known)) for i in range(options.agreeing)
        ]
        assert [decision is not None for decision in looks] == [False] * (options.agreeing - 1) + [not kept]
        assert tuner.incumbent == ("int8" if kept else "fp32")
        if not kept:
            again = [tuner.look(_look(100.0 + i, FASTER, learner_rate=known)) for i in range(20)]
            assert again == [None] * 20


@pytest.mark.parametrize("int8_us", [1040.0, 1000.0, 960.0])
def test_a_level_that_is_no_faster_is_not_taken_because_the_learner_is_slow(int8_us: float) -> None:
    """What the learner takes beside full precision is no measure of a level beside which it was not seen."""
    tuner = Tuner(("fp32", "int8"))
    m = _look(0.0, {"fp32": 1000.0, "int8": int8_us}, learner_rate={"fp32": 300.0}, noise=0.0)
    assert tuner.gains(m)["int8"].median == pytest.approx(1100.0 / (100.0 + int8_us))
    assert [tuner.look(m) for _ in range(20)] == [None] * 20


def test_one_timing_with_a_large_mismatch_does_not_end_the_level_in_use() -> None:
    """It has few states; what acts is sampled on many, and leaves by ``fall_back``."""
    tuner = Tuner(("fp32", "int8"))
    assert tuner.look(_look(0.0, FASTER)) is not None
    outlier = _look(10.0, FASTER, acting="int8", mismatch={"int8": {"kl": 0.2}})
    assert [tuner.look(outlier) for _ in range(TunerOptions().agreeing + 1)] == [None] * (TunerOptions().agreeing + 1)
    assert tuner.incumbent == "int8"


def test_measured_quality_of_the_level_in_use_counts_more_than_its_timing() -> None:
    tuner = Tuner(("fp32", "int8"))
    assert tuner.look(_look(0.0, FASTER)) is not None
    m = _look(10.0, FASTER, acting="int8", quality={"int8": 0.1})
    assert tuner.gains(m)["fp32"].median > 1.5


def test_a_level_that_was_left_is_banned_twice_as_long_each_time() -> None:
    tuner, o = Tuner(("fp32", "int8")), TunerOptions()
    now, bans = 0.0, []
    for _ in range(3):
        while tuner.look(_look(now, FASTER)) is None:
            now += 1.0
        bans.append(now)
        decision = tuner.fall_back(_look(now, FASTER, acting="int8"), "it fails")
        assert (decision.kind, decision.before, decision.after) == ("fallback", "int8", "fp32")
        assert not tuner.allows("int8", now + 1.0) and tuner.allows("fp32", now)
    assert np.diff(bans).tolist() == [o.ban_s, 2 * o.ban_s]


def test_pure_noise_changes_levels_ever_more_rarely() -> None:
    """Levels whose speeds swap at random: what follows the n-th change and is coarser waits for 2^n dwells at least."""
    tuner, random, changes, kinds = Tuner(("fp32", "int8")), np.random.default_rng(0), [], []
    for i in range(1000):
        calls = {"fp32": 500.0, "int8": 500.0 * float(random.choice([0.3, 3.0]))}
        if (decision := tuner.look(_look(i * 0.25, calls, acting=tuner.incumbent, seed=i))) is not None:
            changes.append(i * 0.25)
            kinds.append(decision.kind)
    assert len(kinds) >= 4 and kinds == (["accept", "relax"] * len(kinds))[: len(kinds)]
    waits = np.diff(changes)[1::2]
    assert (waits >= TunerOptions().dwell_s * 2.0 ** np.arange(1, 2 * len(waits), 2)).all()


def test_looks_for_a_coarser_level_are_none_for_a_finer_one() -> None:
    """While a change delays the next to a coarser level, however many say so."""
    tuner, o = Tuner(LEVELS), TunerOptions()
    first = tuner.look(_look(0.0, {**FASTER, "prune(0.5)+int8": 900.0}))
    assert first is not None and first.after == "int8"
    coarser, finer = ({**FASTER, "prune(0.5)+int8": us} for us in (20.0, 200.0))
    assert [tuner.look(_look(0.1 * i, coarser, acting="int8")) for i in range(1, 8)] == [None] * 7
    looks = [tuner.look(_look(1.0 + 0.1 * i, finer, acting="int8", learner_rate=100.0)) for i in range(o.agreeing)]
    assert [look is not None for look in looks] == [False] * (o.agreeing - 1) + [True]


def test_a_level_that_is_worse_as_it_acts_than_as_it_was_timed_acts_a_few_seconds_in_all() -> None:
    """Its timing stays as good as it was: without a ban it would be taken again and again, each time for longer."""
    tuner, now, on = Tuner(("fp32", "int8")), 0.0, {"fp32": 0, "int8": 0}
    decisions = []
    calls = {"fp32": 60.0, "int8": 33.0}
    while now < 1800.0:
        quality = {"int8": 0.64} if tuner.incumbent == "int8" else {}
        on[tuner.incumbent] += 1
        decision = tuner.look(_look(now, calls, acting=tuner.incumbent, env_us=70.0, quality=quality))
        decisions += [] if decision is None else [(now, decision.kind)]
        now += 0.25
    assert [kind for _, kind in decisions] == ["accept", "relax"] * (len(decisions) // 2)
    taken, left = ([at for at, kind in decisions if kind == wanted] for wanted in ("accept", "relax"))
    bans = [after - before for before, after in zip(left, taken[1:], strict=False)]
    assert bans == pytest.approx([TunerOptions().ban_s * 2.0**n for n in range(len(bans))])
    assert 0 < on["int8"] < 0.01 * on["fp32"]


def test_nothing_is_decided_before_every_actor_has_timed_the_level() -> None:
    tuner, m = Tuner(LEVELS), _look(0.0, {**FASTER, "prune(0.5)+int8": 50.0})
    late = _look(0.0, FASTER).actors[0]
    decision = tuner.look(Measurements(0.0, [*m.actors, late], {"fp32": 1e9}))
    assert decision is not None and decision.after == "int8"
    assert Tuner(LEVELS).look(Measurements(0.0, [], {})) is None
    assert Tuner(LEVELS).gains(Measurements(0.0, [ActorTiming(1.0, 1.0, 1.0, 0.0, {})], {})) == {}


@pytest.mark.parametrize("levels", [(), ("fp32",), ("fp32", "int8", "int8")])
def test_a_ladder_needs_two_different_levels(levels: tuple[str, ...]) -> None:
    with pytest.raises(TunerError, match="at least two different levels"):
        Tuner(levels)
