"""A loop over single gymnasium environments with gymnasium's NEXT_STEP resets and next to no work of its own."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, SupportsFloat, TypeAlias, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import FrameStackObservation

from accel.envs.actions import action_converter, action_spec
from accel.envs.base import Actions, EnvFailure, Observations, Seed, StepResult, VectorEnvironment, check_numbers
from accel.envs.lookup import picture
from accel.envs.observations import ObservationLayout, observation_layout, settle_masks
from accel.envs.seeding import env_seeds
from accel.envs.spaces import EnvSpec, FrameFill
from accel.errors import AccelError, EnvError, InterfaceError, message_of, traceback_of
from accel.supervision.activity import PREPARING

SingleEnv = gymnasium.Env[object, object]
StepOfOne: TypeAlias = tuple[object, SupportsFloat, bool, bool, dict[str, Any]]


class EnvLoop(VectorEnvironment):
    """Steps single environments one after the other.

    The same rows as ``gymnasium.vector.SyncVectorEnv`` in NEXT_STEP mode, without merging infos, iterating spaces and
    copying observations twice.

    An environment that raises is made anew with another seed, and the others go on. One that raises again before it has
    ended an episode raises here.

    Args:
        make_env: makes one environment; called ``num_envs`` times.
        seed: of the first reset. squash_actions: see ``make_vector_env``.
        max_episode_steps: truncates here, as ``gymnasium.wrappers.TimeLimit`` does, so that the wrapper is not needed.
    Raises:
        EnvError: a space is not supported, or the environments' spaces differ.
    """

    implementation = "loop"

    def __init__(
        self,
        make_env: Callable[[], SingleEnv],
        num_envs: int,
        *,
        seed: Seed,
        squash_actions: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.envs: list[SingleEnv] = []
        self._broken: set[int] = set()
        try:
            for _ in range(num_envs):
                self.envs.append(make_env())
            self.spec = self._agree(squash_actions)
        except BaseException:
            self.close()
            raise
        self.make_env = make_env
        self._seed = seed
        self._first_seed = (seed,) if isinstance(seed, int) else tuple(seed)
        self._unproven: set[int] = set()
        self._failed = 0
        self._max_episode_steps = max_episode_steps or sys.maxsize
        self._observations = self.layout.empty(num_envs)
        self._rows = list(self._observations)
        self._rewards = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._is_over = [False] * num_envs
        self._steps = [self._checked_once(i) for i in range(num_envs)]
        self._tick = 0
        self._deadlines = [self._max_episode_steps] * num_envs

    def _agree(self, squash_actions: bool) -> EnvSpec:
        first = self.envs[0]
        action = action_spec(first.action_space, squash=squash_actions)
        self.layout = observation_layout(first.observation_space, action)
        self.action_space, self.observation_space = first.action_space, first.observation_space
        self.metadata = first.metadata
        self._to_env = action_converter(first.action_space)
        for i, env in enumerate(self.envs):
            theirs, ours = (env.observation_space, env.action_space), (first.observation_space, first.action_space)
            if theirs != ours:
                raise EnvError(f"environments 0 and {i} of one actor have different spaces: {ours} and {theirs}")
        return self.layout.spec(action, "next_step", *_frame_stack(first, self.layout))

    def reset(self, seed: Seed | None = None) -> Observations:
        """New episodes everywhere; see VectorEnvironment."""
        seed = self._take_seed(seed)
        seeds: Sequence[int | None] = [None] * self.num_envs if seed is None else env_seeds(seed, self.num_envs)
        for i in range(self.num_envs):
            try:
                anew = self._make_anew(i) if i in self._broken else None
                observation, _ = self.envs[i].reset(seed=anew if seeds[i] is None else seeds[i])
                self.layout.check(observation)
            except InterfaceError as error:
                raise InterfaceError(f"environment {i}, reset(): {error}") from error
            except AccelError:
                raise
            except Exception as error:
                who = f"environment {i}, reset()"
                named = _named(error, who, "(observation, info)")
                *_, (frame, line) = traceback.walk_tb(error.__traceback__)
                place = f"{frame.f_code.co_filename}, line {line}"
                told = f"{who}: it raised {message_of(error)} ({place}): mend the environment"
                raise named or EnvError(told) from error
            self.layout.write(observation, self._rows[i])
            self._is_over[i] = False
            self._deadlines[i] = self._tick + self._max_episode_steps
        settle_masks(self.spec, self._observations, np.logical_not(self._is_over))
        return self._observations

    def step(self, actions: Actions) -> StepResult:
        """One action everywhere; see VectorEnvironment. Raises EnvError for results that no environment may give."""
        rewards, terminated, truncated = self._rewards, self._terminated, self._truncated
        is_over, deadlines = self._is_over, self._deadlines
        write = None if self.layout.is_plain else self.layout.write
        masked = self.spec.action.masked
        terminated.fill(False)
        truncated.fill(False)
        self._tick = tick = self._tick + 1
        i = 0
        for step, action, row in zip(self._steps, self._to_env(actions), self._rows, strict=True):
            try:
                if is_over[i]:
                    observation = self._reset(i)
                    rewards[i] = 0.0
                    is_over[i] = False
                    deadlines[i] = tick + self._max_episode_steps
                else:
                    observation, rewards[i], ends, cuts, _ = step(action)
                    if ends or cuts or tick == deadlines[i]:
                        terminated[i] = ends
                        truncated[i] = cuts or tick == deadlines[i]
                        is_over[i] = True
                        self._unproven.discard(i)
                if write is None:
                    row[...] = observation
                else:
                    write(observation, row)
            except InterfaceError as error:
                raise InterfaceError(f"environment {i}, step(): {error}") from error
            except Exception as error:
                wanted = "(observation, reward, terminated, truncated, info)"
                if named := _named(error, f"environment {i}, step()", wanted):
                    raise named from error
                self._replace_later(i, error)
            i += 1
        if masked:
            settle_masks(self.spec, self._observations, np.logical_not(is_over))
        return self._observations, rewards, terminated, truncated

    def _checked_once(self, i: int) -> Callable[[object], StepOfOne]:
        """Environment i's ``step``, which looks at its first result, and costs nothing after it."""
        step = self.envs[i].step

        def first(action: object) -> StepOfOne:
            result: object = step(action)
            if isinstance(result, tuple) and len(result) == 5:
                self.layout.check(result[0])
                check_numbers(*result[1:4])
            self._steps[i] = step
            return cast(StepOfOne, result)

        return first

    def _reset(self, i: int) -> object:
        """Environment i's next episode; one that raised is made anew first."""
        before = self.activity.enter(PREPARING)
        try:
            seed = self._make_anew(i) if i in self._broken else None
            observation, _ = self.envs[i].reset(seed=seed)
        finally:
            self.activity.enter(before)
        return observation

    def _make_anew(self, i: int) -> int:
        """Another environment in the place of one that raised; returns its seed, which no other has."""
        self.envs[i] = env = self.make_env()
        if (env.observation_space, env.action_space) != (self.layout.space, self.action_space):
            raise EnvError(f"environment {i} has other spaces than before")
        self._steps[i] = env.step
        self._broken.discard(i)
        return env_seeds((*self._first_seed, self._failed, 1), self.num_envs)[i]

    def _replace_later(self, i: int, error: Exception) -> None:
        """Note that environment i raised; its next row is a reset. Raises the error if it did so again too soon."""
        if i in self._unproven:
            if isinstance(error, EnvError):
                raise error
            raise EnvError(
                f"environment {i} raised again before an episode of it ended: {message_of(error)}; mend the environment"
            ) from error
        self._unproven.add(i)
        self._broken.add(i)
        self.activity.words[0] += 1 << 32  # Progress, of a number that no step has: the next one may hang as long.
        self._failed += 1
        self._rewards[i] = 0.0
        self._terminated[i], self._truncated[i], self._is_over[i] = False, True, True
        self.failures.append(EnvFailure(self._tick, i, message_of(error), traceback_of(error)))
        with suppress(Exception):  # it is broken: closing it may be, too
            self.envs[i].close()

    def render(self) -> npt.NDArray[np.uint8]:
        """What environment 0's own ``render`` gives; see VectorEnvironment."""
        return picture(self.envs[0].render)

    def close(self) -> None:
        """Close every environment, whichever raises; more calls do nothing. Those that broke were closed then."""
        with ExitStack() as closing:
            for i, env in enumerate(self.envs):
                if i not in self._broken:
                    closing.callback(env.close)
            self.envs = []


