"""Every row of every implementation and autoreset mode, against a table written from the definition of the modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from accel.envs.base import VectorEnvironment
from accel.envs.factory import make_vector_env
from accel.envs.loop import EnvLoop
from accel.envs.observations import observation_layout
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import VectorisedEnv
from tests.environments.closed_form import (
    FIRST_ACTION,
    NUM_ACTIONS,
    SCRIPT,
    ClosedFormEnv,
    Kind,
    observation_space,
    observe,
    reward,
    script,
)

B, T = 7, 60
SEED = (5, 2)
KINDS: tuple[Kind, ...] = ("vector", "image", "dict", "discrete")


@dataclass(frozen=True)
class Row:
    """One row of an unroll: what the environment shows before the action, and what the action led to."""

    episode: int
    t: int
    reward: float
    terminated: bool
    truncated: bool
    valid: bool


def next_step_rows(stream: int, actions: np.ndarray) -> list[Row]:
    """The rows of ``len(actions)`` steps: after the last step of an episode comes one row that is no transition."""
    rows = []
    for episode in range(len(actions)):
        length, ending = script(stream, episode)
        for t in range(length):
            is_last = t + 1 == length
            ends, cuts = (is_last and ending in (flag, "both") for flag in ("terminated", "truncated"))
            value = reward(episode, t + 1, float(actions[min(len(rows), len(actions) - 1)]))
            rows.append(Row(episode, t, value, ends, cuts, True))
        rows.append(Row(episode, length, 0.0, False, False, False))
    return rows[: len(actions) + 1]


def same_step_rows(stream: int, actions: np.ndarray) -> list[Row]:
    flat = [(episode, t) for episode in range(len(actions) + 1) for t in range(script(stream, episode)[0])]
    rows = []
    for (episode, t), action in zip(flat, [*actions, 0], strict=False):
        length, ending = script(stream, episode)
        ends, cuts = (t + 1 == length and ending in (flag, "both") for flag in ("terminated", "truncated"))
        rows.append(Row(episode, t, reward(episode, t + 1, float(action)), ends, cuts, True))
    return rows


def encoded(kind: Kind, episode: int, t: int, stream: int) -> np.ndarray:
    """The stored observation, through gymnasium's own flattening or a plain transposition."""
    observation = observe(kind, episode, t, stream)
    if kind == "image":
        return np.asarray(np.moveaxis(observation, 2, 0))
    return np.asarray(gymnasium.spaces.flatten(observation_space(kind), observation), np.float32)


def check_rows(env: VectorEnvironment, kind: Kind, streams: list[int]) -> None:
    """Play T steps with random actions; compare every number of every row with the table."""
    actions = np.random.default_rng(0).integers(0, NUM_ACTIONS, (T, B))
    make_rows = next_step_rows if env.spec.autoreset == "next_step" else same_step_rows
    expected = [make_rows(stream, actions[:, i]) for i, stream in enumerate(streams)]
    observations = env.reset()
    for t in range(T):
        compare_observations(observations, kind, streams, [rows[t] for rows in expected])
        observations, rewards, terminated, truncated = env.step(actions[t])
        now = [rows[t] for rows in expected]
        np.testing.assert_array_equal(rewards, [row.reward for row in now])
        np.testing.assert_array_equal(terminated, [row.terminated for row in now])
        np.testing.assert_array_equal(truncated, [row.truncated for row in now])
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        if env.spec.autoreset == "same_step":
            for i in np.flatnonzero(terminated | truncated):
                length = script(streams[i], now[i].episode)[0]
                final = encoded(kind, now[i].episode, length, streams[i])
                np.testing.assert_array_equal(env.final_observations[i], final)
    compare_observations(observations, kind, streams, [rows[T] for rows in expected])


def compare_observations(observations: np.ndarray, kind: Kind, streams: list[int], rows: list[Row]) -> None:
    wanted = np.stack([encoded(kind, row.episode, row.t, stream) for row, stream in zip(rows, streams, strict=True)])
    assert observations.dtype == wanted.dtype
    np.testing.assert_array_equal(observations, wanted)


def sync(kind: Kind, mode: AutoresetMode) -> VectorisedEnv:
    """gymnasium's own vectoriser: it must look the same through the same adapter."""
    env: Any = SyncVectorEnv([lambda: ClosedFormEnv(kind)] * B, autoreset_mode=mode, copy=False)
    return VectorisedEnv(env, seed=SEED)


def registered(name: str) -> Callable[[Kind], VectorEnvironment]:
    return lambda kind: make_vector_env(f"tests.environments:{name}", B, seed=SEED, env_args={"observation": kind})


IMPLEMENTATIONS: dict[str, tuple[Callable[[Kind], VectorEnvironment], str, str]] = {
    "loop": (registered("ClosedForm-v0"), "loop", "next_step"),
    "vector-next-step": (registered("ClosedFormNextStep-v0"), "vector", "next_step"),
    "vector-same-step": (registered("ClosedFormSameStep-v0"), "vector", "same_step"),
    "gymnasium-next-step": (lambda kind: sync(kind, AutoresetMode.NEXT_STEP), "vector", "next_step"),
    "gymnasium-same-step": (lambda kind: sync(kind, AutoresetMode.SAME_STEP), "vector", "same_step"),
}


