"""Numbers of mismatch against enumeration, quadrature, Monte-Carlo and loops over paths; alarms that go off."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.monitor.divergence import divergences
from accel.monitor.errors import MismatchError
from accel.monitor.mismatch import (
    STALENESS_KL_ALARM,
    Mismatch,
    effective_horizon,
    factor_mismatch,
    measure_mismatch,
    trace_retention,
)


@dataclass(frozen=True)
class Layout:
    kind: Literal["categorical", "multi_categorical", "gaussian"]
    sizes: tuple[int, ...]

    @property
    def params(self) -> int:
        return 2 * self.sizes[0] if self.kind == "gaussian" else sum(self.sizes)


DISCRETE = [
    Layout("categorical", (1,)),
    Layout("categorical", (2,)),
    Layout("categorical", (7,)),
    Layout("multi_categorical", (3, 2, 4)),
]
GAUSSIANS = [Layout("gaussian", (1,)), Layout("gaussian", (3,))]
LAYOUTS = pytest.mark.parametrize("action", DISCRETE + GAUSSIANS, ids=lambda a: f"{a.kind}{a.sizes}")


def joint(logits: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Probability of every combination of choices, by enumeration; [combinations] for one state."""
    parts = np.split(np.exp(logits.astype(np.float64)), np.cumsum(sizes)[:-1])
    return np.asarray(reduce(np.multiply.outer, [part / part.sum() for part in parts])).ravel()


