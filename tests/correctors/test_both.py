"""What V-trace and Retrace have in common: where episodes end, what counts for nothing, weights of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.correctors import retrace, vtrace
from tests.correctors.test_retrace import oracle as of_retrace
from tests.correctors.test_vtrace import oracle as of_vtrace
from tests.correctors.unrolls import CLIPS, Unroll, an_unroll, differs

Corrector = Callable[..., Any]
both = pytest.mark.parametrize("correct", [vtrace, retrace], ids=["vtrace", "retrace"])


# what each is held against, and its clips
ORACLES = {vtrace: (of_vtrace, ("clip_rho", "clip_c", "clip_pg_rho")), retrace: (of_retrace, ("clip_c", "clip_pg_rho"))}


def rows(correct: Corrector, seed: int, *, ends: float = 0.2) -> Unroll:
    return an_unroll(9, 4, seed, ends=ends, with_q=correct is retrace)


@both
@given(
    length=st.integers(1, 12),
    batch=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    clips=st.tuples(*[st.sampled_from(CLIPS)] * 3),
    lambda_=st.floats(0, 1),
)
def test_is_the_papers_sum_for_any_unroll(
    correct: Corrector,
    length: int,
    batch: int,
    seed: int,
    spread: float,
    clips: tuple[float | None, ...],
    lambda_: float,
) -> None:
    oracle, names = ORACLES[correct]
    unroll = an_unroll(length, batch, seed, spread=spread, with_q=correct is retrace)
    options = dict(zip(names, clips, strict=False)) | {"lambda_": lambda_}
    expected = oracle(unroll, **options)
    torch.testing.assert_close(tuple(correct(**unroll, **options))[:2], expected, rtol=1e-9, atol=1e-9)
    single = {name: t.float() if t.is_floating_point() else t for name, t in unroll.items()}
    if None not in options.values():
        narrow = tuple(x.double() for x in correct(**single, **options)[:2])
        torch.testing.assert_close(narrow, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("correct", "option", "mistaken"),
    [
        pytest.param(vtrace, "clip_c", 2.0, id="vtrace: one clip for the value and the trace"),
        pytest.param(vtrace, "clip_pg_rho", 2.0, id="vtrace: one clip for the value and the policy gradient"),
        pytest.param(retrace, "clip_pg_rho", 0.7, id="retrace: one clip for the trace and the policy gradient"),
        *(pytest.param(c, "clip_pg_rho", None, id=f"{c.__name__}: never used") for c in (vtrace, retrace)),
        *(pytest.param(c, "clip_c", 1.0, id=f"{c.__name__}: a trace clip fixed at one") for c in (vtrace, retrace)),
    ],
)
def test_each_clip_acts_on_its_own_term(correct: Corrector, option: str, mistaken: float | None) -> None:
    unroll = rows(correct, seed=2)
    oracle, names = ORACLES[correct]
    options: Unroll = {name: {"clip_rho": 2.0, "clip_c": 0.7, "clip_pg_rho": 1.3}[name] for name in names}
    right, wrong = (oracle(unroll, **options, lambda_=1.0), oracle(unroll, **options | {option: mistaken}, lambda_=1.0))
    of_policy = option == "clip_pg_rho"
    assert differs(right[of_policy], wrong[of_policy])
    assert torch.equal(right[0], wrong[0]) == of_policy
    torch.testing.assert_close(tuple(correct(**unroll, **options, lambda_=1.0))[:2], right)


@both
def test_a_truncation_bootstraps_from_its_final_observation(correct: Corrector) -> None:
    """Against three common mistakes: the next episode's first row, a termination, and a trace into the next episode."""
    unroll = rows(correct, seed=3)
    right = correct(**unroll, lambda_=0.95)
    next_episode = unroll | {"cut": torch.zeros_like(unroll["cut"])}
    terminated = unroll | {"discounts": unroll["discounts"].masked_fill(unroll["cut"], 0.0)}
    through = unroll | {"cut_values": torch.cat((unroll["values"][1:], unroll["bootstrap_value"][None]))}
    for broken in (next_episode, terminated, through):
        wrong = correct(**broken, lambda_=0.95)
        assert differs(right[0], wrong[0]) and differs(right.pg_advantages, wrong.pg_advantages)
    assert differs(correct(**through)[0], correct(**next_episode)[0])


