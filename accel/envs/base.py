"""What every vector environment offers the actor, whichever implementation steps it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from accel.envs.observations import ObservationLayout
from accel.envs.spaces import EnvSpec
from accel.errors import EnvError, InterfaceError
from accel.json_object import Json
from accel.supervision.activity import Activity

Observations: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Actions: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Floats: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]
StepResult: TypeAlias = tuple[Observations, Floats, Flags, Flags]
Seed: TypeAlias = int | Sequence[int]
Implementation: TypeAlias = Literal["loop", "vector", "atari", "envpool", "pettingzoo", "device"]


@dataclass(frozen=True)
class EnvRequest:
    """What ``make_vector_env`` is asked for; its own documentation says what each is."""

    id: str
    num_envs: int
    args: Mapping[str, object]
    wrappers: tuple[str, ...]
    seed: Seed
    squash_actions: bool = False
    render: bool = False


@dataclass(frozen=True)
class EnvFailure:
    """One environment of several raised in the vector step ``tick``, counted from 1: its row is no transition.

    The row says ``truncated``, so that a reset follows, for which the environment is made anew.
    """

    tick: int
    environment: int
    error: str
    traceback: str

    def to_json(self) -> Json:
        """As it is reported."""
        return {"environment": self.environment, "raised": self.error, "traceback": self.traceback}


class _Environments(ABC):
    """What environments tell, however they are stepped.

    Attributes:
        spec: shapes, dtypes and the autoreset mode.
        failures: environments that raised and are made anew; whoever reads them empties the list.
        activity: where environments show that they are reset; the actor's own when it has one.
    """

    spec: EnvSpec
    failures: list[EnvFailure]
    activity: Activity
    _final: Observations | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Environments with an activity that nobody watches."""
        environments = super().__new__(cls)
        environments.failures, environments.activity = [], Activity()
        return environments

    @property
    def final_observations(self) -> Observations:
        """[B, *observation_shape]; under ``same_step``, row i is valid where the latest step finished episode i."""
        if self._final is None:
            raise AttributeError("a next_step environment has no final_observations: they are in the ordinary rows")
        return self._final

    @abstractmethod
    def close(self) -> None:
        """Release what the environments hold; more calls do nothing."""


class AsyncEnvironments(_Environments):
    """B environments of one kind in groups, each of which is stepped as soon as it is given actions.

    Attributes:
        failures: their tick counts the rows of its group.
        groups: how many. rows: environments of each; those of group g are g · rows to (g + 1) · rows − 1.
        observations, rewards, terminated, truncated: [B, ...]; those of a group are valid from when it is received
            until it is sent actions.
    """

    groups: int
    rows: int
    observations: Observations
    rewards: Floats
    terminated: Flags
    truncated: Flags

    @abstractmethod
    def reset(self) -> Observations:
        """Start a first episode everywhere, once, and wait for all of them. Raises EnvError."""

    @abstractmethod
    def send(self, groups: Sequence[int], actions: Actions) -> None:
        """Give groups that were received their actions [their rows, *shape], as for ``VectorEnvironment.step``."""

    @abstractmethod
    def receive(self) -> list[int]:
        """Groups that have taken their step, waited for; now and then none, so that the caller can look around.

        Raises EnvError.
        """


class VectorEnvironment(_Environments):
    """B environments of one kind, stepped together and reset automatically.

    Every array handed out is valid until the next call of ``reset`` or ``step``: the caller copies what it keeps,
    and need not assume that observations are contiguous.

    ``spec.autoreset`` says what follows a finished step (``terminated`` or ``truncated``) of environment i:

    - ``next_step``: the step's observation is the episode's final one. The next call ignores action i and resets, and
      gives the new episode's first observation with reward 0 and both flags false: that row is not a transition.
    - ``same_step``: the step's observation is already the new episode's first one; the final one of the finished
      episode is ``final_observations[i]``.

    Attributes:
        layout: how one environment's own observations are stored, to convert others.
        action_space: one environment's own action space, whose start and shape ``spec.action`` leaves out.
        observation_space: one environment's own observation space; None where it is not known.
        metadata: one environment's own.
        num_envs: B, rows: environments, times agents where one environment has several.
        implementation: which code steps the environments: a ``loop`` over single environments, the environment's own
            ``vector`` implementation, ``atari`` (ALE's C++ one), ``envpool``, or tensors on a ``device``.
    """

    layout: ObservationLayout
    action_space: spaces.Space[object]
    observation_space: spaces.Space[object] | None = None
    metadata: Mapping[str, object] = MappingProxyType({})
    num_envs: int
    implementation: Implementation
    _seed: Seed | None = None

    @abstractmethod
    def reset(self, seed: Seed | None = None) -> Observations:
        """Start a new episode everywhere.

        Args:
            seed: reseeds every environment as ``env_seeds(seed, num_envs)`` says. None: the seed the vector environment
                was made with on the first call; later calls go on with the generators as they are.
        Returns:
            [B, *observation_shape] first observations.
        Raises:
            EnvError: an environment's observation is not the one its space announces.
        """

    def _take_seed(self, seed: Seed | None) -> Seed | None:
        """The seed of a reset: on the first one without, that which the vector environment was made with."""
        taken = self._seed if seed is None else seed
        self._seed = None
        return taken

    @abstractmethod
    def step(self, actions: Actions) -> StepResult:
        """Apply one action to every environment.

        Args:
            actions: [B, *spec.action.shape], as the sampler's ``to_env`` gives them: indices from 0 for discrete
                actions, values inside the bounds for Box actions (flattened).
        Returns:
            observations [B, *observation_shape], rewards [B] float32, terminated [B] bool, truncated [B] bool.
        """

    def render(self) -> npt.NDArray[np.uint8]:
        """A picture of environment 0 as it is now, [height, width, 3], for environments made with ``render``.

        Raises:
            EnvError: the environment was made without, or cannot draw itself.
            MissingExtraError: drawing needs a package that is not installed.
        """
        raise EnvError(f"this environment ({self.implementation}) draws no pictures: make it with render=True")


def check_numbers(reward: object, *ends: object) -> None:
    """Raises InterfaceError: a reward or end is no number, which numpy may still take for one."""
    if word := next((value for value in ends if isinstance(value, str | bytes)), None):
        raise InterfaceError(f"{word!r:.80} (a {type(word).__name__}) is no end of an episode: return True or False")
    found = np.asarray(reward)
    if reward is None or found.shape or found.dtype.kind not in "biufO":
        kind = f"{type(reward).__name__} of shape {found.shape}" if found.shape else f"a {type(reward).__name__}"
        raise InterfaceError(f"the reward {reward!r:.80} ({kind}) is not one number: return float(reward)")
