"""The policy's inputs in an unroll, as plain arrays by name: for ranges, checks and students. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from accel.experience.unroll import Unroll, UnrollLayout, restack_frames

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]


def policy_inputs(
    unroll: Unroll, layout: UnrollLayout, choose: Callable[[int], Indices] = np.arange
) -> dict[str, Array]:
    """Some inputs of an unroll, [N, *shape] each, as copies.

    Without a recurrent core these are rows of any time and environment; with one, those of row 0, whose state is known.

    Args:
        unroll: what an actor sent. layout: of it.
        choose: which of so many rows; all of them if not given.
    """
    envs = layout.envs
    if layout.state_shapes:
        columns = choose(envs)
        keep = np.logical_not(unroll["first"][0])[columns]
        inputs = layout.spec.split(_observations(unroll, layout, np.zeros_like(columns), columns))
        for i, state in enumerate(unroll.states):
            chosen = state[columns]
            inputs[f"state_{i}"] = chosen * keep.reshape(-1, *[1] * (chosen.ndim - 1))
        return inputs
    chosen_rows = choose(layout.unroll_length * envs)
    return layout.spec.split(_observations(unroll, layout, chosen_rows // envs, chosen_rows % envs))


def _observations(unroll: Unroll, layout: UnrollLayout, rows: Indices, columns: Indices) -> Array:
    if "frames" not in unroll:
        return unroll["observations"][rows, columns]
    spec = layout.spec
    first = unroll["first"].view(np.bool_)
    needed, places = np.unique(columns, return_inverse=True)
    stacked = restack_frames(unroll["frames"][:, needed], first[:, needed], spec.frame_stack, spec.frame_fill)
    return stacked[rows, places]
