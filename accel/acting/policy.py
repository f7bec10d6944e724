"""The policy an actor acts with: a compressed artifact, in compiled kernels or onnxruntime. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from accel.acting.rules import ActionArray, Sampler
from accel.compressors.artifact import CompressedPolicy
from accel.compressors.errors import ArtifactError, CompressorError
from accel.compressors.runtime import PolicySession, Runtime
from accel.experience.unroll import Unroll, UnrollLayout
from accel.json_object import Json
from accel.transport.base import PolicyUpdate

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class InPlaceSession(Protocol):
    """What computes a policy's outputs from its inputs, in place; see ``accel.compressors.runtime.PolicySession``."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """Compute ``outputs`` from ``inputs``."""


Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Of tensors by name their dtype and their shape without rows."""


def tensors_of(layout: UnrollLayout) -> tuple[Tensors, Tensors]:
    """The inputs and the outputs of a policy that fills unrolls of this layout."""
    states: Tensors = {f"state_{i}": ("float32", shape) for i, shape in enumerate(layout.state_shapes)}
    outputs: Tensors = {"params": ("float32", (layout.outputs,))}
    observed = {part.name: (part.dtype, part.shape) for part in layout.spec.inputs}
    return observed | states, outputs | {f"next_{name}": kind for name, kind in states.items()}


def read_artifact(payload: bytes) -> tuple[CompressedPolicy, float]:
    """A published policy, and the seconds that this took. Raises ArtifactError: it is damaged."""
    before = perf_counter()
    artifact = CompressedPolicy.from_bytes(payload)
    return artifact, perf_counter() - before


class LoadedPolicy(ABC):
    """Follows the learner's policies.

    Attributes:
        version, scheme: of the policy loaded last. runtime: what it runs on; "" where that is elsewhere.
    """

    version = -1
    scheme = ""
    runtime = ""
    _refused = False

    def load(self, update: PolicyUpdate) -> float:
        """Take a newer policy; on any error the old one stays in place.

        An update without a payload changes the version only, unless the policy that it refers to was refused.

        Returns:
            Seconds that reading the payload took, without building the session.
        Raises:
            ArtifactError: the payload is damaged, does not load here, or is no policy for this environment and network.
        """
        deserialise_s = 0.0
        if update.payload is not None:
            self._refused = True
            deserialise_s = self._take(update.payload)
            self._refused = False
        if not self._refused:
            self.version = update.version
        return deserialise_s

    def load_or_keep(self, update: PolicyUpdate, who: str, report: Callable[[Json], object]) -> float:
        """``load``, but what cannot be loaded is reported, and so is what a policy runs on; the first must load."""
        runtime = self.runtime
        try:
            deserialise_s = self.load(update)
        except CompressorError as error:
            if self.version < 0:
                raise
            told = f"{who} keeps policy {self.version}: version {update.version} does not load: {error}"
            report({"warning": told})
            return 0.0
        if self.runtime != runtime:
            report({"runtime": self.runtime})
        return deserialise_s

    @abstractmethod
    def _take(self, payload: bytes) -> float:
        """Act with a payload's policy from now on; returns the seconds that reading it took."""


class SessionPolicy(LoadedPolicy):
    """What the actor's loop sees of a policy: acts with the newest artifact it could load.

    A recurrent state survives a change of version.
    """

    def __init__(
        self, layout: UnrollLayout, sampler: Sampler, schemes: Sequence[str] = (), runtime: Runtime = "native"
    ) -> None:
        """``schemes``: that unrolls name by place. ``runtime``: see ``PolicySession``."""
        self._wanted_runtime = runtime
        self._layout = layout
        self._schemes = schemes
        self._sampler = sampler
        self._state_shapes = state_shapes = layout.state_shapes
        self._is_record = bool(layout.spec.parts)
        self._inputs: tuple[Array, ...] = ()
        self._outputs: tuple[Array, ...] = ()
        self._carried = tuple(np.zeros((layout.envs, *shape), np.float32) for shape in state_shapes)

    def _take(self, payload: bytes) -> float:
        """Build a session for the policy and change over to it, between two unrolls.

        The session is built in the actor's own thread. A second thread would not be cheaper, as an actor has one core,
        and as it competes for the interpreter lock, a policy would be loaded several times later.
        """
        artifact, deserialise_s = read_artifact(payload)
        self._check_contract(artifact)
        session = PolicySession(artifact, batch=self._layout.envs, runtime=self._wanted_runtime)
        self.scheme, self.runtime = artifact.scheme, session.ran_on
        self._use(session)
        return deserialise_s

    def _use(self, session: InPlaceSession) -> None:
        """Act with a session from now on, which goes on with the recurrent state."""
        names = range(len(self._state_shapes))
        inputs = tuple(session.inputs[f"state_{i}"] for i in names)
        for target, source in zip(inputs, self.states(), strict=True):
            target[...] = source
        self._carried = inputs  # type: ignore[assignment]
        self._inputs = inputs
        self._outputs = tuple(session.outputs[f"next_state_{i}"] for i in names)
        self._observed = [(part, session.inputs[part.name]) for part in self._layout.spec.inputs]
        self._observations = self._observed[0][1]
        self._params = session.outputs["params"]
        self._run = session.run

    def _check_contract(self, artifact: CompressedPolicy) -> None:
        """Check that names, shapes and dtypes of inputs and outputs are this environment's and network's."""
        inputs, outputs = tensors_of(self._layout)
        wanted = inputs | outputs
        found = {
            t.name: (t.dtype, t.shape[1:]) for t in (*artifact.inputs, *artifact.outputs) if t.shape[:1] == (None,)
        }
        if found != wanted:
            wrong = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise ArtifactError(
                f"policy {artifact.scheme!r} is for another environment or network: {', '.join(wrong)} should be "
                f"{[wanted.get(name) for name in wrong]}, not {[found.get(name) for name in wrong]}"
            )

    def states(self) -> tuple[Floats, ...]:
        """The recurrent state [B, *shape] before the next ``act``, in the learner's layout; empty without a core."""
        return self._carried

    def sign(self, unroll: Unroll) -> None:
        """Write which version and scheme chose the actions of each row of an unroll just collected."""
        unroll["policy_version"][...] = self.version
        unroll["scheme_id"][...] = self._schemes.index(self.scheme)

    def act(self, observations: Array, first: Bools | None, t: int, actions: ActionArray, params: Floats) -> None:
        """Sample actions for row t of an unroll.

        Args:
            observations: [B, *obs].
            first: [B], environments whose episode starts on this row, or None when none does.
            t: the row, which selects the noise drawn for it.
            actions: [B, *action] written in place.
            params: [B, P] distribution parameters, written in place.
        """
        self.infer(observations, first, params)
        self._sampler.sample(params, t, actions)

    def infer(self, observations: Array, first: Bools | None, params: Floats) -> None:
        """Run the policy without sampling: fill ``params`` [B, P] and advance the recurrent state."""
        if self._is_record:
            for part, target in self._observed:
                target[...] = part.of_record(observations)
        else:
            self._observations[...] = observations
        if first is not None:
            for state in self._inputs:
                state[first] = 0.0
        self._run()
        params[...] = self._params
        for state, following in zip(self._inputs, self._outputs, strict=True):
            state[...] = following
