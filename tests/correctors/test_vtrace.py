"""V-trace and its identity against the paper's sum, Monte-Carlo returns and mixtures of n-step returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.correctors import nstep, vtrace
from tests.correctors.unrolls import Unroll, an_unroll, differs, minimum, on_policy

LAMBDAS = [0.0, 0.5, 0.95, 1.0]


def oracle(u: Unroll, clip_rho: float | None, clip_c: float | None, clip_pg_rho: float | None, lambda_: float) -> Any:
    """Espeholt et al. 2018, equation 1 and section 4.2, one entry and one term of the sum at a time."""
    n = {name: tensor.numpy() for name, tensor in u.items()}
    length, batch = n["values"].shape
    vs, advantages = np.empty((length, batch)), np.zeros((length, batch))
    for b in range(batch):
        states = [*n["values"][:, b], n["bootstrap_value"][b]]
        for s in range(length):
            vs[s, b], product = states[s], 1.0
            for t in range(s, length):
                if not n["valid"][t, b]:
                    break
                after = n["cut_values"][t, b] if n["cut"][t, b] else states[t + 1]
                rho = np.exp(n["log_rhos"][t, b])
                difference = n["rewards"][t, b] + n["discounts"][t, b] * after - states[t]
                vs[s, b] += product * minimum(clip_rho, rho) * difference
                if n["cut"][t, b]:
                    break
                product *= n["discounts"][t, b] * lambda_ * minimum(clip_c, rho)
        targets = [*vs[:, b], n["bootstrap_value"][b]]
        for s in np.flatnonzero(n["valid"][:, b]):
            after = n["cut_values"][s, b] if n["cut"][s, b] else targets[s + 1]
            weight = minimum(clip_pg_rho, np.exp(n["log_rhos"][s, b]))
            advantages[s, b] = weight * (n["rewards"][s, b] + n["discounts"][s, b] * after - states[s])
    return torch.from_numpy(vs), torch.from_numpy(advantages)


@given(seed=st.integers(0, 2**31), length=st.integers(1, 15))
def test_on_policy_it_is_the_monte_carlo_return(seed: int, length: int) -> None:
    """Weights are one, so no clip at or above one matters."""
    unroll, wanted = on_policy(seed, length)
    clipped = vtrace(**unroll, clip_rho=1.0, clip_c=1.0, clip_pg_rho=2.0)
    for returns in (clipped, vtrace(**unroll, clip_rho=None, clip_c=None, clip_pg_rho=None), nstep(**unroll)):
        torch.testing.assert_close(returns.vs, wanted)
        torch.testing.assert_close(returns.pg_advantages, wanted - unroll["values"])


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_nstep_is_the_mixture_of_n_step_returns_and_ignores_the_weights(lambda_: float) -> None:
    """G^λ_s = (1 − λ) Σ_{n<N} λ^{n−1} G^{(n)}_s + λ^{N−1} G^{(N)}_s over the N steps that are left."""
    unroll = an_unroll(7, 3, seed=6, ends=0.0)
    rewards, discounts = unroll["rewards"].numpy(), unroll["discounts"].numpy()
    states = np.concatenate((unroll["values"].numpy(), unroll["bootstrap_value"].numpy()[None]))
    expected = np.zeros((7, 3))
    for s in range(7):
        partial, factor, left = np.zeros(3), np.ones(3), 7 - s
        for n in range(1, left + 1):
            partial = partial + factor * rewards[s + n - 1]
            factor = factor * discounts[s + n - 1]
            share = lambda_ ** (n - 1) * (1.0 if n == left else 1.0 - lambda_)
            expected[s] += share * (partial + factor * states[s + n])
    returns = nstep(**unroll, lambda_=lambda_)
    torch.testing.assert_close(returns.vs, torch.from_numpy(expected))
    assert differs(returns.vs, vtrace(**unroll, lambda_=lambda_).vs)


def test_infinite_log_weights_are_clipped() -> None:
    unroll = an_unroll(5, 2, seed=7, ends=0.0)
    unroll["log_rhos"][1, 0], unroll["log_rhos"][2, 1] = float("inf"), -float("inf")
    bounded = unroll | {"log_rhos": unroll["log_rhos"].clamp(-800.0, 700.0)}
    torch.testing.assert_close(vtrace(**unroll), vtrace(**bounded))


def test_the_policy_gradient_bootstraps_from_the_corrected_value_at_any_lambda() -> None:
    unroll = an_unroll(9, 4, seed=4, ends=0.0)
    vs, advantages = vtrace(**unroll, lambda_=0.5)[:2]
    after_values = torch.cat((unroll["values"][1:], unroll["bootstrap_value"][None]))
    after_vs = torch.cat((vs[1:], unroll["bootstrap_value"][None]))
    rho = unroll["log_rhos"].exp().clamp(max=1.0)

    def advantage(after: torch.Tensor) -> torch.Tensor:
        return rho * (unroll["rewards"] + unroll["discounts"] * after - unroll["values"])

    torch.testing.assert_close(advantages, advantage(after_vs))
    assert differs(advantages, advantage(after_values))
    assert differs(advantages, advantage(0.5 * after_vs + 0.5 * after_values))