def close_policies(action: Layout, states: int, seed: int, spread: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    behaviour = 0.5 * rng.normal(size=(states, action.params))
    return behaviour + spread * rng.normal(size=behaviour.shape), behaviour


@pytest.mark.parametrize("action", DISCRETE, ids=lambda a: f"{a.kind}{a.sizes}")
@given(seed=st.integers(0, 2**31), spread=st.sampled_from([0.0, 1e-4, 0.3, 3.0]))
def test_discrete_divergences_equal_the_sums_over_every_action(action: Layout, seed: int, spread: float) -> None:
    target, behaviour = close_policies(action, 5, seed, spread)
    measured = divergences(action, target, behaviour)
    pi = np.stack([joint(row, action.sizes) for row in target])
    mu = np.stack([joint(row, action.sizes) for row in behaviour])
    np.testing.assert_allclose(measured.kl, np.sum(pi * np.log(pi / mu), 1), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(measured.chi2, np.sum((pi - mu) ** 2 / mu, 1), rtol=1e-6, atol=1e-14)
    np.testing.assert_allclose(measured.ess, 1.0 / np.sum(pi**2 / mu, 1), rtol=1e-9)
    np.testing.assert_array_equal(measured.greedy_agrees, pi.argmax(1) == mu.argmax(1))


def log_normal(x: np.ndarray, mean: float, log_std: float) -> np.ndarray:
    return -0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)


@given(
    offset=st.floats(-2, 2), log_std=st.floats(-1, 1), wider=st.floats(-1.5, 0.30), dtype=st.sampled_from(["f4", "f8"])
)
def test_gaussian_divergences_equal_their_integrals(offset: float, log_std: float, wider: float, dtype: str) -> None:
    target = np.array([[offset, log_std + wider]], dtype)
    behaviour = np.array([[0.1, log_std]], dtype)
    sd = np.exp(log_std)
    # π²/μ is itself a gaussian, wider and further off than either: the grid has to reach far beyond both.
    x, step = np.linspace(0.1 - 150 * sd - 40, 0.1 + 150 * sd + 40, 40_001, retstep=True)
    log_pi, log_mu = log_normal(x, *target[0].tolist()), log_normal(x, *behaviour[0].tolist())
    kl = np.sum(np.exp(log_pi) * (log_pi - log_mu)) * step
    second_moment = np.sum(np.exp(2 * log_pi - log_mu)) * step
    measured = divergences(Layout("gaussian", (1,)), target, behaviour)
    loose = 1e-3 if dtype == "f4" else 1e-6
    assert measured.kl[0] == pytest.approx(kl, rel=loose, abs=loose)
    assert measured.log1p_chi2[0] == pytest.approx(np.log(second_moment), rel=loose, abs=loose)


def test_independent_components_add_up() -> None:
    action = Layout("gaussian", (3,))
    target, behaviour = close_policies(action, 6, seed=1, spread=0.2)
    whole = divergences(action, target, behaviour)
    parts = [divergences(Layout("gaussian", (1,)), target[:, [k, k + 3]], behaviour[:, [k, k + 3]]) for k in range(3)]
    np.testing.assert_allclose(whole.kl, sum(part.kl for part in parts))
    np.testing.assert_allclose(1 + whole.chi2, np.prod([1 + part.chi2 for part in parts], 0))
    assert np.all(np.abs(whole.chi2 - sum(part.chi2 for part in parts)) > 1e-6)


def test_a_tail_wider_than_root_two_makes_chi2_infinite_and_counts_nothing() -> None:
    action, limit = Layout("gaussian", (2,)), 0.5 * np.log(2.0)
    wider = np.array([limit - 1e-3, limit, limit + 1e-3, 50.0])
    target = np.zeros((4, 4))
    target[:, 2] = wider
    measured = divergences(action, target, np.zeros((4, 4)))
    assert np.isfinite(measured.chi2[0])
    assert np.isinf(measured.chi2[1:]).all()
    assert (measured.ess[1:] == 0.0).all()
    # The integral agrees: it keeps growing with the range.
    moments = []
    for reach in (20.0, 30.0, 38.0):
        x, step = np.linspace(-reach, reach, 20_001, retstep=True)
        moments.append(np.sum(np.exp(2 * log_normal(x, 0.0, limit + 1e-2) - log_normal(x, 0.0, 0.0))) * step)
    assert moments[2] > 2 * moments[1] > 4 * moments[0]


def test_gaussian_greedy_actions_agree_within_half_a_deviation_in_every_component() -> None:
    behaviour = np.array([[1.0, 2.0, np.log(0.1), np.log(10.0)]])
    target = behaviour + np.array([[0.04, 4.0, 0, 0], [0.06, 0.0, 0, 0], [0.0, -6.0, 0, 0]])
    agrees = divergences(Layout("gaussian", (2,)), target, np.tile(behaviour, (3, 1))).greedy_agrees
    assert agrees.tolist() == [True, False, False]


def test_impossible_actions() -> None:
    """What neither can do says nothing; what only π can do leaves no finite weight; what only μ can do is wasted."""
    inf = np.inf
    target = np.array([[0.0, 0.0, -inf], [0.0, 0.0, 0.0], [0.0, 0.0, -inf]], np.float32)
    behaviour = np.array([[0.0, 0.0, -inf], [0.0, 0.0, -inf], [0.0, 0.0, 0.0]], np.float32)
    measured = divergences(Layout("categorical", (3,)), target, behaviour)
    np.testing.assert_allclose(measured.kl, [0.0, inf, np.log(1.5)], rtol=1e-6)
    np.testing.assert_allclose(measured.ess, [1.0, 0.0, 2 / 3], rtol=1e-6)


@LAYOUTS
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_policy_does_not_differ_from_itself(action: Layout, dtype: type) -> None:
    params = np.random.default_rng(2).normal(0, 2, size=(50, action.params)).astype(dtype)
    measured = divergences(action, params, params)
    np.testing.assert_allclose(measured.kl, 0.0, atol=1e-6)
    np.testing.assert_allclose(measured.ess, 1.0, atol=1e-6)
    assert measured.greedy_agrees.all()


def an_unroll(action: Layout, length: int, batch: int, seed: int, spread: float = 0.2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    behaviour = 0.5 * rng.normal(size=(length, batch, action.params)).astype(np.float32)
    target = behaviour + spread * rng.normal(size=behaviour.shape).astype(np.float32)
    ends, valid = rng.random((2, length, batch)) < np.array([0.1, 0.85])[:, None, None]
    log_rhos = spread * rng.normal(size=(length, batch)).astype(np.float32)
    return {
        "target_params": np.where(valid[..., None], target, np.nan),
        "behaviour_params": np.where(valid[..., None], behaviour, np.inf),
        "log_rhos": np.where(valid, log_rhos, np.nan),
        "valid": valid,
        "ends": ends,
        "horizon": length,
    }


def all_valid(length: int, batch: int) -> dict[str, Any]:
    """Of an unroll in which every row counts and no episode ends."""
    shape = length, batch
    return {"valid": np.ones(shape, np.bool_), "ends": np.zeros(shape, np.bool_), "horizon": length}


@LAYOUTS
def test_means_are_over_valid_states_alone(action: Layout) -> None:
    unroll = an_unroll(action, 12, 5, seed=5)
    rows = unroll["valid"]
    assert not rows.all()
    single = divergences(action, unroll["target_params"][rows], unroll["behaviour_params"][rows])
    measured = measure_mismatch(action, **unroll, clip_rho=1.1)
    taken = unroll["log_rhos"][rows].astype(np.float64)
    assert measured.states == rows.sum()
    assert measured.kl == pytest.approx(single.kl.mean(), rel=1e-5)
    assert measured.ess == pytest.approx(np.mean(1 / (1 + single.chi2)), rel=1e-5)
    assert measured.chi2 == pytest.approx(single.chi2.mean(), rel=1e-5)
    assert measured.mean_weight == pytest.approx(np.exp(taken).mean())
    assert measured.clipped == pytest.approx(np.mean(np.exp(taken) > 1.1))
    assert measured.greedy_agreement == pytest.approx(single.greedy_agrees.mean())
    assert measured.effective_share == pytest.approx(measured.ess * measured.retention)
    if action.params > 1:
        assert measured.ess > 1 / (1 + single.chi2.mean())  # not 1/(1 + mean χ²)
    everything = measure_mismatch(action, **{**unroll, **all_valid(12, 5)})
    assert not everything.kl == pytest.approx(measured.kl)


@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 12),
    horizon=st.integers(1, 15),
    clip_c=st.sampled_from([None, 0.5, 1.0, 2.0]),
)
def test_retention_is_the_mean_product_along_every_path(
    seed: int, length: int, horizon: int, clip_c: float | None
) -> None:
    unroll = an_unroll(Layout("categorical", (2,)), length, 3, seed, spread=0.7)
    n = {name: unroll[name] for name in ("log_rhos", "valid", "ends")}
    products = []
    for b, s in itertools.product(range(3), range(length)):
        if not n["valid"][s, b]:
            continue
        product = 1.0
        for t in range(s, min(length, s + horizon)):
            if not n["valid"][t, b]:
                break
            rho = float(np.exp(np.float64(n["log_rhos"][t, b])))
            product *= rho if clip_c is None else min(clip_c, rho)
            if n["ends"][t, b]:
                break
        products.append(product)
    retained = trace_retention(**n, horizon=horizon, clip_c=clip_c)
    assert retained == pytest.approx(np.mean(products) if products else float("nan"), nan_ok=True)


