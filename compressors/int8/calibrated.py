"""Weights of a finished policy rounded to the calibration rows: what ``int8`` takes time for outside training.

A publication rounds each weight to the nearest code. Here layer follows layer, and each is fitted to what the layers
before it really give. With X̂ [N, k] the numbers that its codes stand for, Y [N, n] the fp32 policy's pre-activations,
both less their means, G = X̂ᵀX̂ / N and d the mean of G's diagonal:

    W* = (X̂ᵀY / N + λ d W) (G + λ d)⁻¹          ridge towards the layer's own weights W
    codes by GPTQ: one input after the other, by G's diagonal; what rounding input j costs is made up for by those left,
        through the Cholesky factor of (G + λ d)⁻¹;  then passes of coordinate descent on the codes
    b  = mean(Y) − Ŵ mean(X̂)

Source: Frantar, Ashkboos, Hoefler and Alistarh 2023, GPTQ, arXiv:2210.17323, algorithm 1. Deviations: targets are the
outputs of the full policy, not of the layer on quantised inputs; coordinate descent afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accel.compressors.quantisation.affine import IntegerType

Floats = npt.NDArray[np.float64]

RIDGE, DAMPING = 1e-2, 1e-4
DESCENT_PASSES = 3


def fitted_weight(weight: Floats, gram: Floats, covariance: Floats) -> Floats:
    """W* [n, k] of a layer whose weight is [n, k], for G [k, k] and YᵀX̂ / N [n, k]."""
    damped, ridge = _damped(gram, RIDGE)
    return np.asarray(np.linalg.solve(damped, (covariance + ridge * weight).T).T)


def rounded_codes(weight: Floats, scales: Floats, gram: Floats, codes: IntegerType) -> npt.NDArray[np.int8]:
    """Codes [n, k] of a weight at scales [n], for G [k, k]."""
    gram, _ = _damped(gram, DAMPING)
    order = np.argsort(-np.diag(gram), kind="stable")
    # row i of the upper factor: how the inputs after i make up for i
    upper = np.linalg.cholesky(np.linalg.inv(gram[np.ix_(order, order)])).T
    left, found = weight[:, order].copy(), np.empty(weight.shape)
    for j in range(weight.shape[1]):
        found[:, j] = np.clip(np.rint(left[:, j] / scales), codes.minimum, codes.maximum)
        error = (left[:, j] - found[:, j] * scales) / upper[j, j]
        left[:, j + 1 :] -= np.outer(error, upper[j, j + 1 :])
    back = np.empty_like(found)
    back[:, order] = found
    return _descended(back, weight, scales, gram, order, codes).astype(np.int8)


def _descended(
    found: Floats, weight: Floats, steps: Floats, gram: Floats, order: npt.NDArray[np.intp], codes: IntegerType
) -> Floats:
    gradient = (found * steps[:, None] - weight) @ gram
    for _ in range(DESCENT_PASSES):
        for j in order:
            wanted = found[:, j] - gradient[:, j] / (gram[j, j] * steps)
            change = np.clip(np.rint(wanted), codes.minimum, codes.maximum) - found[:, j]
            if change.any():
                found[:, j] += change
                gradient += np.outer(change * steps, gram[j])
    return found


def _damped(gram: Floats, damping: float) -> tuple[Floats, float]:
    """G + λ d, and λ d."""
    ridge = damping * max(float(np.diag(gram).mean()), 1e-12)
    return gram + ridge * np.eye(len(gram)), ridge
