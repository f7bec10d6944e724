"""Environments that raise: one of several is made anew, its rows are left out, and the others never notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from accel.config import TrainConfig
from accel.envs.loop import EnvLoop
from accel.envs.masks import announces_masks
from accel.errors import EnvError, InterfaceError
from accel.launch.train import train
from tests.accel.acting.test_ready import Run
from tests.accel.publishing.live_policies import config_for
from tests.environments.given import ZEROS, Given, shown

EPISODE = 7


class Fragile(gymnasium.Env[Any, Any]):
    """Counts its steps in what it shows; episodes of seven. Number ``broken`` raises in step ``breaks_at``."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, breaks_at: dict[int, int]) -> None:
        self.number = Fragile.made
        Fragile.made += 1
        self.breaks_at = breaks_at.get(self.number, 10**9)
        self.steps = self.t = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.t = 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.t += 1
        if self.steps == self.breaks_at:
            raise ValueError("the simulator broke")
        return np.array([self.number, self.t], np.float32), 1.0, self.t == EPISODE, False, {}


STEP, RESET = r"environment 0, step\(\): ", r"environment 0, reset\(\): "
FORMS = {
    "four values": ((ZEROS, 1.0, False, {}), STEP + "it gave four values, as in the old gym interface"),
    "nothing": (None, STEP + "its result is not .*cannot unpack"),
    "another shape": (shown(np.zeros(4)), STEP + r".*shape \(4,\).*does not have the shape"),
    "a word for a reward": ((ZEROS, "1.0", False, False, {}), STEP + r"the reward '1.0' \(a str\) is not one number"),
    "none for a reward": ((ZEROS, None, False, False, {}), STEP + r"the reward None \(a NoneType\) is not one number"),
    "a word for an end": ((ZEROS, 1.0, "false", False, {}), STEP + r"'false' \(a str\) is no end of an episode"),
    "an array for a reward": ((ZEROS, np.ones(1), False, False, {}), STEP + r"the reward .*ndarray of shape \(1,\)"),
    "a time for a reward": ((ZEROS, np.timedelta64(1, "s"), False, False, {}), STEP + r"the reward .*a timedelta64\)"),
    "a date for a reward": ((ZEROS, np.datetime64("2026"), False, False, {}), STEP + r"the reward .*a datetime64\)"),
    "a list for a reward": ((ZEROS, [1.0, 2.0], False, False, {}), STEP + r"the reward .*list of shape \(2,\)"),
}


@pytest.mark.parametrize("name", [*FORMS, "four values in a wrapper"])
def test_a_step_of_another_form_is_named(name: str) -> None:
    result, told = FORMS[name.removesuffix(" in a wrapper")]
    made: Any = Given(result)
    env = gymnasium.wrappers.TimeLimit(made, 10) if name.endswith("wrapper") else made
    loop = EnvLoop(lambda: env, 1, seed=1)
    loop.reset()
    with pytest.raises(InterfaceError, match=told):
        loop.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("first", "told"),
    [(ZEROS, r"its result is not \(observation, info\)"), ((np.zeros(1), {}), r".*shape \(1,\).*Box")],
)
def test_a_reset_of_another_form_is_named(first: object, told: str) -> None:
    with pytest.raises(InterfaceError, match=RESET + told):
        EnvLoop(lambda: Given(first=first), 2, seed=1).reset()


def test_a_first_reset_that_raises_is_named_with_its_place() -> None:
    class Raising(Given):
        def reset(self, **_: object) -> tuple[Any, dict[str, Any]]:
            raise RuntimeError("always")

    told = RESET + rf"it raised RuntimeError: always \({__file__}, line \d+\): mend the environment"
    with pytest.raises(EnvError, match=told):
        EnvLoop(Raising, 2, seed=1).reset()


@pytest.mark.parametrize("error", [ValueError("not enough values to unpack (expected 5, got 4)"), TypeError("own")])
def test_an_error_inside_an_environment_stays_as_it_is(error: Exception) -> None:
    loop = EnvLoop(lambda: Given(error), 2, seed=1)
    loop.reset()
    actions = np.zeros(2, np.int64)
    with pytest.raises(
        EnvError, match=f"environment [01] raised again before an .*: {type(error).__name__}: "
    ) as found:
        for _ in range(3):  # raises, is made anew, raises again
            loop.step(actions)
    assert found.value.__cause__ is error


def test_an_error_without_a_message_is_told_by_its_kind() -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    loop = EnvLoop(lambda: Given(SpeechlessError()), 1, seed=1)
    loop.reset()
    with pytest.raises(EnvError, match=r"again before .*: SpeechlessError, of which no message can be made"):
        for _ in range(3):
            loop.step(np.zeros(1, np.int64))


