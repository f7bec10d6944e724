"""Divergences between action distributions, in closed form from their recorded parameters.

With π the target and μ the behaviour policy, in every state:

    KL(π‖μ) = E_π[log π/μ],   χ²(π‖μ) = E_μ[(π/μ − 1)²] = E_μ[(π/μ)²] − 1

    categorical         Σ_a π_a log(π_a/μ_a);               Σ_a μ_a (π_a/μ_a − 1)²
    multi_categorical   the sum of its parts' KL;           1 + χ² = Π_parts (1 + χ²_part)
    gaussian, diagonal  with d = log σ_π − log σ_μ and z = (m_π − m_μ)/σ_μ, summed over the components:
        KL = −d + ½(e^{2d} + z² − 1)
        log(1 + χ²) = −d − ½ log(2 − e^{2d}) + z²/(2 − e^{2d}),  infinite where e^{2d} ≥ 2, that is 2σ_μ² ≤ σ_π²

A tail of π that is more than √2 wider than μ's makes the weights' variance infinite, whatever a sample of them shows.
Squashing or clipping an action afterwards is the same map for both, so these divergences are upper bounds.

Source: Cover and Thomas 2006, section 2.3 and theorem 8.6.5, for KL; Gil, Alajaji and Linder 2013, table 2, Rényi
divergence of order 2 = log(1 + χ²), for the gaussian. Deviations: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from accel.monitor.errors import MismatchError

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]

GREEDY_TOLERANCE = 0.5
"""Gaussian greedy actions (the means) agree within this many of μ's standard deviations, in every component."""


class ActionLayout(Protocol):
    """What is read of an action space: its distribution's name and sizes, as ``ActionSpec`` has them."""

    @property
    def kind(self) -> Literal["categorical", "multi_categorical", "gaussian"]:
        """Name of the distribution."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """(n,) choices; or the choices of every part; or (k,) components of a gaussian."""


@dataclass(frozen=True)
class Divergences:
    """Divergences of N states, computed in the parameters' own precision, float32 at least.

    Attributes:
        kl: [N] KL(π‖μ), nats, ≥ 0, maybe infinite.
        log1p_chi2: [N] log(1 + χ²(π‖μ)), ≥ 0, maybe infinite; the Rényi divergence of order 2.
        greedy_agrees: [N] bool; both policies' most likely action is the same (gaussian: see ``GREEDY_TOLERANCE``).
    """

    kl: Floats
    log1p_chi2: Floats
    greedy_agrees: Bools

    @property
    def chi2(self) -> Floats:
        """[N] χ²(π‖μ), ≥ 0, maybe infinite."""
        with np.errstate(over="ignore"):
            return np.expm1(self.log1p_chi2)

    @property
    def ess(self) -> Floats:
        """[N] effective sample size per sample, 1/(1 + χ²), in [0, 1]; 0 where χ² is infinite."""
        return np.exp(-self.log1p_chi2)


def divergences(action: ActionLayout, target_params: Floats, behaviour_params: Floats) -> Divergences:
    """Divergences of π from μ in N states.

    Args:
        action: the action space that both policies share.
        target_params: [N, P] parameters of π: logits, concatenated logits, or means and then log standard deviations.
        behaviour_params: [N, P] parameters of μ. Logits of −inf mean impossible actions.
    Raises:
        MismatchError: a shape is wrong, or the action's kind is unknown.
    """
    expected = 2 * action.sizes[0] if action.kind == "gaussian" else sum(action.sizes)
    for name, params in (("target_params", target_params), ("behaviour_params", behaviour_params)):
        if params.ndim != 2 or params.shape[1] != expected or len(params) != len(target_params):
            needs = f"({len(target_params)}, {expected}), [N, P] of {action.kind} {action.sizes}"
            raise MismatchError(f"{name} has shape {params.shape}, needs {needs}")
    if action.kind not in _MEASURES:
        raise MismatchError(f"unknown action kind {action.kind!r}, choose one of: {', '.join(_MEASURES)}")
    dtype = np.result_type(target_params, behaviour_params, np.float32)
    # Parameters first: sums over a handful of choices then run along whole rows of states.
    target, behaviour = (np.ascontiguousarray(params.T, dtype) for params in (target_params, behaviour_params))
    # Impossible actions and broken policies give infinities and NaN, which are valid results here.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _MEASURES[action.kind](target, behaviour, action.sizes)


def _multi_categorical(target: Floats, behaviour: Floats, sizes: Sequence[int]) -> Divergences:
    kl, log1p_chi2 = np.zeros((2, target.shape[1]), target.dtype)
    agrees = np.ones(target.shape[1], np.bool_)
    start = 0
    for size in sizes:
        part = _categorical(target[start : start + size], behaviour[start : start + size])
        kl += part.kl
        log1p_chi2 += part.log1p_chi2
        agrees &= part.greedy_agrees
        start += size
    return Divergences(kl, log1p_chi2, agrees)


def _categorical(target: Floats, behaviour: Floats) -> Divergences:
    """One part: both arguments [n, N]."""
    log_pi, log_mu = _log_softmax(target), _log_softmax(behaviour)
    pi, mu = np.exp(log_pi), np.exp(log_mu)
    log_ratio = np.where((pi == 0.0) & (mu == 0.0), 0.0, log_pi - log_mu)
    kl_terms = np.where(pi == 0.0, 0.0, pi * log_ratio)
    # μ (π/μ − 1)², so written that it neither loses its digits near π = μ nor overflows far from it.
    chi2_terms = (pi - mu) * np.expm1(log_ratio)
    kl, chi2 = np.maximum(kl_terms.sum(0), 0.0), np.maximum(chi2_terms.sum(0), 0.0)
    return Divergences(kl, np.log1p(chi2), target.argmax(0) == behaviour.argmax(0))


def _gaussian(target: Floats, behaviour: Floats, sizes: Sequence[int]) -> Divergences:
    size = sizes[0]
    wider = target[size:] - behaviour[size:]
    variance_ratio = np.exp(2.0 * wider)
    offset = (target[:size] - behaviour[:size]) * np.exp(-behaviour[size:])
    kl_terms = 0.5 * (variance_ratio + np.square(offset) - 1.0) - wider
    infinite = variance_ratio >= 2.0
    room = np.where(infinite, 1.0, 2.0 - variance_ratio)
    order_two = np.square(offset) / room - 0.5 * np.log(room) - wider
    order_two[infinite] = np.inf
    return Divergences(
        np.maximum(kl_terms.sum(0), 0.0),
        np.maximum(order_two.sum(0), 0.0),
        np.asarray((np.abs(offset) <= GREEDY_TOLERANCE).all(0)),
    )


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(0)
    shifted -= np.log(np.exp(shifted).sum(0))
    return np.asarray(shifted)


_MEASURES: dict[str, Callable[[Floats, Floats, Sequence[int]], Divergences]] = {
    "categorical": _multi_categorical,
    "multi_categorical": _multi_categorical,
    "gaussian": _gaussian,
}
