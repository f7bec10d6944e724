"""The text form of schemes: printing what was parsed, and messages that list the choices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.compressors.errors import SchemeError
from accel.compressors.method_arguments import check_scheme
from accel.compressors.pipeline import make_compressor
from accel.compressors.scheme import METHODS, MethodText, Scheme, parse_scheme

_PLAIN = st.text("abcxyz0123456789._-", min_size=1, max_size=8)
_ARGUMENTS = _PLAIN | st.tuples(_PLAIN, _PLAIN).map("=".join)
_METHODS = st.builds(MethodText, st.sampled_from([*METHODS]), st.lists(_ARGUMENTS, max_size=3).map(tuple))
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
    assert all(name in str(caught.value) for name in METHODS)


@given(_SCHEMES)
def test_a_scheme_is_refused_before_it_is_made_or_can_be_made(scheme: Scheme) -> None:
    try:
        checked = check_scheme(str(scheme))
    except SchemeError as refused:
        with pytest.raises(SchemeError, match=re.escape(str(refused))):
            make_compressor(str(scheme))
    else:
        assert checked == scheme and make_compressor(str(scheme)).scheme == str(scheme)


INT8_OPTIONS = "options are one of u8s8, reduce_range, s8s8, one of w2, w3, w4 and one of x2, x3, .*, x8,"
REFUSED = {
    "between 0 and 1": (
        "prune", "prune(0)", "prune(1)", "prune(1.5)", "prune(-0.5)", "prune(x)", "prune(0.5,l1)", "prune(0.5,0.25)",
        "lowrank", "lowrank(0)", "lowrank(1)", "lowrank(x)", "lowrank(0.5,2)",
    ),
    "such as 64x2": (
        "distill", "distill(64)", "distill(x2)", "distill(0x2)", "distill(64x2,1)", "distill(64X2)",
    ),
    INT8_OPTIONS: (
        "int8(u8s8,s8s8)", "int8(u8s8,u8s8)", "int8(perchannel)", "int8(w2,w4)", "int8(w5)", "int8(x8,x8)",
        "int8(x4,x8)", "int8(x1)", "qat(x9)",
    ),
    r"\S": (
        "", "int8+", "+int8", "int8()", "int8(", "int8)", "int8((1))", "INT8", "int8(,)", "int8(a b)",
        "fp16(1)", "int4(8)", "int4(32,32)", "int4(x)", "fp32(1)", "fp32+int8", "int8+int8", "int8(torso=int7)",
        "int8(torso=float,torso=int4)", "int8(=float)", "int8(torso=)", "int8(a=b=c)", "prune(torso=1)",
        "prune(torso=0)", "prune(torso=half)", "prune(torso.0=0.5,0.5,0.5)", "prune(1.5,torso=0.5)",
        "lowrank(torso=0)", "lowrank(torso=1)", "lowrank(torso=-1)",
    ),
    "'int8' must come last": ("int8+prune(0.5)",),
    "must come first": ("prune(0.5)+distill(64x2)",),
    "twice": ("prune(0.5)+prune(0.5)",),
    r"lowrank\(0.5\)\+qat: .*use lowrank\(0.5\)\+int8, or prune": ("lowrank(0.5)+qat",),
    r"distill\(32x2\)\+qat: .*use distill\(32x2\)\+int8": ("distill(32x2)+qat",),
    "lowrank": ("prune(0.5)+lowrank(0.5)+qat",),
    "'qat' must come last": ("qat+prune(0.5)",),
    "2 number formats": ("qat+int8",),
    r"qat\(wat\): options are one of": ("qat(wat)",),
    "qat supports int8 layers only": ("qat(2=x16)",),
    r"qat\(head=int4\).*head=float, or the format int8": ("qat(head=int4)",),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [(text, message) for message, texts in REFUSED.items() for text in texts])
def test_what_makes_no_sense_is_refused_before_it_is_made_or_can_be_made(text: str, message: str) -> None:
    for refuse in (make_compressor, check_scheme):
        with pytest.raises(SchemeError, match=message):
            refuse(text)
