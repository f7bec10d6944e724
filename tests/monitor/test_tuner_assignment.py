"""Layouts of a comparison: every environment has a level, both sides act at once, parts are as small as documented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.tuner.assignment import Split, audit, can_compare, survey, trial

ACTORS = st.integers(1, 40).flatmap(lambda n: st.lists(st.integers(0, 99), min_size=n, max_size=n, unique=True))


def _count(layout: dict[int, Split], level: str) -> int:
    return sum(count for split in layout.values() for name, count in split if name == level)


@given(actors=ACTORS, envs=st.integers(1, 16), turn=st.integers(0, 50))
def test_trial_has_both_sides_and_loses_no_environment(actors: list[int], envs: int, turn: int) -> None:
    if not can_compare(actors, envs):
        return
    layout = dict(trial(actors, envs, incumbent="a", candidate="b", reference="c", turn=turn))
    assert sorted(layout) == sorted(actors)
    assert all(sum(count for _, count in split) == envs for split in layout.values())
    assert _count(layout, "b") >= 1 and _count(layout, "c") >= 1
    if len(actors) >= 4:
        assert _count(layout, "b") <= len(actors) * envs / 4


@given(actors=ACTORS, envs=st.integers(1, 16), turn=st.integers(0, 50))
def test_audit_keeps_the_reference_small(actors: list[int], envs: int, turn: int) -> None:
    if not can_compare(actors, envs):
        return
    layout = dict(audit(actors, envs, incumbent="a", reference="c", turn=turn))
    assert all(sum(count for _, count in split) == envs for split in layout.values())
    assert _count(layout, "a") >= 1 and _count(layout, "c") >= 1
    if envs >= 4:
        assert _count(layout, "c") <= len(actors) * envs / 4


def test_parts_rotate() -> None:
    candidates = {
        actor
        for turn in range(4)
        for actor, split in trial([0, 1, 2, 3], 8, incumbent="a", candidate="b", reference="a", turn=turn).items()
        if split == (("b", 8),)
    }
    assert candidates == {0, 1, 2, 3}


def test_survey_acts_with_one_level_only() -> None:
    layout = survey([0, 1], 8, "fp32", ["fp32", "int8"])
    assert layout == {0: (("fp32", 8), ("int8", 0)), 1: (("fp32", 8), ("int8", 0))}
