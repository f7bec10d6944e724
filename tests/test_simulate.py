"""The simulation of actors and a learner: bounds that follow from its costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.scripts import load

pipeline = load("simulate/pipeline.py")
COSTS = pipeline.Costs(
    unroll_s=0.1, load_s=0.0, take_s=0.0, update_s=0.01, refresh_s=0.0, post_s=0.0, unroll_bytes=1e6, policy_bytes=1e6,
    unroll_env_steps=100.0, spread=0.0,
)  # fmt: skip


@pytest.mark.parametrize("actors", [1, 4, 9])
def test_too_few_actors_set_the_pace(actors: int) -> None:
    found = pipeline.simulate(COSTS, pipeline.Setting(actors, batch_unrolls=actors), 200)
    assert found.env_steps_per_s == pytest.approx(actors * 100 / 0.1, rel=0.02)
    assert found.actor_wait < 0.01
    assert found.learner_wait == pytest.approx(1 - actors * 0.01 / 0.1, abs=0.02)


@pytest.mark.parametrize("actors", [11, 40, 300])
def test_too_many_actors_wait_for_the_learner(actors: int) -> None:
    found = pipeline.simulate(COSTS, pipeline.Setting(actors, batch_unrolls=4, publish_interval=8), 400)
    assert found.env_steps_per_s == pytest.approx(100 / 0.01, rel=0.02)
    assert found.learner_wait < 0.01
    assert found.actor_wait == pytest.approx(1 - 10 / actors, abs=0.03)


def test_one_actor_in_turns_has_the_lag_of_its_buffers() -> None:
    slow = replace(COSTS, update_s=1.0)
    for in_flight in (1, 2, 4):
        found = pipeline.simulate(slow, pipeline.Setting(1, in_flight=in_flight), 60)
        assert found.lag == in_flight + 1, "as many are on the way as it may have, and the one it collects"
    every_fourth = pipeline.simulate(slow, pipeline.Setting(1, publish_interval=4), 200)
    assert every_fourth.lag == pytest.approx(3.5, abs=0.1), "1.5 later in the mean"


def test_a_link_carries_no_more_than_it_can() -> None:
    found = pipeline.simulate(COSTS, pipeline.Setting(20, batch_unrolls=4, link_bytes_per_s=2e7), 300)
    assert found.env_steps_per_s == pytest.approx(2e7 / 1e6 * 100, rel=0.03), "unrolls fill it"
    assert found.inbound > 0.97
    small = replace(COSTS, unroll_bytes=1e3)
    for interval in (1, 8):
        setting = pipeline.Setting(20, batch_unrolls=4, publish_interval=interval, link_bytes_per_s=2e8)
        found = pipeline.simulate(small, setting, 600)
        wanted = 20 * 1e6 / 2e8 / (0.04 * interval)
        assert found.outbound == pytest.approx(min(wanted, 1.0), abs=0.03)
        assert found.env_steps_per_s == pytest.approx(1e4, rel=0.02), "the learner does not wait for policies to leave"


def test_one_copy_for_a_node_reaches_all_of_its_actors() -> None:
    costs = replace(COSTS, unroll_bytes=1.0, post_s=0.002)
    each = pipeline.simulate(costs, pipeline.Setting(32, batch_unrolls=4, link_bytes_per_s=1e9), 400)
    shared = pipeline.simulate(costs, pipeline.Setting(32, batch_unrolls=4, link_bytes_per_s=1e9, receivers=2), 400)
    assert each.env_steps_per_s == pytest.approx(400 / (0.04 + 32 * 0.002), rel=0.03)
    assert shared.env_steps_per_s == pytest.approx(400 / (0.04 + 2 * 0.002), rel=0.03)
    assert shared.lag < each.lag + 3


def test_what_a_relay_takes_makes_policies_older_and_nothing_slower() -> None:
    """Where nobody waits for a policy: a relay's time is that many updates of lag, and none without relays."""
    slow, setting = replace(COSTS, relay_s=0.4), pipeline.Setting(8, batch_unrolls=8, receivers=1)
    quick, late = (pipeline.simulate(costs, setting, 400) for costs in (COSTS, slow))
    assert late.env_steps_per_s == pytest.approx(quick.env_steps_per_s, rel=0.02)
    assert late.lag == pytest.approx(quick.lag + 0.4 / 0.1, abs=0.6)
    each = replace(setting, receivers=None)
    assert pipeline.simulate(slow, each, 400) == pipeline.simulate(COSTS, each, 400)


@pytest.mark.parametrize(
    ("field", "predicted"),
    [("load_s", lambda c: 100 / (0.1 + c)), ("refresh_s", lambda c: 100 / 0.1), ("take_s", lambda c: 100 / 0.1)],
)
def test_only_what_is_on_the_critical_path_costs(field: str, predicted: Callable[[float], float]) -> None:
    found = pipeline.simulate(replace(COSTS, **{field: 0.05}), pipeline.Setting(1), 200)
    assert found.env_steps_per_s == pytest.approx(predicted(0.05), rel=0.02)