@both
def test_junk_rows_change_nothing_whatever_they_hold(correct: Corrector) -> None:
    unroll = rows(correct, seed=5)
    junk = ~unroll["valid"]
    assert junk.any()
    filled = {n: torch.where(junk, 1e6, unroll[n]) for n in ("log_rhos", "rewards", "discounts")}
    left, right = correct(**unroll), correct(**unroll | filled)
    assert torch.equal(left[0], right[0]) and torch.equal(left.pg_advantages, right.pg_advantages)
    assert torch.equal(left[0][junk], unroll["values" if correct is vtrace else "q_taken"][junk])
    assert (left.pg_advantages[junk] == 0).all()
    assert differs(left[0], correct(**unroll | filled | {"valid": None})[0])


@pytest.mark.parametrize(
    "correct", [partial(vtrace, clip_rho=None, clip_pg_rho=None), retrace], ids=["vtrace", "retrace"]
)
@pytest.mark.parametrize("log_rho", [60.0, 100.0, math.inf])
def test_unclipped_weights_of_any_size_stay_in_their_episode(correct: Corrector, log_rho: float) -> None:
    """Rows 3 to 5 of one environment are an episode whose weights overflow; targets elsewhere are as without it."""
    unroll = {n: t.float() if t.is_floating_point() else t for n, t in rows(correct, seed=7, ends=0.0).items()}
    unroll["discounts"][2, 0] = unroll["discounts"][5, 0] = 0.0
    wild = unroll | {"log_rhos": unroll["log_rhos"].clone()}
    wild["log_rhos"][3:6, 0] = log_rho
    found, expected = correct(**wild, clip_c=None)[0], correct(**unroll, clip_c=None)[0]
    assert found.isfinite().all()
    found[3:6, 0] = expected[3:6, 0] = 0.0
    assert torch.equal(found, expected)


@both
def test_the_value_of_a_reset_row_reaches_no_other_row(correct: Corrector) -> None:
    unroll = rows(correct, seed=3)
    junk, before = ~unroll["valid"], torch.zeros(9, 4, dtype=torch.bool)
    before[:-1] = junk[1:]
    unroll["discounts"] = torch.where(before & ~junk, 0.0, unroll["discounts"])  # every junk row follows a termination
    unroll["cut"] &= ~before
    filled = {n: torch.where(junk, math.nan, t) for n, t in unroll.items() if n in {"values", "q_taken"}}
    for found, expected in zip(correct(**unroll | filled), correct(**unroll), strict=True):
        assert torch.equal(found[~junk], expected[~junk]) and found[~junk].isfinite().all()


@both
@pytest.mark.parametrize("clip", [None, 0.7])
def test_the_weight_is_apart_from_the_advantage(correct: Corrector, clip: float | None) -> None:
    """Advantages are centred before the weight is applied: both are there, and zero in junk rows."""
    unroll = rows(correct, seed=2)
    valid, rhos = unroll["valid"], unroll["log_rhos"].exp()
    found = correct(**unroll, clip_pg_rho=clip)
    expected = rhos if clip is None else rhos.clamp(max=clip)
    torch.testing.assert_close(found.pg_rhos, expected.masked_fill(~valid, 0.0))
    torch.testing.assert_close(found.pg_advantages, found.advantages * found.pg_rhos)
    assert (found.advantages[~valid] == 0.0).all() and found.advantages[valid].abs().min() > 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA GPU and a CUDA build of torch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@both
def test_cuda_agrees_with_the_cpu(correct: Corrector, dtype: torch.dtype) -> None:
    drawn = an_unroll(80, 16, seed=8, with_q=correct is retrace)
    unroll = {n: t.to(dtype) if t.is_floating_point() else t for n, t in drawn.items()}
    on_device = correct(**{name: tensor.cuda() for name, tensor in unroll.items()}, lambda_=0.95)
    torch.testing.assert_close([x.cpu() for x in on_device], list(correct(**unroll, lambda_=0.95)))
