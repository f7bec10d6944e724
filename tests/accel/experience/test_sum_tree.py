"""A sum tree against a plain cumulative sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.experience.sum_tree import FAN_OUT, PriorityTree


@settings(max_examples=60)
@given(
    size=st.integers(1, 5000),
    changes=st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 300)), min_size=1, max_size=6),
)
def test_a_point_falls_on_the_leaf_of_the_cumulative_sum(size: int, changes: list[tuple[int, int]]) -> None:
    tree, weights = PriorityTree(size, 1.0, 0.0), np.zeros(size)
    for seed, number in changes:
        rng = np.random.default_rng(seed)
        leaves = rng.integers(size, size=number)
        values = rng.integers(0, 4, number).astype(np.float64)  # Whole numbers: sums are exact.
        tree.set(leaves, values)
        for leaf, value in zip(leaves, values, strict=True):
            weights[leaf] = value
        assert tree.total == weights.sum() and np.array_equal(tree.get(np.arange(size)), weights)
        if tree.total:
            points = rng.random(200) * tree.total
            points[:2] = 0.0, np.nextafter(tree.total, 0.0)
            assert np.array_equal(tree.find(points), np.searchsorted(weights.cumsum(), points, side="right"))


@pytest.mark.parametrize("size", [1, FAN_OUT, FAN_OUT**2 + 1])
def test_a_leaf_without_weight_is_never_found(size: int) -> None:
    """Even where rounding puts a point behind the last weight."""
    rng = np.random.default_rng(size)
    for _ in range(200):
        tree, scale = PriorityTree(size, 1.0, 0.0), 10.0 ** rng.integers(-8, 8)
        weights = np.where(rng.random(size) < 0.1, rng.random(size) * scale, 0.0)
        weights[rng.integers(size)] = 0.1
        tree.set(np.arange(size), weights)
        points = np.array([tree.total, np.nextafter(tree.total, np.inf), *rng.random(20) * tree.total])
        assert (weights[tree.find(points)] > 0).all()


def test_a_broken_tree_would_be_noticed() -> None:
    tree = PriorityTree(3000, 1.0, 0.0)
    tree.set(np.arange(3000), np.ones(3000))
    tree.levels[0][0, 0] = 5.0  # A leaf behind the sums' backs.
    assert tree.find(np.array([4.5]))[0] != 4