def streams_of(env: VectorEnvironment) -> list[int]:
    """Which stream each row plays: the loop seeds every environment by itself, gymnasium counts up from the first."""
    seeds = env_seeds(SEED, env.num_envs)
    if env.implementation == "vector":
        seeds = [seeds[0] + i for i in range(env.num_envs)]
    return [seed % len(SCRIPT) for seed in seeds]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_the_one_the_mode_defines(implementation: str, kind: Kind) -> None:
    make, name, autoreset = IMPLEMENTATIONS[implementation]
    env = make(kind)
    assert (env.implementation, env.spec.autoreset, env.num_envs) == (name, autoreset, B)
    streams = streams_of(env)
    assert len(set(streams)) > 1
    check_rows(env, kind, streams)
    env.close()


@pytest.mark.parametrize(("padding", "fill"), [("reset", "repeat"), ("zero", "zero")])
def test_frames_stacked_by_gymnasiums_wrapper_need_be_stored_only_once(padding: str, fill: str) -> None:
    stack = 3
    env = EnvLoop(
        lambda: gymnasium.wrappers.FrameStackObservation(ClosedFormEnv("image"), stack, padding_type=padding),
        2,
        seed=SEED,
    )
    assert (env.spec.frame_stack, env.spec.frame_fill, env.spec.observation_shape) == (stack, fill, (9, 6, 5))
    streams = streams_of(env)
    observations = env.reset()
    expected = [next_step_rows(stream, np.zeros(T)) for stream in streams]
    for t in range(T):
        for i, stream in enumerate(streams):
            row = expected[i][t]
            blank = encoded("image", row.episode, 0, stream) if fill == "repeat" else np.zeros((3, 6, 5))
            past = range(row.t - stack + 1, row.t + 1)
            frames = [encoded("image", row.episode, k, stream) if k >= 0 else blank for k in past]
            np.testing.assert_array_equal(observations[i], np.concatenate(frames))
        observations, _, _, _ = env.step(np.zeros(2, np.int64))


def test_other_stacks_are_sent_whole() -> None:
    custom = np.ones((6, 5, 3), np.uint8)
    for env in (
        gymnasium.wrappers.FrameStackObservation(ClosedFormEnv("image"), 3, padding_type=custom),
        gymnasium.wrappers.FrameStackObservation(ClosedFormEnv("vector"), 3),
        gymnasium.wrappers.TransformReward(
            gymnasium.wrappers.FrameStackObservation(ClosedFormEnv("image"), 3), lambda value: value
        ),
    ):
        made: Any = env
        assert EnvLoop(lambda made=made: made, 1, seed=0).spec.frame_stack == 1


def test_a_mislabelled_autoreset_mode_is_noticed() -> None:
    env = registered("ClosedFormMislabelled-v0")("vector")
    with pytest.raises(AssertionError):
        check_rows(env, "vector", streams_of(env))


@pytest.mark.parametrize("limit", [None, 1, 2, -1])
def test_the_time_limit_is_the_registered_one_or_max_episode_steps(limit: int | None) -> None:
    name = "tests.environments:ClosedFormLimited-v0"
    ours = make_vector_env(name, B, seed=SEED, env_args={} if limit is None else {"max_episode_steps": limit})
    make_single: Any = lambda: gymnasium.make(name, disable_env_checker=True, max_episode_steps=limit)  # noqa: E731
    theirs = SyncVectorEnv([make_single] * B)
    check_same(ours, theirs, np.random.default_rng(2).integers(0, NUM_ACTIONS, (T, B)), offset=FIRST_ACTION)


@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")  # Box2D's bindings, as they load
@pytest.mark.parametrize(
    ("name", "limit", "module"),
    [
        ("Pendulum-v1", 9, None),
        ("MountainCarContinuous-v0", 7, None),
        ("Blackjack-v1", None, None),
        ("LunarLander-v3", 70, "Box2D"),
        ("HalfCheetah-v5", 20, "mujoco"),
    ],
)
def test_the_loop_equals_gymnasiums_own_on_real_environments(name: str, limit: int | None, module: str | None) -> None:
    if module is not None:
        pytest.importorskip(module, reason=f"needs the extra [{module.lower()}]")

    def make_single() -> Any:
        return gymnasium.make(name, disable_env_checker=True, max_episode_steps=limit)

    ours = make_vector_env(name, 3, seed=SEED, env_args={} if limit is None else {"max_episode_steps": limit})
    assert ours.implementation == "loop"
    theirs = SyncVectorEnv([make_single] * 3)
    rng = np.random.default_rng(3)
    shape = (150, 3, *ours.spec.action.shape)
    actions = rng.integers(0, 2, shape) if ours.spec.action.kind == "categorical" else rng.uniform(-1, 1, shape)
    check_same(ours, theirs, actions)


def check_same(ours: VectorEnvironment, theirs: SyncVectorEnv, actions: np.ndarray, offset: int = 0) -> None:
    layout = observation_layout(theirs.single_observation_space)
    rows = layout.empty(theirs.num_envs)
    theirs_now, _ = theirs.reset(seed=env_seeds(SEED, theirs.num_envs))
    ours_now = ours.reset()
    finished = 0
    for action in actions:
        layout.write(theirs_now, rows)
        np.testing.assert_array_equal(ours_now, rows)
        ours_now, rewards, terminated, truncated = ours.step(action.astype(ours.spec.action.dtype))
        native = action.astype(theirs.single_action_space.dtype) + offset
        theirs_now, their_rewards, their_terminated, their_truncated, _ = theirs.step(native)
        np.testing.assert_array_equal(rewards, their_rewards.astype(np.float32))
        np.testing.assert_array_equal(terminated, their_terminated)
        np.testing.assert_array_equal(truncated, their_truncated)
        finished += int((terminated | truncated).sum())
    assert finished >= theirs.num_envs
    ours.close()
    theirs.close()
