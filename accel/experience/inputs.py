"""The policy's inputs in an unroll, as plain arrays by name: for ranges, checks and students. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from accel.experience.unroll import Unroll, UnrollLayout, restack_frames

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]


def policy_inputs(
    unroll: Unroll,
    layout: UnrollLayout,
    choose: Callable[[int], Indices] = np.arange,
    replay: Callable[[Mapping[str, Array], Array, tuple[Array, ...]], tuple[Array, ...]] | None = None,
) -> dict[str, Array]:
    """Some inputs of an unroll, [N, *shape] each, as copies.

    Without a recurrent core these are rows of any time and environment; with one, those of row 0, whose state is known,
    or with ``replay`` of any time too.

    Args:
        unroll: what an actor sent. layout: of it.
        choose: which of so many rows; all of them if not given.
        replay: of a recurrent core: from observations by name [T, B, *shape], ``first`` [T, B] and the states before
            row 0, each [B, *shape], to the states that every row's step gets, each [T, B, *shape].
    """
    length, envs = layout.unroll_length, layout.envs
    if not layout.state_shapes:
        chosen = choose(length * envs)
        return layout.spec.split(_observations(unroll, layout, chosen // envs, chosen % envs))
    first = unroll["first"].view(np.bool_)[:length]
    if replay is None:
        columns = choose(envs)
        keep = np.logical_not(first[0])[columns]
        inputs = layout.spec.split(_observations(unroll, layout, np.zeros_like(columns), columns))
        for i, state in enumerate(unroll.states):
            inputs[f"state_{i}"] = state[columns] * keep.reshape(-1, *[1] * (state.ndim - 1))
        return inputs
    rows = np.arange(length * envs)
    inputs = layout.spec.split(_observations(unroll, layout, rows // envs, rows % envs))
    by_time = {name: values.reshape(length, envs, *values.shape[1:]) for name, values in inputs.items()}
    for i, state in enumerate(replay(by_time, first, unroll.states)):
        inputs[f"state_{i}"] = state.reshape(length * envs, *state.shape[2:])
    chosen = choose(length * envs)
    return {name: values[chosen] for name, values in inputs.items()}


def _observations(unroll: Unroll, layout: UnrollLayout, rows: Indices, columns: Indices) -> Array:
    if "frames" not in unroll:
        return unroll["observations"][rows, columns]
    spec = layout.spec
    first = unroll["first"].view(np.bool_)
    needed, places = np.unique(columns, return_inverse=True)
    stacked = restack_frames(unroll["frames"][:, needed], first[:, needed], spec.frame_stack, spec.frame_fill)
    return stacked[rows, places]
