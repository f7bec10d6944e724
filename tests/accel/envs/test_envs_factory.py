"""Making environments: which implementation, wrappers, arguments, seeds, and one clear message for every mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from accel.envs.base import VectorEnvironment
from accel.envs.factory import make_vector_env
from accel.envs.loop import EnvLoop
from accel.envs.seeding import env_seeds
from accel.envs.vectorised import VectorisedEnv
from accel.errors import EnvError, MissingExtraError
from tests.environments.closed_form import ClosedFormVectorEnv

ROOT = Path(__file__).parents[3]
CLOSED_FORM = "tests.environments:ClosedForm-v0"
HERE = "tests.accel.envs.test_envs_factory"


def shift_rewards(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward + 100)


def double_rewards(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * 2)


def stack_frames(env: Any) -> Any:
    return gymnasium.wrappers.FrameStackObservation(env, 3)


def forget_to_return(env: Any) -> None:
    return None


def fail(env: Any) -> Any:
    raise ValueError("a wrapper's own mistake")


def play(env: VectorEnvironment, steps: int = 30) -> list[np.ndarray]:
    shown = [env.reset().copy()]
    shown += [
        env.step(np.ones((env.num_envs, *env.spec.action.shape), env.spec.action.dtype))[0].copy() for _ in range(steps)
    ]
    return shown


@pytest.mark.parametrize(
    ("options", "implementation"),
    [
        ({"id": "CartPole-v1"}, "vector"),
        ({"id": "CartPole"}, "vector"),
        ({"id": "gymnasium:CartPole-v1"}, "vector"),
        ({"id": "CartPole-v1", "env_args": {"sutton_barto_reward": True}}, "vector"),
        ({"id": "CartPole-v1", "env_args": {"max_episode_steps": 7}}, "vector"),
        ({"id": "CartPole-v1", "env_args": {"max_episode_steps": -1}}, "loop"),
        ({"id": "CartPole-v1", "wrappers": [f"{HERE}:shift_rewards"]}, "loop"),
        ({"id": "Pendulum-v1", "env_args": {"g": 5.0}}, "loop"),
        ({"id": CLOSED_FORM}, "loop"),
        ({"id": "tests.environments:ClosedFormNextStep-v0"}, "vector"),
        # Arguments that only the single environment takes:
        ({"id": "tests.environments:ClosedFormNextStep-v0", "env_args": {"box_actions": True}}, "loop"),
        # A few step faster alone than as a numpy vector:
        ({"id": "CartPole-v1", "num_envs": 2}, "loop"),
    ],
)
def test_the_fastest_exact_implementation_is_taken(options: dict[str, Any], implementation: str) -> None:
    env = make_vector_env(**{"num_envs": 8, **options})
    assert env.implementation == implementation
    env.close()
    env.close()


def test_arguments_reach_the_environment() -> None:
    env = make_vector_env("CartPole-v1", 2, env_args={"sutton_barto_reward": True})
    env.reset()
    np.testing.assert_array_equal(env.step(np.zeros(2, np.int64))[1], [0, 0])
    gentle, heavy = (play(make_vector_env("Pendulum-v1", 1, env_args={"g": g}))[-1] for g in (0.0, 10.0))
    assert not np.array_equal(gentle, heavy)


def test_wrappers_apply_in_the_order_given() -> None:
    rewards = []
    for order in (["shift_rewards", "double_rewards"], ["double_rewards", "shift_rewards"]):
        env = make_vector_env(CLOSED_FORM, 1, wrappers=[f"{HERE}:{name}" for name in order])
        env.reset()
        rewards.append(float(env.step(np.zeros(1, np.int64))[1][0]))
    assert rewards == [202.0, 102.0]


def test_wrapped_environments_keep_their_time_limit_and_shapes() -> None:
    env = make_vector_env("tests.environments:ClosedFormLimited-v0", 1, wrappers=[f"{HERE}:stack_frames"], seed=0)
    assert env.spec.observation_shape == (9,)
    env.reset()
    flags = [bool(env.step(np.zeros(1, np.int64))[3][0]) for _ in range(40)]
    assert any(flags)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "CartPol-v1"}, "unknown environment 'CartPol-v1': did you mean CartPole-v1"),
        ({"id": "cartpole-v1"}, "CartPole-v1"),
        ({"id": "CartPole-v9"}, "CartPole-v1"),
        ({"id": "Nowhere/Nothing-v0"}, "module:id"),
        ({"id": "MiniGrid-Nowhere-v0"}, r"minigrid must be .*--env minigrid:MiniGrid-Nowhere-v0 --wrapper minigrid"),
        ({"id": "dm_control/nobody-v0"}, r"shimmy must be .*--env shimmy:dm_control/nobody-v0"),
        ({"id": "shimmy:dm_control/nobody-v0"}, r"shimmy must be .*pip install 'shimmy\[dm-control\]'"),
        ({"id": "procgen:procgen-coinrun-v0"}, r"procgen must be .*--env shimmy:GymV21Environment-v0"),
        ({"id": "procgen-coinrun-v0"}, r"procgen must be .*--env-arg env_id=procgen:procgen-coinrun-v0"),
        ({"id": "mpe2/simple_spread_v3"}, r"--backend pettingzoo"),
        ({"id": "not an id"}, "unknown environment"),
        ({"id": ""}, "unknown environment"),
        ({"id": "no_such_module:X-v0"}, "no_such_module"),
        ({"id": "CartPole-v1", "env_args": {"gravitas": 3}}, "gravitas"),
        ({"id": "CartPole-v1", "env_args": {"num_envs": 3}}, "num_envs"),
        ({"id": "Pendulum-v1", "env_args": {"max_episode_steps": 0}}, "max_episode_steps is 0"),
        ({"id": "Pendulum-v1", "env_args": {"max_episode_steps": "ten"}}, "max_episode_steps is 'ten'"),
        ({"id": "CartPole-v1", "env_args": {"max_episode_steps": 0}, "num_envs": 8}, "max_episode_steps is 0"),
        ({"id": "CartPole-v1", "env_args": {"max_episode_steps": "ten"}, "num_envs": 8}, "max_episode_steps is 'ten'"),
        ({"id": "CartPole-v1", "num_envs": 0}, "at least one"),
        ({"id": "CartPole-v1", "backend": "magic"}, "choose gymnasium, envpool, pettingzoo or device"),
        ({"id": "CartPole-v1", "squash_actions": True}, "Box action space"),
        ({"id": "tests.environments:ClosedFormUnlabelled-v0"}, "autoreset_mode"),
        ({"id": CLOSED_FORM, "wrappers": ["nonsense"]}, "not of the form package.module:function"),
        ({"id": CLOSED_FORM, "wrappers": [f"{HERE}:missing"]}, "has no function 'missing'"),
        ({"id": CLOSED_FORM, "wrappers": ["no_such_module:f"]}, "no_such_module"),
        ({"id": CLOSED_FORM, "wrappers": [f"{HERE}:forget_to_return"]}, "returned NoneType"),
        ({"id": CLOSED_FORM, "wrappers": [f"{HERE}:fail"]}, "ValueError: a wrapper's own mistake"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*metadata.*:UserWarning")
def test_bad_input_is_one_clear_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        make_vector_env(**{"num_envs": 1, **options})
    assert "\n" not in str(caught.value)


def test_a_broken_environment_is_made_anew_by_a_reset_too() -> None:
    env = make_vector_env("CartPole-v1", 2, wrappers=["tests.environments.troubled:Raises"])
    env.reset(seed=0)
    while not env.failures:
        env.step(np.zeros(2, np.int64))
    assert len(env.failures[0].error) < 5000 and len(env.failures[0].traceback) < 20_000
    env.failures.clear()
    env.reset(seed=0)
    _, rewards, terminated, truncated = env.step(np.zeros(2, np.int64))
    assert rewards[env.num_envs - 1] == 1.0 and not (terminated | truncated).any() and not env.failures
    env.close()


ENVPOOL: dict[str, Any] = {"id": "CartPole-v1", "backend": "envpool"}
PONG: dict[str, Any] = {"id": "ALE/Pong-v5", "num_envs": 2}


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        ("envpool", ENVPOOL | {"id": "CartPol-v1"}, "did you mean CartPole-v1"),
        ("envpool", ENVPOOL | {"id": CLOSED_FORM}, "backend gymnasium"),
        ("envpool", ENVPOOL | {"env_args": {"gravitas": 3}}, "gravitas"),
        ("envpool", ENVPOOL | {"env_args": {"batch_size": 1}}, "batch_size"),
        ("envpool", ENVPOOL | {"wrappers": [f"{HERE}:fail"]}, "use backend gymnasium"),
        ("envpool", ENVPOOL | {"render": True}, "use backend gymnasium"),
        ("envpool", ENVPOOL | {"squash_actions": True}, "Box action space"),
        ("ale_py", PONG | {"id": "ALE/Pongg-v5"}, "did you mean ALE/Pong-v5"),
        ("ale_py", PONG | {"env_args": {"frame_skip": 4}}, "frameskip"),
        ("ale_py", PONG | {"env_args": {"frameskip": 0}}, "frameskip"),
        ("ale_py", PONG | {"env_args": {"batch_size": 1}}, "batch_size"),
        ("ale_py", PONG | {"env_args": {"life_loss_info": True}}, "use episodic_life=True"),
    ],
)
def test_bad_input_to_others_vectors_is_one_clear_message(module: str, options: dict[str, Any], message: str) -> None:
    pytest.importorskip(module, reason="needs the extra of its name")
    with pytest.raises(EnvError, match=message) as caught:
        make_vector_env(**{"num_envs": 1, **options})
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_its_extra() -> None:
    """In a process in which none of them can be imported."""
    extras = {"ALE/Pong-v5": "atari", "HalfCheetah-v5": "mujoco", "LunarLander-v3": "box2d", "CartPole-v1": "envpool"}
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["ale_py", "mujoco", "Box2D", "envpool"]))
from accel.envs.factory import make_vector_env
for name, extra in {extras}.items():
    try:
        make_vector_env(name, 1, backend="envpool" if extra == "envpool" else "gymnasium")
    except Exception as error:
        print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for told, extra in zip(result.stdout.splitlines(), extras.values(), strict=True):
        assert told.startswith(MissingExtraError.__name__) and f"[{extra}]" in told, result.stdout + result.stderr


def test_seeds_are_a_function_of_run_actor_and_environment() -> None:
    seeds = env_seeds((3, 1), 4)
    assert seeds == env_seeds((3, 1), 4)
    assert seeds[:2] == env_seeds((3, 1), 2)
    everyone = [seed for run in range(3) for actor in range(20) for seed in env_seeds((run, actor), 16)]
    assert len(set(everyone)) == len(everyone)
    assert all(0 <= seed < 2**31 for seed in everyone)
    assert env_seeds(3, 4) != env_seeds((3, 0), 4)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", CLOSED_FORM])
def test_the_same_seed_plays_the_same(name: str) -> None:
    first, again, other = (play(make_vector_env(name, 3, seed=(7, actor))) for actor in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_reset_reseeds_only_when_told(backend: Any) -> None:
    if backend == "envpool":
        pytest.importorskip("envpool", reason="needs the extra [envpool]")
    env = make_vector_env("Pendulum-v1", 2, seed=(1, 2), backend=backend)
    first = env.reset().copy()
    went_on = env.reset().copy()
    assert not np.array_equal(first, went_on)
    np.testing.assert_array_equal(env.reset((1, 2)), first)
    np.testing.assert_array_equal(env.reset(), went_on)
    assert not np.array_equal(env.reset((1, 3)), first)
    assert len({row.tobytes() for row in first}) == 2
    env.close()


def test_next_step_environments_have_no_final_observations() -> None:
    with pytest.raises(AttributeError, match="next_step"):
        _ = make_vector_env("CartPole-v1", 1).final_observations


def test_mujocos_warnings_are_logged_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mujoco", reason="needs the extra [mujoco]")
    monkeypatch.chdir(tmp_path)
    env: Any = make_vector_env("HalfCheetah-v5", 1)
    env.reset()
    single = env.envs[0].unwrapped
    for _ in range(3):
        single.set_state(np.full(9, 1e9), np.full(9, 1e12))
        env.step(np.ones((1, 6), np.float32))
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any(message.startswith("MuJoCo: ") for message in warned)
    assert len(set(warned)) == len(warned)
    assert not list(tmp_path.iterdir())


def test_pictures_are_drawn_where_asked_for() -> None:
    env = make_vector_env("tests.environments:ClosedFormNextStep-v0", 2, render=True)
    assert env.implementation == "loop"
    env.reset()
    before = env.render()
    env.step(np.zeros(2, np.int64))
    assert before.shape == (6, 5, 3)
    assert before.dtype == np.uint8
    assert not np.array_equal(env.render(), before)
    for undrawn in (make_vector_env(CLOSED_FORM, 1), make_vector_env("CartPole-v1", 1)):
        undrawn.reset()
        with pytest.raises(EnvError, match="render"):
            undrawn.render()


def test_atari_draws_what_the_policy_sees() -> None:
    pytest.importorskip("ale_py", reason="needs the extra [atari]")
    cases: list[tuple[dict[str, object], int]] = [({}, 1), ({"grayscale": False}, 3)]
    for args, channels in cases:
        env = make_vector_env("ALE/Pong-v5", 2, render=True, env_args=args)
        env.reset()
        observations, _, _, _ = env.step(np.zeros(2, np.int64))
        picture = env.render()
        assert picture.shape == (336, 336, 3)
        np.testing.assert_array_equal(picture[::4, ::4, 0], observations[0, -channels])
        np.testing.assert_array_equal(picture[3::4, 3::4, 2], observations[0, -1])
        env.close()


def test_a_same_step_environment_must_give_final_observations() -> None:
    class Forgetful(ClosedFormVectorEnv):
        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            return *super().step(actions)[:4], {}

    env = VectorisedEnv(Forgetful(3, autoreset_mode="same_step"), seed=0)
    env.reset()
    with pytest.raises(EnvError, match="final_obs"):
        for _ in range(5):
            env.step(np.zeros(3, np.int64))


def test_environments_that_disagree_are_refused() -> None:
    made: Any = iter([gymnasium.make("CartPole-v1"), gymnasium.make("Acrobot-v1")])
    with pytest.raises(EnvError, match="different spaces"):
        EnvLoop(lambda: next(made), 2, seed=0)
