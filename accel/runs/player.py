"""A policy that plays a fixed number of environments: a session's inputs and outputs, and its recurrent state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from accel.acting.policy import InPlaceSession
from accel.envs.spaces import ALLOWED_ABOVE, ActionSpec, EnvSpec

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

# of the noise beside the policy's own; logits so far apart that sampling takes the greatest; a deviation of nothing
_RANDOM, _CERTAIN, _LEAST_LOG_STD = 7, 1e5, -20.0


class Player:
    """Steps a session, as actors do.

    Args: session: its inputs are observations, then recurrent states; its outputs parameters, then the next states.
    """

    def __init__(self, session: InPlaceSession, spec: EnvSpec) -> None:
        self._session = session
        self._spec = spec
        names = spec.split(np.zeros(spec.observation_shape, spec.observation_dtype))
        states = [array for name, array in session.inputs.items() if name not in names]
        self._observed = {name: session.inputs[name] for name in names}
        self._params, *following = session.outputs.values()
        self._states = list(zip(states, following, strict=True))
        self._before = [np.zeros_like(state) for state in states]

    def params(self, observations: Array, first: Bools | None) -> Floats:
        """Distribution parameters [B, P] of observations [B, *obs], valid until the next step.

        Args: first: [B], where an episode begins and the state is zeroed; None for nowhere.
        """
        for name, part in self._spec.split(observations).items():
            self._observed[name][...] = part
        for (state, _), before in zip(self._states, self._before, strict=True):
            if first is not None:
                state[first] = 0
            before[...] = state
        self._session.run()
        for state, following in self._states:
            state[...] = following
        return self._params  # type: ignore[return-value]

    def inputs(self) -> dict[str, Array]:
        """The policy's inputs by name, [B, *shape], as the latest step read them."""
        return dict(zip(self._session.inputs, (*self._observed.values(), *self._before), strict=True))


class RandomActions:
    """Puts a share of uniformly random actions among those of a policy; without bounds they are in [-1, 1]."""

    def __init__(self, action: ActionSpec, share: float, seed: Sequence[int]) -> None:
        self._action, self._share = action, share
        self._rng = np.random.default_rng((*seed, _RANDOM))
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._low, self._high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)

    def mixed(self, params: Floats) -> Floats:
        """Outputs [B, P] of which some rows have a random greatest logit, or a random mean without deviation."""
        if not self._share:
            return params
        action, count = self._action, sum(self._action.sizes)
        uniform = self._rng.random((len(params), count), np.float32)
        made = params.copy()
        if action.kind != "gaussian":
            allowed = params[:, :count] > ALLOWED_ABOVE
            np.copyto(made[:, :count], _CERTAIN * uniform, where=allowed)
        else:
            made[:, count:] = _LEAST_LOG_STD
            scaled = np.arctanh(0.999 * (2.0 * uniform - 1.0)) if action.squash else uniform * (self._high - self._low)
            made[:, :count] = scaled if action.squash else scaled + self._low
        return np.where(self._rng.random((len(params), 1)) < self._share, made, params)
