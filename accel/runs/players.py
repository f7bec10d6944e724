"""A policy with its recurrent state, ready to answer step by step: on a session as actors have it, or in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from compressors.artifact import CompressedPolicy
from compressors.runtime import PolicySession

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class ActingSession(Protocol):
    """A model loaded for a fixed batch, such as ``compressors.PolicySession``: write, run, read.

    Attributes:
        inputs: name to array [B, *shape]; observations first, then recurrent state.
        outputs: name to array [B, *shape]; distribution parameters first, then the next state.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """Read ``inputs``, fill ``outputs``."""
        ...


Policy = CompressedPolicy | torch.nn.Module | Callable[[int], ActingSession]


class Player(Protocol):
    """A policy for a fixed number of environments, with its recurrent state."""

    def params(self, observations: Array, first: Bools | None) -> Floats:
        """Distribution parameters [B, P] of one step, valid until the next.

        Args:
            observations: [B, *obs].
            first: [B], where an episode begins and the state is zeroed; None for nowhere.
        """
        ...

    def inputs(self) -> dict[str, Array]:
        """The policy's inputs by name, [B, *shape], as the latest step read them."""
        ...


class SessionPlayer:
    """Plays a session, as actors do."""

    def __init__(self, session: ActingSession) -> None:
        self._session = session
        self._observations, *states = session.inputs.values()
        self._params, *following = session.outputs.values()
        self._states = list(zip(states, following, strict=True))
        self._before = [np.zeros_like(state) for state in states]

    def params(self, observations: Array, first: Bools | None) -> Floats:
        """See ``Player.params``."""
        self._observations[...] = observations
        for (state, _), before in zip(self._states, self._before, strict=True):
            if first is not None:
                state[first] = 0
            before[...] = state
        self._session.run()
        for state, following in self._states:
            state[...] = following
        return self._params  # type: ignore[return-value]

    def inputs(self) -> dict[str, Array]:
        """See ``Player.inputs``."""
        return dict(zip(self._session.inputs, (self._observations, *self._before), strict=True))


class TorchPlayer:
    """Plays an acting module in torch: the reference that artifacts are measured against."""

    def __init__(self, module: torch.nn.Module, state_shapes: tuple[tuple[int, ...], ...], batch: int) -> None:
        self._module = module
        self._states = tuple(torch.zeros(batch, *shape) for shape in state_shapes)
        self._inputs: dict[str, Array] = {}

    @torch.inference_mode()
    def params(self, observations: Array, first: Bools | None) -> Floats:
        """See ``Player.params``."""
        if first is not None:
            keep = torch.from_numpy(np.logical_not(first))
            self._states = tuple(state * keep.view(-1, *[1] * (state.dim() - 1)) for state in self._states)
        self._inputs = {"observations": observations}
        self._inputs.update({f"state_{i}": state.numpy() for i, state in enumerate(self._states)})
        outputs = self._module(torch.from_numpy(np.ascontiguousarray(observations)), *self._states)
        params, *states = outputs if isinstance(outputs, tuple) else (outputs,)
        self._states = tuple(states)
        array: Floats = params.numpy()
        return array

    def inputs(self) -> dict[str, Array]:
        """See ``Player.inputs``."""
        return self._inputs


def make_player(policy: Policy, state_shapes: tuple[tuple[int, ...], ...], batch: int) -> Player:
    """A player of ``batch`` environments; ``state_shapes``, of one environment's recurrent state, is for torch modules.

    Raises: ArtifactError when an artifact cannot be loaded.
    """
    if isinstance(policy, torch.nn.Module):
        return TorchPlayer(policy, state_shapes, batch)
    return SessionPlayer(PolicySession(policy, batch=batch) if isinstance(policy, CompressedPolicy) else policy(batch))