def _named(error: Exception, who: str, wanted: str) -> InterfaceError | None:
    """What an environment gave instead of what gymnasium wants; None for an error inside the environment."""
    if not isinstance(error, TypeError | ValueError):
        return None
    *outer, (innermost, _) = traceback.walk_tb(error.__traceback__)
    is_ours = not outer
    if (is_ours or innermost.f_globals.get("__name__", "").startswith("gymnasium.")) and "expected 5, got 4" in str(
        error
    ):
        return InterfaceError(
            f"{who}: it gave four values, as in the old gym interface; gymnasium wants five, {wanted}: return "
            "`terminated` and `truncated` apart, or wrap the environment with shimmy.GymV21CompatibilityV0"
        )
    if is_ours:
        found = f"its result is not {wanted} with an observation of its space and a number: {error}"
        return InterfaceError(f"{who}: {found}")
    return None


def _frame_stack(env: SingleEnv, layout: ObservationLayout) -> tuple[int, FrameFill]:
    """Frames in one image and what fills them at a reset, where gymnasium's own wrapper stacked them, outermost."""
    if not isinstance(env, FrameStackObservation) or layout.dtype != "uint8":
        return 1, "zero"
    has_frames_first = layout.is_plain or len(cast(tuple[int, ...], env.observation_space.shape)) == 4
    if not has_frames_first or env.padding_type not in ("reset", "zero"):
        return 1, "zero"
    return env.stack_size, "repeat" if env.padding_type == "reset" else "zero"
