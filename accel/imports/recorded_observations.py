"""Recorded observations in place of an environment: an .npz file of them, one after the other.

One array [N, *shape] of any name, or one for each named input of the policy; ``first`` [N], true where an episode
begins, is for recurrent policies. Calibration and quality take their rows from it; returns need an environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from accel.envs.actions import action_spec
from accel.envs.base import Actions, Seed, StepResult, VectorEnvironment
from accel.envs.observations import Observations, observation_layout
from accel.envs.spaces import ActionSpec, EnvSpec, ObservationPart, Storage, lay_out_record
from accel.errors import ConfigError
from accel.imports.normaliser import read_npz
from accel.imports.policy_file import ReadPolicy
from accel.imports.saved_spaces import SavedSpaces
from accel.imports.torch_modules import FactorySpec
from accel.networks.policy import PolicyModule
from accel.system.untrusted import read_file

Array = npt.NDArray[np.generic]

NAME = "recorded-observations"
"""What stands for the environment in configurations, contracts and artifacts."""
_LIMIT_BYTES, _LEAST_ROWS, _MOST_ROWS = 2**32, 16, 65_536


@dataclass(frozen=True)
class RecordedObservations:
    """Rows of a file.

    Attributes:
        path: the file. parts: inputs by name, [N, *shape], float32 or uint8. first: [N], where episodes begin.
    """

    path: Path
    parts: Mapping[str, Array]
    first: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, path: Path) -> RecordedObservations:
        """From an .npz file. Raises ConfigError."""
        try:
            content = read_npz(read_file(path, _LIMIT_BYTES), _LIMIT_BYTES)
            arrays = {name: np.asarray(value) for name, value in content.items()}
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read observations {path} ({reason}): give what numpy.savez wrote") from error
        first = arrays.pop("first", None)
        rows = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(rows) != 1 or min(rows) < _LEAST_ROWS or (first is not None and {first.shape} != {(*rows,)}):
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ConfigError(
                f"observations {path} hold {shapes or 'nothing'}: give [N, *shape] each, N at least {_LEAST_ROWS}"
            )
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or not (np.abs(array) <= np.finfo(np.float32).max).all():
                raise ConfigError(f"observations {path}: {name!r} holds values that are no finite numbers of float32")
            if array.ndim == 4 and array.dtype != np.uint8:
                raise ConfigError(
                    f"observations {path}: {name!r} has {array.dtype} of shape {array.shape}, and images are bytes "
                    "here: export the policy with the division by 255 inside, and give numpy.rint(255 * rows).astype("
                    "numpy.uint8); what is no image has the shape [N, n]"
                )
        count = min(*rows, _MOST_ROWS)
        kept = {
            name: array[:count].astype(np.uint8 if array.ndim == 4 else np.float32) for name, array in arrays.items()
        }
        beginnings = np.arange(count) == 0 if first is None else first[:count].astype(np.bool_)
        return cls(path, {"observations": next(iter(kept.values()))} if len(kept) == 1 else kept, beginnings)

    def spec(self, action: ActionSpec) -> EnvSpec:
        """The layout of these observations, with an action space."""
        parts = [ObservationPart(name, array.shape[1:], _storage(array)) for name, array in self.parts.items()]
        if len(parts) == 1:
            return EnvSpec(parts[0].shape, parts[0].dtype, action)
        placed, shape, dtype = lay_out_record(parts)
        return EnvSpec(shape, dtype, action, parts=placed)

    def inputs(self, policy: PolicyModule) -> dict[str, Array]:
        """The policy's inputs by name, [N, *shape]; recurrent states are those that it comes to, row by row."""
        if not policy.state_shapes:
            return dict(self.parts)
        states = [torch.zeros(1, *shape) for shape in policy.state_shapes]
        met: list[list[torch.Tensor]] = []
        observed = [torch.from_numpy(self.parts[name]) for name in policy.input_names if name in self.parts]
        with torch.inference_mode():
            for row, begins in enumerate(self.first):
                states = [torch.zeros_like(state) for state in states] if begins else states
                met.append(states)
                _, *states = policy(*(part[row : row + 1] for part in observed), *states)
        held = {f"state_{i}": torch.cat(parts).numpy() for i, parts in enumerate(zip(*met, strict=True))}
        return {**self.parts, **held}


def _storage(array: Array) -> Storage:
    return "uint8" if array.dtype == np.uint8 else "float32"


def _action_space(saved: SavedSpaces, outputs: int, *, discrete: bool, squash: bool) -> spaces.Space[object]:
    """The action space of a policy without an environment: what its file says, else of as many numbers as it gives."""
    sizes = saved.sizes or (outputs,)
    if saved.action == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(sizes, np.int64))
    if saved.action == "Discrete" or (saved.action is None and discrete):
        return spaces.Discrete(sizes[0])
    bound = 1.0 if squash else np.inf
    low, high = (
        np.resize(found or (limit,), sizes).astype(np.float32)
        for found, limit in ((saved.low, -bound), (saved.high, bound))
    )
    return spaces.Box(low, high, dtype=np.float32)


class NoEnvironment(VectorEnvironment):
    """Spaces without anything to play: every reset says so."""

    implementation = "loop"

    def __init__(self, spec: EnvSpec, action: spaces.Space[object], num_envs: int) -> None:
        self.spec, self.action_space, self.num_envs = spec, action, num_envs
        boxes: dict[str, spaces.Space[object]] = {
            part.name: spaces.Box(0, 255, part.shape, np.uint8)
            if part.dtype == "uint8"
            else spaces.Box(-np.inf, np.inf, part.shape, np.float32)
            for part in spec.inputs
        }
        self.observation_space = spaces.Dict(boxes) if spec.parts else next(iter(boxes.values()))
        self.layout = observation_layout(self.observation_space, spec.action)

    def reset(self, seed: Seed | None = None) -> Observations:
        """Raises ConfigError."""
        raise ConfigError("recorded observations cannot be played: give --env in place of --observations for returns")

    def step(self, actions: Actions) -> StepResult:
        """Raises ConfigError."""
        self.reset()
        raise AssertionError

    def close(self) -> None:
        """Nothing is held."""


def spaces_of(recorded: RecordedObservations, read: ReadPolicy, discrete: bool, *, squash: bool) -> NoEnvironment:
    """The spaces of recorded observations and of the outputs that a policy has for them. Raises ConfigError."""
    unknown = ActionSpec("gaussian", (1,), (-np.inf,), (np.inf,))
    layout = FactorySpec.of(recorded.spec(unknown), spaces.Box(-np.inf, np.inf, (1,), np.float32))
    width = 1
    if read.spaces.sizes is None:
        module = read.make(layout).eval()
        examples = [torch.from_numpy(recorded.parts[part.name][:2]).to(torch.float32) for part in layout.inputs]
        states = [torch.zeros(2, *shape) for shape in getattr(module, "state_shapes", ())]
        try:
            with torch.no_grad():
                outputs: torch.Tensor | tuple[torch.Tensor, ...] = module(*examples, *states)
            width = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).shape[1]
        except (RuntimeError, AttributeError, IndexError) as error:
            shapes = [tuple(example.shape[1:]) for example in examples]
            raise ConfigError(f"the policy fails on recorded observations {shapes}: {error}") from error
    space = _action_space(read.spaces, width, discrete=discrete, squash=squash)
    return NoEnvironment(recorded.spec(action_spec(space, squash=squash)), space, 1)
