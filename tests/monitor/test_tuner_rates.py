"""Predicted rates: exact on noiseless times, robust to a stopped process, and what missing measurements mean."""

from __future__ import annotations

import pytest

from monitor.tuner.rates import RateTable

T = 20


def _unrolls(
    table: RateTable,
    actor: int,
    level: str | None,
    *,
    policy_us: float,
    env_us: float = 100.0,
    overhead_us: float = 20.0,
    load_us: float = 400.0,
    count: int = 16,
    valid: int = 8 * T,
) -> None:
    for _ in range(count):
        table.add_unroll(
            actor,
            level,
            T,
            valid,
            outside_s=(env_us + overhead_us) * T * 1e-6,
            env_s=env_us * T * 1e-6,
            level_s=(policy_us * T + load_us) * 1e-6,
            loaded=True,
        )


def test_rate_of_the_level_in_use_is_what_its_unrolls_took() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0)
    # 100 + 20 + 60 + 400/20 µs a vector step of 8.
    assert table.rate("fp32", [0]) == pytest.approx(8 / 200e-6)
    assert table.env_share([0]) == pytest.approx(0.5)


def test_rate_of_another_level_comes_from_the_quick_measurement() -> None:
    table = RateTable()
    table.add_report(0, "fp32", policy_us=50.0, load_us=400.0)
    table.add_report(0, "int8", policy_us=20.0, load_us=600.0)
    _unrolls(table, 0, "fp32", policy_us=60.0)
    # Sampling and copies cost 10 µs beside the call; int8 pays them too, and 600/20 for loading.
    assert table.rate("int8", [0]) == pytest.approx(8 / (120 + 20 + 10 + 30) * 1e6)


def test_what_does_not_depend_on_the_level_is_always_the_newest() -> None:
    table = RateTable()
    table.add_report(0, "fp32", policy_us=60.0, load_us=400.0)
    table.add_report(0, "int8", policy_us=20.0, load_us=400.0)
    _unrolls(table, 0, "fp32", policy_us=60.0)
    _unrolls(table, 0, "int8", policy_us=20.0, env_us=500.0, count=80)
    assert table.rate("fp32", [0]) == pytest.approx(8 / (520 + 60 + 20) * 1e6)


def test_shared_actors_tell_nothing_about_one_level() -> None:
    table = RateTable()
    _unrolls(table, 0, None, policy_us=90.0)
    assert table.rate("fp32", [0]) is None
    table.add_report(0, "fp32", policy_us=60.0, load_us=0.0)
    assert table.rate("fp32", [0]) == pytest.approx(8 / 180e-6)


def test_unmeasured_actors_count_as_the_others_do() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0)
    assert table.rate("fp32", [0, 1, 2]) == pytest.approx(3 * 8 / 200e-6)
    assert table.rate("int8", [0, 1, 2]) is None


def test_actors_add_up_each_at_its_own_speed() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0)
    _unrolls(table, 1, "fp32", policy_us=260.0)
    assert table.rate("fp32", [0, 1]) == pytest.approx(8 / 200e-6 + 8 / 400e-6)
    table.forget(1)
    assert table.rate("fp32", [0]) == pytest.approx(8 / 200e-6)


def test_an_actor_that_was_stopped_for_a_while_changes_nothing() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0, count=20)
    _unrolls(table, 0, "fp32", policy_us=60_000.0, count=5)
    assert table.rate("fp32", [0]) == pytest.approx(8 / 200e-6)


def test_first_unroll_on_a_level_is_left_out() -> None:
    table = RateTable()
    _unrolls(table, 0, "int8", policy_us=5000.0, count=1)
    _unrolls(table, 0, "int8", policy_us=60.0, count=4)
    assert table.rate("int8", [0]) == pytest.approx(8 / 200e-6)


def test_invalid_rows_are_no_steps() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0, valid=4 * T)
    assert table.rate("fp32", [0]) == pytest.approx(4 / 200e-6)


def test_a_new_survey_replaces_old_reports_and_keeps_residuals() -> None:
    table = RateTable()
    table.add_report(0, "fp32", policy_us=50.0, load_us=400.0)
    table.add_report(0, "int8", policy_us=20.0, load_us=400.0)
    _unrolls(table, 0, "fp32", policy_us=60.0)
    table.forget_reports()
    assert not table.reported(0, "int8")
    assert table.rate("int8", [0]) is None
    table.add_report(0, "int8", policy_us=45.0, load_us=400.0)
    assert table.rate("int8", [0]) == pytest.approx(8 / (120 + 45 + 10 + 20) * 1e6)


def test_the_environment_s_share_starts_from_the_quick_measurement() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0, count=2)
    assert table.env_share([0]) == 0.0
    table.add_report(0, "fp32", policy_us=50.0, load_us=0.0)
    quick = table.env_share([0])
    assert quick > 0.0
    _unrolls(table, 0, "fp32", policy_us=60.0, count=4)
    assert table.env_share([0]) == pytest.approx(quick, rel=0.2)


def test_memory_is_bounded() -> None:
    table = RateTable()
    _unrolls(table, 0, "fp32", policy_us=60.0, count=2000)
    assert len(table._actors[0].outside_us) == len(table._actors[0].level_us) == 64
