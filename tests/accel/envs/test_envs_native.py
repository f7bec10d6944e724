"""Real vector implementations: CartPole's own, EnvPool's and ALE's, each against physics or another mode.

The rows around an automatic reset are where mistakes hide, so that every transition is checked: a single environment
put into the state before a step must reach the state after it, the final observation of an episode included.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from accel.envs.base import VectorEnvironment
from accel.envs.factory import make_vector_env

SEED = (11, 0)


def rows(env: VectorEnvironment, actions: np.ndarray) -> dict[str, np.ndarray]:
    shown: dict[str, list[np.ndarray]] = {"observations": [env.reset().copy()]}
    for action in actions:
        observations, rewards, terminated, truncated = env.step(action)
        shown["observations"].append(observations.copy())
        for name, array in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            shown.setdefault(name, []).append(array.copy())
    return {name: np.stack(arrays) for name, arrays in shown.items()}


def valid_rows(played: dict[str, np.ndarray]) -> np.ndarray:
    """Which steps are transitions, under NEXT_STEP: all but the one after a finished step."""
    done = played["terminated"] | played["truncated"]
    return np.concatenate([np.ones((1, done.shape[1]), bool), ~done[:-1]])


def check_resets(played: dict[str, np.ndarray], limit: int) -> None:
    """Rewards and flags of the rows after a finished step, and truncation at the limit and only there."""
    valid = valid_rows(played)
    assert not played["rewards"][~valid].any()
    assert not (played["terminated"] | played["truncated"])[~valid].any()
    lengths = np.zeros(valid.shape[1], int)
    for t in range(len(valid)):
        lengths = np.where(valid[t], lengths + 1, 0)
        np.testing.assert_array_equal(played["truncated"][t], lengths == limit)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_cartpole_rows_follow_cartpoles_equations(backend: Any) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool", reason="needs the extra [envpool]")
    limit, num_envs = 12, 6
    env = make_vector_env("CartPole-v1", num_envs, backend=backend, env_args={"max_episode_steps": limit}, seed=SEED)
    assert env.implementation == ("vector" if backend == "gymnasium" else "envpool")
    actions = np.random.default_rng(0).integers(0, 2, (120, num_envs))
    actions[:, 0] = 1
    played = rows(env, actions)
    env.close()
    check_resets(played, limit)
    valid = valid_rows(played)
    single: Any = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    single.reset()
    observations = played["observations"]
    for t, i in np.ndindex(*actions.shape):
        if valid[t, i]:
            single.state, single.steps_beyond_terminated = tuple(observations[t, i].astype(float)), None
            after, reward, terminated, _, _ = single.step(int(actions[t, i]))
            np.testing.assert_allclose(observations[t + 1, i], after, atol=1e-5)
            assert played["rewards"][t, i] == reward
            # A known difference: EnvPool calls a fall on the last step before the limit truncated only.
            hides_fall = backend == "envpool" and played["truncated"][t, i]
            assert played["terminated"][t, i] == (terminated and not hides_fall)
        else:
            assert np.abs(observations[t + 1, i]).max() <= 0.05
    assert played["terminated"].sum() > 10
    assert played["truncated"].sum() > 10


@pytest.mark.parametrize("num_threads", [1, 2])
def test_envpool_keeps_its_environments_in_order(num_threads: int) -> None:
    pytest.importorskip("envpool", reason="needs the extra [envpool]")
    args = {"num_threads": num_threads}
    env = make_vector_env("CartPole-v1", 16, backend="envpool", env_args=args, seed=SEED)
    actions = np.zeros((60, 16), np.int64)
    together = rows(env, actions)
    env.close()
    alone = make_vector_env("CartPole-v1", 16, backend="envpool", seed=SEED)
    np.testing.assert_array_equal(rows(alone, actions)["observations"], together["observations"])
    alone.close()


def atari(
    num_envs: int, backend: Any = "gymnasium", game: str = "ALE/Breakout-v5", **args: object
) -> VectorEnvironment:
    pytest.importorskip(
        "ale_py" if backend == "gymnasium" else "envpool", reason="needs the extra [atari] or [envpool]"
    )
    return make_vector_env(game, num_envs, backend=backend, env_args=args, seed=SEED)


ATARI_CASES = {
    "ale": ("gymnasium", {}),
    "ale-lives": ("gymnasium", {"episodic_life": True}),
    "ale-colour": ("gymnasium", {"grayscale": False}),
    "ale-two-frames": ("gymnasium", {"stack_num": 2, "noop_max": 1}),
    "ale-limit": ("gymnasium", {"max_num_frames_per_episode": 200}),
    "envpool": ("envpool", {}),
    "envpool-colour": ("envpool", {"gray_scale": False}),
    "envpool-lives": ("envpool", {"episodic_life": True}),
    "envpool-limit": ("envpool", {"max_episode_steps": 50}),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("case", ATARI_CASES)
def test_a_frame_need_be_stored_only_once(case: str) -> None:
    """Every stack of an unroll is rebuilt from its newest frames alone, by the rule that ``EnvSpec`` states."""
    backend, args = ATARI_CASES[case]
    env = atari(2, backend, **args)
    spec, stack = env.spec, env.spec.frame_stack
    assert spec.observation_dtype == "uint8"
    if case == "envpool-lives":
        assert stack == 1
        env.close()
        return
    assert (stack, spec.frame_fill) == (args.get("stack_num", 4), "zero" if backend == "gymnasium" else "repeat")
    played = rows(env, np.random.default_rng(2).integers(0, spec.action.sizes[0], (300, 2)))
    env.close()
    done = played["terminated"] | played["truncated"]
    assert done.sum() >= 2
    stacks = played["observations"].reshape(301, 2, stack, -1, 84, 84)
    assert stacks.shape[3] == (3 if "colour" in case else 1)
    newest = stacks[:, :, -1]
    valid = valid_rows(played)
    for i in range(2):
        started = 0
        for t in range(301):
            if t and not valid[t - 1, i]:
                started = t
            fill = newest[started, i] if spec.frame_fill == "repeat" else np.zeros_like(newest[0, 0])
            frames = [newest[k, i] if k >= started else fill for k in range(t - stack + 1, t + 1)]
            np.testing.assert_array_equal(stacks[t, i], frames)


def test_ales_two_autoreset_modes_show_the_same_episodes() -> None:
    """What NEXT_STEP shows in its final rows is what SAME_STEP hands out as final observations."""
    args: dict[str, object] = {"episodic_life": False, "max_num_frames_per_episode": 160}
    next_step, same_step = atari(1, **args), atari(1, autoreset_mode="SameStep", **args)
    assert (next_step.spec.autoreset, same_step.spec.autoreset) == ("next_step", "same_step")
    actions = np.random.default_rng(4).integers(0, 4, (150, 1))
    ours, theirs = next_step.reset(), same_step.reset()
    episodes = 0
    for action in actions:
        np.testing.assert_array_equal(ours, theirs)
        ours, *flags = next_step.step(action)
        theirs, *their_flags = same_step.step(action)
        np.testing.assert_array_equal(flags, their_flags)
        if flags[1] | flags[2]:
            np.testing.assert_array_equal(ours, same_step.final_observations)
            assert not np.array_equal(ours, theirs)
            ours, *flags = next_step.step(action)
            assert not np.any(flags)
            episodes += 1
    assert episodes >= 3
    next_step.close()
    same_step.close()


def test_atari_counts_frames_and_truncates() -> None:
    env = atari(2, game="ALE/Pong-v5", max_num_frames_per_episode=100, noop_max=0, use_fire_reset=False)
    played = rows(env, np.zeros((90, 2), np.int64))
    env.close()
    check_resets(played, 25)
    assert not played["terminated"].any()


def test_atari_scores_as_the_single_game_does() -> None:
    """The same actions in the plain emulator, four frames each and nothing random: the same rewards and ends."""
    env = atari(1, game="ALE/Pong-v5", noop_max=0, use_fire_reset=False)
    raw: Any = gymnasium.make(
        "ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0, disable_env_checker=True, obs_type="ram"
    )
    raw.reset(seed=0)
    env.reset()
    actions = np.random.default_rng(5).integers(0, 6, 1200)
    scores = 0
    for action in actions:
        _, rewards, terminated, truncated = env.step(np.array([action]))
        _, reward, ends, cuts, _ = raw.step(int(action))
        assert (rewards[0], terminated[0], truncated[0]) == (reward, ends, cuts)
        scores += abs(reward)
        if ends or cuts:
            break
    assert scores >= 10
    env.close()
    raw.close()


def test_atari_leaves_stickiness_and_clipping_to_the_user() -> None:
    first, second = (atari(2), atari(2, repeat_action_probability=0.25))
    actions = np.random.default_rng(6).integers(0, 4, (60, 2))
    plain, sticky = rows(first, actions), rows(second, actions)
    assert not np.array_equal(plain["observations"], sticky["observations"])
    big = atari(1, game="ALE/SpaceInvaders-v5")
    played = rows(big, np.random.default_rng(7).integers(0, 6, (250, 1)))
    assert played["rewards"].max() > 1
    for env in (first, second, big):
        env.close()
