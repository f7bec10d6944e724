"""The TOML writer against the standard library's reader."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.config.toml import to_toml

scalars = st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
tables = st.recursive(
    st.dictionaries(st.text(), values, max_size=4),
    lambda inner: st.dictionaries(st.text(), values | inner, max_size=4),
    max_leaves=10,
)


@given(tables)
def test_the_standard_reader_gives_equal_values_of_equal_types(table: dict[str, object]) -> None:
    read = tomllib.loads(to_toml(table))
    assert read == table
    assert repr(sort_keys(read)) == repr(sort_keys(table))


def sort_keys(value: object) -> object:
    return {key: sort_keys(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


@pytest.mark.parametrize("text", ["\x7f", '"\\', "\n\r\t\b\f\x00\x1f", "é😀", "#[a]\n=", ""])
def test_awkward_strings(text: str) -> None:
    assert tomllib.loads(to_toml({"a": text, text: [text]})) == {"a": text, text: [text]} | (
        {"a": text} if text != "a" else {}
    )


def test_not_a_number_and_small_numbers() -> None:
    assert to_toml({"x": float("nan"), "y": 1e-5, "z": float("-inf")}) == "x = nan\ny = 1e-05\nz = -inf\n"
    assert repr(tomllib.loads("x = 1e-05\nz = -inf")) == "{'x': 1e-05, 'z': -inf}"


def test_tuples_are_arrays_and_comments_stand_above_their_keys() -> None:
    text = to_toml({"env_arg": ("a=1", "b=2"), "seed": 3}, {"seed": "seed of everything\nrandom"})
    assert text == 'env_arg = ["a=1", "b=2"]\n# seed of everything\n# random\nseed = 3\n'
    assert tomllib.loads(text) == {"env_arg": ["a=1", "b=2"], "seed": 3}


@pytest.mark.parametrize("value", [None, [None], b"bytes", {"inner": object()}])
def test_what_toml_cannot_hold_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        to_toml({"key": value})