def test_infos_that_are_none_are_taken_for_empty_ones() -> None:
    env = Given((ZEROS, 1.0, False, False, None), (ZEROS, None))
    assert not announces_masks(env, 0)
    loop = EnvLoop(lambda: env, 1, seed=0)
    loop.reset()
    assert loop.step(np.zeros(1, np.int64))[1].tolist() == [1.0]


def loop_of(breaks_at: dict[int, int], envs: int = 3) -> EnvLoop:
    Fragile.made = 0
    loop = EnvLoop(lambda: Fragile(breaks_at), envs, seed=(0, 1))
    loop.reset()
    return loop


def rows(loop: EnvLoop, count: int) -> dict[str, np.ndarray]:
    taken = [[np.array(part) for part in loop.step(np.zeros(loop.num_envs, np.int64))] for _ in range(count)]
    names = ("observations", "rewards", "terminated", "truncated")
    return {name: np.array([parts[k] for parts in taken]) for k, name in enumerate(names)}


def test_one_that_raises_is_made_anew_and_the_others_go_on_as_they_would() -> None:
    whole, loop = rows(loop_of({}), 20), loop_of({1: 5})
    broken = rows(loop, 20)
    for name, values in broken.items():
        assert np.array_equal(values[:, [0, 2]], whole[name][:, [0, 2]]), name
    (failure,) = loop.failures
    assert (failure.tick, failure.environment, failure.error) == (5, 1, "ValueError: the simulator broke")
    assert "in step" in failure.traceback
    # The row of the failure pays nothing and asks for a reset; the next one is the new environment's first.
    assert broken["truncated"][4, 1] and not broken["terminated"][4, 1] and broken["rewards"][4, 1] == 0
    assert broken["observations"][5:8, 1].tolist() == [[3, 0], [3, 1], [3, 2]]
    first, second = (env.seeds[0] for env in (loop.envs[0], loop.envs[1]))  # type: ignore[attr-defined]
    assert second is not None and second not in (first, loop_of({}).envs[1].seeds[0])  # type: ignore[attr-defined]


def test_one_that_raises_again_before_it_has_ended_an_episode_raises_for_all() -> None:
    loop = loop_of({1: 5, 3: 4})
    with pytest.raises(EnvError, match="environment 1 raised again before an episode of it ended: ValueError: the sim"):
        rows(loop, 20)
    again = loop_of({1: 5, 3: EPISODE + 4})
    rows(again, 40)
    assert [failure.environment for failure in again.failures] == [1, 1]


def test_one_that_cannot_be_made_again_raises_for_all() -> None:
    loop = loop_of({1: 5})

    def refuse() -> gymnasium.Env[Any, Any]:
        raise OSError("no licence left")

    loop.make_env = refuse
    with pytest.raises(EnvError, match=r"environment 1 raised again before .*: OSError: no licence left"):
        rows(loop, 20)


def test_its_part_of_the_unroll_is_left_out_and_reported() -> None:
    """And the episode that it cut off is none."""
    gymnasium.register("Fragile-v0", entry_point=lambda: Fragile({1: 12}))
    Fragile.made = 0
    run = Run(config_for("mlp:16x1", "fp32", env="Fragile-v0", envs_per_actor=3, unroll_length=8))
    seen = []
    for _ in range(4):
        unroll = run.step()
        seen.append((unroll["valid"][:8].sum(0).tolist(), unroll["episode_length"].sum(0).tolist(), unroll.valid_steps))
    run.actor.close()
    assert [valid[1] for valid, _, _ in seen] == [7, 0, 7, 7]
    assert [sum(valid) == count for valid, _, count in seen] == [True] * 4
    assert seen[1][1][1] == 0 and seen[1][1][0] == EPISODE, "an episode that was cut off is not counted"
    ((actor_number, told),) = run.learner.messages()
    assert actor_number == 0 and told["environment"] == 1 and "the simulator broke" in str(told["raised"])


@pytest.mark.slow
def test_a_run_whose_environments_leave_no_step_to_learn_from_ends(tmp_path: Path) -> None:
    config = TrainConfig.create(
        env="CartPole-v1", wrapper=("tests.environments.troubled:RaisesInNinthReset",), actors=0, envs_per_actor=1,
        algorithm="ppo", unroll_length=384, network="mlp:8x1", total_env_steps=100_000, compressor="fp32",
        results_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(EnvError, match="the last 101 unrolls have no step to learn from"):
        train(config)