def test_retention_survives_impossible_actions() -> None:
    log_rhos = np.log(np.array([[0.5], [0.5], [0.5], [1.0]]))
    log_rhos[1] = -np.inf
    assert trace_retention(log_rhos, **all_valid(4, 1)) == pytest.approx(np.mean([0.0, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("discount", "lambda_", "length", "steps"),
    [
        (0.99, 1.0, 20, 20),
        (0.99, 0.95, 80, 17),
        (0.9, 1.0, 80, 10),
        (0.99, 0.0, 80, 1),
        (1.0, 1.0, 5, 5),
        (0.9, 1.0, 1, 1),
    ],
)
def test_effective_horizon(discount: float, lambda_: float, length: int, steps: int) -> None:
    assert effective_horizon(discount, lambda_, length) == steps


@LAYOUTS
def test_staleness_and_compression_are_told_apart(action: Layout) -> None:
    unroll = an_unroll(action, 12, 5, seed=8)
    rng = np.random.default_rng(9)
    compression = np.where(unroll["valid"], 0.1 * rng.normal(size=(12, 5)), np.nan)
    stale_only = factor_mismatch(
        action,
        version_params=unroll["behaviour_params"],
        compression_log_rhos=np.zeros((12, 5), np.float32),
        **unroll,
    )
    assert stale_only.compression.ess == pytest.approx(1.0)
    assert stale_only.compression.retention == pytest.approx(1.0)
    assert stale_only.staleness == stale_only.total
    compressed_only = factor_mismatch(
        action, version_params=unroll["target_params"], compression_log_rhos=unroll["log_rhos"], **unroll
    )
    assert compressed_only.staleness.kl == pytest.approx(0.0, abs=1e-6)
    assert compressed_only.compression == compressed_only.total
    version = 0.5 * (unroll["target_params"] + np.where(unroll["valid"][..., None], unroll["behaviour_params"], 0))
    both = factor_mismatch(action, version_params=version, compression_log_rhos=compression, **unroll)
    if action.params > 1:
        assert max(both.staleness.kl, both.compression.kl) < both.total.kl


def a_mismatch(**changes: float) -> Mismatch:
    calm: dict[str, Any] = {
        "states": 10, "kl": 0.01, "chi2": 0.02, "chi2_infinite": 0.0, "ess": 0.98, "greedy_agreement": 1.0,
        "mean_weight": 1.0, "clipped": 0.5, "retention": 0.9,
    }  # fmt: skip
    return Mismatch(**calm | changes)


@pytest.mark.parametrize(
    ("changes", "alarms"),
    [
        ({}, []),
        ({"ess": 0.3, "kl": 0.1, "mean_weight": 2.0}, []),
        ({"ess": 0.29}, ["ess is 0.29, needs at least 0.3"]),
        ({"kl": 0.103}, ["kl is 0.103, needs at most 0.1"]),
        ({"mean_weight": 0.49}, ["mean_weight is 0.49, needs 0.5 to 2"]),
        ({"mean_weight": float("inf")}, ["mean_weight is inf, needs 0.5 to 2"]),
        ({"kl": float("nan")}, ["kl is nan, needs at most 0.1"]),
        ({"chi2": float("inf"), "clipped": 1.0, "retention": 0.0}, []),
    ],
)
def test_alarm_levels(changes: dict[str, float], alarms: list[str]) -> None:
    assert [*a_mismatch(**changes).alarms().values()] == alarms


def test_staleness_has_a_level_of_its_own() -> None:
    assert a_mismatch(kl=0.4).alarms(STALENESS_KL_ALARM) == {}
    assert a_mismatch(kl=0.6).alarms(STALENESS_KL_ALARM) == {"kl": "kl is 0.6, needs at most 0.5"}


def test_rounding_is_not_counted_as_clipping() -> None:
    action, rng = Layout("categorical", (4,)), np.random.default_rng(0)
    params = np.log(rng.dirichlet(np.ones(4), (40, 10)))
    rounding = rng.normal(0.0, 2e-6, (40, 10))
    assert (rounding > 0).mean() > 0.4
    assert measure_mismatch(action, params, params, rounding, **all_valid(40, 10)).clipped == 0.0
    assert measure_mismatch(action, params, params, rounding + 1e-3, **all_valid(40, 10)).clipped == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_rhos": np.zeros(12)}, r"log_rhos has shape \(12,\), needs \[T, B\]"),
        ({"target_params": np.zeros((12, 5))}, r"target_params has shape \(12, 5\), needs \(12, 5, 'P'\)"),
        ({"target_params": np.zeros((12, 5, 3))}, r"target_params has shape \(\d+, 3\), needs \(\d+, 4\), \[N, P\]"),
        ({"behaviour_params": np.zeros((5, 12, 4))}, r"behaviour_params has shape \(5, 12, 4\), needs \(12, 5, 'P'\)"),
        ({"valid": np.ones((12, 1), bool)}, r"valid is bool \(12, 1\), needs bool \(12, 5\)"),
        ({"ends": np.ones((12, 5))}, r"ends is float64 \(12, 5\), needs bool \(12, 5\)"),
        ({"valid": np.zeros((12, 5), bool)}, "no row is valid"),
        ({"horizon": 0}, "horizon is 0"),
        ({"clip_c": 0.0}, r"clip_c is 0\.0"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    action = Layout("categorical", (4,))
    with pytest.raises(MismatchError, match=message):
        measure_mismatch(action, **an_unroll(action, 12, 5, seed=11) | changes)


def test_an_unknown_kind_lists_the_choices() -> None:
    with pytest.raises(MismatchError, match="choose one of: categorical, multi_categorical, gaussian"):
        divergences(Layout("beta", (2,)), np.zeros((1, 2)), np.zeros((1, 2)))  # type: ignore[arg-type]


def test_kl_and_chi2_have_a_direction() -> None:
    """The usual slip, μ in π's place, gives other numbers."""
    target, behaviour = np.log([[0.7, 0.2, 0.1]]), np.log([[0.4, 0.3, 0.3]])
    action = Layout("categorical", (3,))
    right, reversed_ = divergences(action, target, behaviour), divergences(action, behaviour, target)
    assert right.kl[0] == pytest.approx(0.7 * np.log(7 / 4) + 0.2 * np.log(2 / 3) + 0.1 * np.log(1 / 3))
    assert right.chi2[0] == pytest.approx(0.49 / 0.4 + 0.04 / 0.3 + 0.01 / 0.3 - 1)
    assert abs(right.kl[0] - reversed_.kl[0]) > 0.01
    assert abs(right.chi2[0] - reversed_.chi2[0]) > 0.1


def test_a_wrong_record_of_the_acting_policy_raises_the_weights_alarm() -> None:
    """Log-probabilities of the uncompressed policy, taken for the actor's: the weights' mean leaves one."""
    action, rng = Layout("categorical", (4,)), np.random.default_rng(10)
    recorded, acted = np.log([0.97, 0.01, 0.01, 0.01]), np.log([0.25] * 4)
    taken = rng.choice(4, (40, 10), p=np.exp(acted))
    params = {"target_params": np.tile(acted, (40, 10, 1)), "behaviour_params": np.tile(recorded, (40, 10, 1))}
    wrong = measure_mismatch(action, **params, log_rhos=(acted - recorded)[taken], **all_valid(40, 10))
    right = measure_mismatch(
        action,
        **params | {"behaviour_params": params["target_params"]},
        log_rhos=np.zeros((40, 10)),
        **all_valid(40, 10),
    )
    assert "mean_weight" in wrong.alarms() and not right.alarms()
