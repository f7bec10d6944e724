"""Retrace against the paper's sum, Monte-Carlo returns, and the values of a policy that did not act."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.correctors import retrace
from tests.correctors.unrolls import Unroll, an_unroll, differs, minimum, on_policy


def oracle(u: Unroll, clip_c: float | None, clip_pg_rho: float | None, lambda_: float) -> Any:
    """Munos et al. 2016, equation 3: Q + Σ_{t≥s} γ^{t−s} (Π_{s<i≤t} c_i) (r_t + γ E_π Q(x_{t+1}, ·) − Q(x_t, a_t))."""
    n = {name: tensor.numpy() for name, tensor in u.items()}
    length, batch = n["values"].shape
    targets, advantages = n["q_taken"].copy(), np.zeros((length, batch))
    for b in range(batch):
        states = [*n["values"][:, b], n["bootstrap_value"][b]]
        for s in np.flatnonzero(n["valid"][:, b]):
            product = 1.0
            for t in range(s, length):
                if not n["valid"][t, b]:
                    break
                if t > s:
                    product *= lambda_ * minimum(clip_c, np.exp(n["log_rhos"][t, b]))
                after = n["cut_values"][t, b] if n["cut"][t, b] else states[t + 1]
                difference = n["rewards"][t, b] + n["discounts"][t, b] * after - n["q_taken"][t, b]
                targets[s, b] += product * difference
                if n["cut"][t, b]:
                    break
                product *= n["discounts"][t, b]
            weight = minimum(clip_pg_rho, np.exp(n["log_rhos"][s, b]))
            advantages[s, b] = weight * (targets[s, b] - states[s])
    return torch.from_numpy(targets), torch.from_numpy(advantages)


@given(seed=st.integers(0, 2**31), length=st.integers(1, 15))
def test_on_policy_with_a_deterministic_policy_it_is_the_monte_carlo_return(seed: int, length: int) -> None:
    """There E_π Q(s, ·) = Q(s, a), every difference telescopes, and the target is the return summed forwards."""
    unroll, wanted = on_policy(seed, length)
    returns = retrace(**unroll, q_taken=unroll["values"])
    torch.testing.assert_close(returns.q_targets, wanted)
    torch.testing.assert_close(returns.pg_advantages, wanted - unroll["values"])


def test_finds_the_target_policys_values_from_another_policys_steps() -> None:
    """Iterated on a random three-state chain, mean Retrace targets converge to Q^π although μ chose every action."""
    rng = np.random.default_rng(6)
    transition, reward = rng.dirichlet(np.ones(3), size=(3, 2)), rng.normal(size=(3, 2))
    target, behaviour = rng.dirichlet(np.ones(2), size=3), rng.dirichlet(np.full(2, 5.0), size=3)
    discount, length, batch = 0.8, 8, 60_000
    flat = np.einsum("sax,xb->saxb", transition, target).reshape(6, 6)
    exact = np.linalg.solve(np.eye(6) - discount * flat, reward.reshape(6)).reshape(3, 2)
    q = np.zeros((3, 2))
    states, actions = np.empty((length + 1, batch), int), np.empty((length, batch), int)
    for _ in range(8):
        states[0] = rng.integers(0, 3, batch)
        for t in range(length):
            actions[t] = rng.random(batch) < behaviour[states[t], 1]
            ladder = transition[states[t], actions[t]].cumsum(-1)
            states[t + 1] = np.minimum((rng.random((batch, 1)) > ladder).sum(-1), 2)
        now, value = states[:-1], (target * q).sum(-1)
        rows = (np.log(target / behaviour)[now, actions], reward[now, actions], np.full(now.shape, discount))
        targets = retrace(*(torch.from_numpy(x) for x in (*rows, q[now, actions], value[now], value[states[-1]])))
        first = targets.q_targets[0].numpy()
        q = np.array([[first[(states[0] == s) & (actions[0] == a)].mean() for a in range(2)] for s in range(3)])
    np.testing.assert_allclose(q, exact, atol=0.03)
    uncorrected = np.einsum("sax,xb->saxb", transition, behaviour).reshape(6, 6)
    biased = np.linalg.solve(np.eye(6) - discount * uncorrected, reward.reshape(6)).reshape(3, 2)
    assert np.abs(biased - exact).max() > 0.1


def test_the_first_actions_weight_stays_out_of_the_target() -> None:
    """Off by one, with c_t in place of c_{t+1}, the taken action would weigh its own return."""
    unroll = an_unroll(9, 4, seed=3, with_q=True)
    right = retrace(**unroll)
    early = torch.cat((unroll["log_rhos"][:1], unroll["log_rhos"][:-1]))
    assert differs(right.q_targets, retrace(**unroll | {"log_rhos": early}).q_targets)
    changed = unroll["log_rhos"].clone()
    changed[0] += 3.0
    other = retrace(**unroll | {"log_rhos": changed}, clip_pg_rho=None)
    torch.testing.assert_close(other.q_targets, right.q_targets)
    assert differs(other.pg_advantages, right.pg_advantages)


def test_bootstraps_from_the_expected_not_the_taken_value() -> None:
    """Q(s_{t+1}, a_{t+1}) in place of E_π Q(s_{t+1}, ·) would make it SARSA(λ), biased off-policy."""
    unroll = an_unroll(9, 4, seed=4, with_q=True)
    assert differs(retrace(**unroll).q_targets, retrace(**unroll | {"values": unroll["q_taken"]}).q_targets)
