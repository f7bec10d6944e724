"""The text of ``compressor``: what it parses to, that it prints what it reads, and what is refused."""

from __future__ import annotations

import pytest

from accel.errors import ConfigError
from accel.tuning.choice import parse_choice


@pytest.mark.parametrize(
    ("text", "kind", "canonical"),
    [
        ("int8", "fixed", "int8"),
        (" prune(0.5) + int8 ", "fixed", "prune(0.5)+int8"),
        ("auto", "auto", "auto(fp32;int8)"),
        ("auto(int8; prune(0.5)+int8)", "auto", "auto(fp32;int8;prune(0.5)+int8)"),
        ("auto(fp32;int4)", "auto", "auto(fp32;int4)"),
        (
            "anneal(fp32@0;int8@1e5; prune(0.5)+int8@500_000)",
            "anneal",
            "anneal(fp32@0;int8@100000;prune(0.5)+int8@500000)",
        ),
        ("anneal(int8@0)", "anneal", "anneal(int8@0)"),
    ],
)
def test_texts_and_their_canonical_form(text: str, kind: str, canonical: str) -> None:
    choice = parse_choice(text)
    assert (choice.kind, str(choice)) == (kind, canonical)
    assert parse_choice(canonical) == choice


def test_schedule_is_what_was_written() -> None:
    choice = parse_choice("anneal(int8@0;fp32@10;int8@20)")
    assert choice.levels == ("int8", "fp32")
    assert choice.schedule is not None
    assert [choice.schedule.level_at(step) for step in (0, 10, 19, 20)] == ["int8", "fp32", "fp32", "int8"]


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
        ("anneal(int8)", "lacks its step"),
        ("anneal()", "lacks its step"),
        ("anneal(int8@5)", "must begin at"),
        ("anneal(fp32@0;int8@0)", "not after"),
        ("anneal(fp32@0;int8@1.5)", "whole number"),
        ("anneal(fp32@0;int8@-3)", "whole number"),
        ("anneal(fp32@0;int8@inf)", "whole number"),
        ("annealing(fp32@0)", "write auto"),
        ("int9", "choose from"),
    ],
)
def test_nonsense_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_choice(text)


def test_semicolons_separate_levels_and_commas_what_a_scheme_says_of_its_layers() -> None:
    text = "auto(fp32; int8; prune(0.5,torso.layers.0=0.25)+int8)"
    levels = ("fp32", "int8", "prune(0.5,torso.layers.0=0.25)+int8")
    choice = parse_choice(text)
    assert choice.levels == levels
    assert parse_choice(str(choice)) == choice
    schedule = parse_choice("anneal(fp32@0; int8@1e5)").schedule
    assert schedule is not None and schedule.env_steps == (0, 100_000)
