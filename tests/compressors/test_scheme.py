"""The text form of schemes: printing what was parsed, and messages that list the choices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.compressors.errors import SchemeError
from accel.compressors.method_arguments import check_scheme
from accel.compressors.pipeline import make_compressor
from accel.compressors.scheme import MethodText, Scheme, parse_scheme, scheme_names

_PLAIN = st.text("abcxyz0123456789._-", min_size=1, max_size=8)
_ARGUMENTS = _PLAIN | st.tuples(_PLAIN, _PLAIN).map("=".join)
_METHODS = st.builds(MethodText, st.sampled_from(scheme_names()), st.lists(_ARGUMENTS, max_size=3).map(tuple))
_SCHEMES = st.lists(_METHODS, min_size=1, max_size=4).map(tuple).map(Scheme)


@given(_SCHEMES)
def test_printing_then_parsing_gives_the_same_scheme(scheme: Scheme) -> None:
    assert parse_scheme(str(scheme)) == scheme


@given(_SCHEMES, st.randoms())
def test_spaces_do_not_matter(scheme: Scheme, random: object) -> None:
    text = str(scheme)
    for sign in "+(,)":
        text = text.replace(sign, f" {sign} ")
    assert parse_scheme(text.replace(" (", "(")) == scheme


@given(st.text(max_size=20))
def test_any_text_parses_or_is_a_scheme_error(text: str) -> None:
    try:
        scheme = parse_scheme(text)
    except SchemeError:
        return
    assert parse_scheme(str(scheme)) == scheme


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(SchemeError, match="unknown method 'int9'") as caught:
        parse_scheme("int9")
    assert all(name in str(caught.value) for name in scheme_names())


@pytest.mark.parametrize(
    "text", ["", "int8+", "+int8", "int8()", "int8(", "int8)", "int8((1))", "INT8", "int8(,)", "int8(a b)"]
)
def test_malformed_text_is_an_error(text: str) -> None:
    with pytest.raises(SchemeError):
        parse_scheme(text)


@pytest.mark.parametrize(
    "text", ["fp32+int8", "int8+int8", "int8+prune(0.5)", "fp32(1)", "int8(bogus)", "prune(1.5)", "qat(a=int4)"]
)
def test_methods_that_do_not_go_together_are_an_error(text: str) -> None:
    with pytest.raises(SchemeError):
        make_compressor(text)
    with pytest.raises(SchemeError):
        check_scheme(text)


@given(_SCHEMES)
def test_a_scheme_is_refused_before_it_is_made_or_can_be_made(scheme: Scheme) -> None:
    try:
        checked = check_scheme(str(scheme))
    except SchemeError as refused:
        with pytest.raises(SchemeError, match=re.escape(str(refused))):
            make_compressor(str(scheme))
    else:
        assert checked == scheme and make_compressor(str(scheme))


@pytest.mark.parametrize("text", ["fp32", "int8"])
def test_a_compressor_knows_its_scheme(text: str) -> None:
    assert make_compressor(text).scheme == text
