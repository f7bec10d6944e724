"""The text of ``compressor``: what it parses to, that it prints what it reads, and what is refused."""

from __future__ import annotations

import pytest

from accel.errors import ConfigError
from accel.tuning.choice import parse_choice


@pytest.mark.parametrize(
    ("text", "canonical", "levels"),
    [
        ("int8", "int8", ("int8",)),
        (" prune(0.5) + int8 ", "prune(0.5)+int8", ("prune(0.5)+int8",)),
        ("auto", "auto(fp32;int8)", ("fp32", "int8")),
        ("auto(int8; prune(0.5)+int8)", "auto(fp32;int8;prune(0.5)+int8)", ("fp32", "int8", "prune(0.5)+int8")),
        ("auto(fp32;int4)", "auto(fp32;int4)", ("fp32", "int4")),
        (
            "auto(fp32; prune(0.5,torso.layers.0=0.25)+int8)",
            "auto(fp32;prune(0.5,torso.layers.0=0.25)+int8)",
            ("fp32", "prune(0.5,torso.layers.0=0.25)+int8"),
        ),
    ],
)
def test_texts_and_their_canonical_form(text: str, canonical: str, levels: tuple[str, ...]) -> None:
    choice = parse_choice(text)
    assert (str(choice), choice.levels) == (canonical, levels)
    assert parse_choice(canonical) == choice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("automatic", "write auto"),
        ("auto(", "write auto"),
        ("auto()", "not have the form"),
        ("auto(fp32)", "at least two different"),
        ("auto(fp32;int8;int8)", "at least two different"),
        ("auto(int8;fp32)", "comes first"),
        ("auto(fp32;int9)", "unknown method 'int9'"),
        ("int9", "choose from"),
    ],
)
def test_nonsense_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_choice(text)
