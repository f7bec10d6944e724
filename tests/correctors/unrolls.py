"""Unrolls in which every mistake shows, and what both oracles need."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

CLIPS = [None, 0.5, 1.0, 2.0]
Unroll = dict[str, Any]


def an_unroll(
    length: int, batch: int, seed: int, *, spread: float = 1.0, ends: float = 0.2, with_q: bool = False
) -> Unroll:
    """Random rows in float64, with terminations, truncations and junk rows anywhere, each followed by anything."""
    rng = np.random.default_rng(seed)
    shape = (length, batch)
    terminated, cut, valid = rng.random(shape) < ends, rng.random(shape) < ends, rng.random(shape) >= ends
    unroll = {
        "log_rhos": np.where(valid, spread * rng.normal(size=shape), np.nan),
        "rewards": np.where(valid, rng.normal(size=shape), np.nan),
        "discounts": np.where(valid, np.where(terminated, 0.0, rng.uniform(0.8, 1.0, shape)), np.nan),
        "values": rng.normal(size=shape),
        "bootstrap_value": rng.normal(size=batch),
        "valid": valid,
        "cut": cut,
        "cut_values": np.where(cut, rng.normal(size=shape), np.nan),
    }
    if with_q:
        unroll["q_taken"] = rng.normal(size=shape)
    return {name: torch.from_numpy(value) for name, value in unroll.items()}


def on_policy(seed: int, length: int) -> tuple[Unroll, Tensor]:
    """One environment's steps with weights of one, and their returns, summed forwards along each episode."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, length))
    ends = rng.random(length) < 0.3
    truncated = ends & (rng.random(length) < 0.5)
    cut_values, bootstrap, discount = rng.normal(size=length), rng.normal(), 0.9
    expected = np.empty(length)
    for s in range(length):
        total, factor = 0.0, 1.0
        for t in range(s, length):
            total, factor = total + factor * rewards[t], factor * discount
            if ends[t]:
                total += factor * cut_values[t] * truncated[t]
                break
        else:
            total += factor * bootstrap
        expected[s] = total
    column = {
        "log_rhos": np.zeros(length),
        "rewards": rewards,
        "discounts": np.where(ends & ~truncated, 0.0, discount),
        "values": values,
        "cut": truncated,
        "cut_values": cut_values,
    }
    unroll = {name: torch.from_numpy(x)[:, None] for name, x in column.items()}
    return unroll | {"bootstrap_value": torch.tensor([bootstrap], dtype=torch.float64)}, torch.from_numpy(expected)[
        :, None
    ]


def minimum(clip: float | None, rho: float) -> float:
    """ρ or c of a row."""
    return rho if clip is None else min(clip, rho)


def differs(left: Tensor, right: Tensor) -> bool:
    """By more than rounding."""
    return not torch.allclose(left, right, rtol=1e-3, atol=1e-3)
