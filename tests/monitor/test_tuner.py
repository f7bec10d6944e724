"""The tuner on simulated actors: which level it settles on, how soon it leaves a bad one, and that it never flaps."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import TunerError
from monitor.tuner.criteria import TunerOptions
from monitor.tuner.measurements import LevelMeasurement, Measurements
from monitor.tuner.stages import Tuner
from tests.monitor.simulated_run import Level, Simulation, ladder, level

NAMES = ("fp32", "int8", "prune(0.5)+int8")
FAST = ladder(NAMES, level(200.0), level(60.0, 0.999), level(40.0, 0.98))


def test_actor_bound_takes_the_fastest_level_that_keeps_its_quality() -> None:
    run = Simulation(FAST).run(60.0)
    assert run.tuner.incumbent == "prune(0.5)+int8"
    assert run.kinds()[:3] == ["survey", "trial", "accept"]
    assert run.share_on("prune(0.5)+int8") > 0.8


def test_quality_lost_beyond_what_speed_gains_is_given_up() -> None:
    levels = ladder(NAMES, level(200.0), level(60.0, 0.99), level(40.0, 0.7))
    run = Simulation(levels).run(60.0)
    assert run.tuner.incumbent == "int8"
    # Tried first, as its quality is unknown before it acts; worth having until int8 shows more.
    assert run.changes() == [("fp32", "prune(0.5)+int8"), ("prune(0.5)+int8", "int8")]
    assert run.share_on("int8") > 0.7


def test_learner_bound_compresses_nothing_and_says_so() -> None:
    run = Simulation(FAST, learner_us=20.0).run(60.0)
    assert run.tuner.incumbent == "fp32"
    assert run.share_on("fp32") == 1.0
    assert "learner is the bottleneck" in run.decisions[1][1].reason
    assert run.decisions[1][1].figures["bottleneck"] == "learner"


def test_learner_bound_from_some_level_on_stops_at_the_finest_that_feeds_it() -> None:
    # fp32 delivers 128 k steps/s, int8 290 k, the pruned level 355 k; the learner takes 250 k.
    run = Simulation(FAST, learner_us=4.0).run(60.0)
    assert run.tuner.incumbent == "int8"


def test_in_one_process_the_learners_time_is_added_to_the_actors() -> None:
    # The actor makes 32 k steps/s on fp32 and 73 k on int8, the learner 8 k: 6.4 k and 7.2 k in turns.
    pays = Simulation({"fp32": level(200.0), "int8": level(60.0)}, actors=1, learner_us=125.0, alone=True).run(60.0)
    assert pays.tuner.incumbent == "int8"
    assert "+13% effective experience" in pays.decisions[1][1].reason
    assert "learner is the bottleneck: with fp32 it takes 80% of the" in pays.decisions[1][1].reason
    levels = {"fp32": level(200.0), "int8": level(60.0, quality=0.8)}
    costs = Simulation(levels, actors=1, learner_us=125.0, alone=True).run(60.0)
    assert costs.tuner.incumbent == "fp32"
    assert costs.changes() == []


def test_rates_of_an_actor_and_a_learner_that_take_turns() -> None:
    levels = {"fp32": LevelMeasurement(rate=10_000.0), "int8": LevelMeasurement(rate=14_000.0)}
    m = Measurements(0.0, 0, (0,), levels, learner_rate=2500.0, alone=True)
    assert m.delivered_rate("fp32") == pytest.approx(2000.0)
    assert m.delivered_rate("int8") == pytest.approx(1.0 / (1.0 / 14_000.0 + 1.0 / 2500.0))
    assert m.bottleneck("fp32", busy_env_share=0.7) == "learner"
    assert dataclasses.replace(m, learner_rate=20_000.0).bottleneck("fp32", busy_env_share=0.7) == "policy"
    assert dataclasses.replace(m, learner_rate=None).delivered_rate("fp32") == 10_000.0
    assert m.delivered_rate("fp16") is None


def test_environment_bound_compresses_nothing_and_says_so() -> None:
    run = Simulation(FAST, env_us=8000.0, episode_steps=50.0).run(60.0)
    assert run.tuner.incumbent == "fp32"
    assert run.share_on("fp32") == 1.0
    assert set(run.kinds()) == {"survey", "hold"}
    # 8000 us of the environment beside 200 us of the policy.
    assert "the environment is the bottleneck: it takes 98% of the actors' time" in run.decisions[1][1].reason
    assert run.decisions[1][1].figures["bottleneck"] == "environment"


def test_learner_that_becomes_the_bottleneck_brings_full_precision_back() -> None:
    run = Simulation(FAST).run(30.0)
    assert run.tuner.incumbent != "fp32"
    run.learner_us = 20.0
    run.run(30.0)
    assert run.tuner.incumbent == "fp32"
    assert run.kinds()[-1] != "fallback"
    assert any(v.kind == "relax" and "learner is the bottleneck" in v.reason for _, v in run.decisions)


@pytest.mark.parametrize("actors", [1, 2, 3, 16])
def test_level_that_destroys_the_policy_is_found_by_its_returns_and_left(actors: int) -> None:
    # Mismatch is blind here: only returns tell.
    levels = ladder(NAMES, level(200.0), level(60.0), level(20.0, mean_return=5.0))
    run = Simulation(levels, actors=actors, learner_us=0.1).run(120.0)
    assert run.tuner.incumbent == "int8"
    rejected = [v for _, v in run.decisions if v.kind == "reject" and v.before != "prune(0.5)+int8"]
    assert rejected and "severe loss of return" in rejected[0].reason
    assert run.share_on("prune(0.5)+int8") < 0.15


def test_level_that_destroys_the_policy_is_left_on_its_first_mismatch_alarm() -> None:
    levels = ladder(NAMES, level(200.0), level(60.0), level(20.0, quality=0.1))
    run = Simulation(levels).run(60.0)
    first = next(v for _, v in run.decisions if v.kind == "reject")
    assert "mismatch alarm" in first.reason and "ess is too small" in first.reason
    assert run.tuner.incumbent == "int8"
    assert run.share_on("prune(0.5)+int8") < 0.03


def test_alarm_on_the_level_in_use_falls_back_to_full_precision_at_once() -> None:
    broken = Level(lambda _: 60.0, lambda t: 1.0 if t <= 30.0 else 0.1)
    run = Simulation({"fp32": level(200.0), "int8": broken}).run(30.0)
    assert run.tuner.incumbent == "int8"
    run.run(0.5)
    assert run.tuner.incumbent == "fp32"
    assert run.kinds()[-1] == "fallback"
    run.run(120.0)
    assert run.tuner.incumbent == "fp32"
    # Tried again ever more rarely: bans of 20, 40 and 80 s fit.
    assert run.kinds().count("trial") <= 1 + 3


def test_audit_finds_a_level_whose_returns_get_worse() -> None:
    worse = Level(lambda _: 60.0, lambda _: 1.0, lambda t: 100.0 if t < 20.0 else 60.0)
    run = Simulation({"fp32": level(200.0), "int8": worse}).run(20.0)
    assert run.tuner.incumbent == "int8"
    run.run(40.0)
    assert any(v.kind == "fallback" and "loses return" in v.reason for _, v in run.decisions)


def test_audit_goes_on_for_a_level_that_became_the_reference() -> None:
    # Significantly better at first, as one level in a hundred seems by chance alone.
    lucky = Level(lambda _: 60.0, lambda _: 1.0, lambda t: 130.0 if t < 20.0 else 60.0)
    run = Simulation({"fp32": level(200.0), "int8": lucky}).run(20.0)
    assert run.tuner.incumbent == run.tuner.reference == "int8"
    run.run(40.0)
    assert "fallback" in run.kinds()
    fallback = run.decisions[run.kinds().index("fallback")][1]
    assert (fallback.before, fallback.after) == ("int8", "fp32") and "loses return" in fallback.reason
    assert run.tuner.incumbent == run.tuner.reference == "fp32"


def test_level_that_stays_better_than_full_precision_is_audited_ever_more_rarely() -> None:
    run = Simulation({"fp32": level(200.0), "int8": level(60.0, mean_return=130.0)}).run(400.0)
    assert run.tuner.incumbent == run.tuner.reference == "int8" and "fallback" not in run.kinds()
    audits = [time_s for time_s, decision in run.decisions if decision.kind == "audit"]
    assert len(audits) >= 4
    waits = [after - before for before, after in itertools.pairwise(audits)]
    assert all(after > 1.5 * before for before, after in itertools.pairwise(waits))
    assert run.share_on("int8") > 0.9


def test_level_that_gets_slower_is_given_up() -> None:
    slower = Level(lambda t: 60.0 if t < 20.0 else 400.0)
    run = Simulation({"fp32": level(200.0), "int8": slower}).run(20.0)
    assert run.tuner.incumbent == "int8"
    run.run(20.0)
    assert run.tuner.incumbent == "fp32"
    assert run.kinds()[-1] in {"relax", "hold", "survey"}


def test_level_that_gets_slower_yields_to_a_finer_one() -> None:
    slower = Level(lambda t: 20.0 if t < 20.0 else 300.0)
    run = Simulation(ladder(NAMES, level(200.0), level(60.0), slower)).run(20.0)
    assert run.tuner.incumbent == "prune(0.5)+int8"
    run.run(60.0)
    assert run.tuner.incumbent == "int8"


def test_level_whose_quality_comes_back_is_taken_again() -> None:
    poor_for_a_while = Level(lambda _: 150.0, lambda t: 0.6 if 20.0 < t < 30.0 else 1.0)
    run = Simulation({"fp32": level(200.0), "int8": poor_for_a_while}).run(30.0)
    assert run.kinds()[-1] == "relax" and run.tuner.incumbent == "fp32"
    run.run(60.0)
    assert run.changes() == [("fp32", "int8"), ("int8", "fp32"), ("fp32", "int8")]


def test_level_that_lost_its_place_to_another_is_taken_again_when_it_got_better() -> None:
    young = Level(lambda _: 40.0, lambda t: 0.7 if t < 30.0 else 0.99)
    run = Simulation(ladder(NAMES, level(200.0), level(60.0, 0.99), young)).run(30.0)
    assert run.changes() == [("fp32", "prune(0.5)+int8"), ("prune(0.5)+int8", "int8")]
    run.run(120.0)
    assert run.tuner.incumbent == "prune(0.5)+int8"
    assert len(run.changes()) == 3


def test_learning_that_moves_all_returns_is_no_loss() -> None:
    # Returns of both levels rise from 0 to 300 while they are compared.
    rising = [Level(lambda _, us=us: us, mean_return=lambda t: 5.0 * t) for us in (200.0, 60.0)]
    run = Simulation({"fp32": rising[0], "int8": rising[1]}).run(60.0)
    assert run.tuner.incumbent == "int8"
    assert "reject" not in run.kinds() and "fallback" not in run.kinds()


def test_dead_actors_leave_the_rest_deciding() -> None:
    run = Simulation(FAST, actors=8).run(3.0)
    for actor in (1, 2, 4, 5, 6, 7):
        run.kill(actor)
    run.run(60.0)
    assert run.tuner.incumbent == "prune(0.5)+int8"


def test_two_equal_levels_change_nothing() -> None:
    run = Simulation({"fp32": level(100.0), "int8": level(100.0)}, noise=0.01).run(300.0)
    assert run.share_on("fp32") == 1.0
    assert run.changes() == []


@settings(max_examples=25)
@given(
    costs=st.lists(st.floats(20.0, 400.0), min_size=3, max_size=3),
    qualities=st.lists(st.floats(0.5, 1.0), min_size=2, max_size=2),
    learner_us=st.floats(1.0, 20.0),
    noise=st.floats(0.0, 0.15),
    actors=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 2**16),
)
def test_never_flaps_under_stationary_noise(
    costs: list[float], qualities: list[float], learner_us: float, noise: float, actors: int, seed: int
) -> None:
    truths = [level(costs[0]), *(level(us, quality) for us, quality in zip(costs[1:], qualities, strict=True))]
    run = Simulation(
        ladder(NAMES, *truths), actors=actors, learner_us=learner_us, noise=noise, seed=seed, tick_s=0.5
    ).run(600.0)
    options = TunerOptions()
    forced = run.kinds().count("fallback")
    assert len(run.changes()) - 2 * forced <= len(NAMES) + 1 + math.log2(1 + 600.0 / options.dwell)
    # Each level's rejections double its ban, which bounds the trials.
    bans = math.log2(1 + 600.0 / options.ban)
    assert run.kinds().count("reject") <= (len(NAMES) - 1) * (1 + bans)


@pytest.mark.parametrize("broken", [False, True], ids=["exponential back-off", "fixed holds and no bans"])
def test_what_keeps_it_from_flapping(broken: bool) -> None:
    """Two levels that differ by less than a third of the noise, for 20 minutes."""
    levels = {"fp32": level(103.0), "int8": level(100.0, 0.99)}
    options = TunerOptions(ban=0.0, backoff_factor=1.0) if broken else TunerOptions()
    run = Simulation(levels, actors=2, noise=0.3, env_us=5.0, tick_s=0.5, options=options).run(1200.0)
    bound = 2 + 1 + math.log2(1 + 1200.0 / options.dwell)
    assert (len(run.changes()) <= bound) is not broken


def test_false_losses_are_rare() -> None:
    """With equal returns a trial finds a loss about as often as its level of 1 % says, not as often as it looks."""
    losses = trials = 0
    for seed in range(60):
        run = Simulation({"fp32": level(200.0), "int8": level(60.0)}, actors=2, seed=seed, episode_steps=500.0).run(8.0)
        trials += run.kinds().count("trial")
        losses += sum("return" in v.reason for _, v in run.decisions if v.kind in {"reject", "fallback"})
    assert trials >= 60
    assert losses <= 2


def test_nothing_happens_before_levels_can_be_published() -> None:
    tuner = Tuner(NAMES, 8)
    for tick in range(100):
        m = Measurements(tick * 1.0, 0, (0, 1), {"fp32": LevelMeasurement(rate=1000.0)})
        assert tuner.observe(m) is None
    assert tuner.assignments([0, 1]) == {0: (("fp32", 8),), 1: (("fp32", 8),)}


def test_level_that_cannot_be_published_does_not_keep_the_others_waiting() -> None:
    tuner = Tuner(NAMES, 8, TunerOptions(patience=5.0))
    known = {"fp32": LevelMeasurement(rate=1000.0), "int8": LevelMeasurement(rate=3000.0)}
    decisions = [tuner.observe(Measurements(t * 1.0, 0, (0, 1), known, surveyed=True)) for t in range(10)]
    assert [v.kind for v in decisions if v is not None][:2] == ["survey", "trial"]
    assert tuner.candidate == "int8"


def test_a_single_environment_stays_at_full_precision() -> None:
    run = Simulation(FAST, actors=1, envs=1).run(30.0)
    assert run.decisions == []


@pytest.mark.parametrize("levels", [(), ("fp32",), ("fp32", "int8", "int8")])
def test_ladder_needs_two_different_levels(levels: tuple[str, ...]) -> None:
    with pytest.raises(TunerError, match="at least two different levels"):
        Tuner(levels, 8)
