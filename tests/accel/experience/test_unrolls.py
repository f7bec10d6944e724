"""The actor's unrolls against an environment whose every row and return is a formula, across unroll boundaries."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

from accel.acting.actor import UnrollCollector
from accel.acting.rules import make_sampler
from accel.envs.factory import make_vector_env
from accel.envs.loop import EnvLoop
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.unroll import UnrollLayout, restack_frames
from tests.environments.closed_form import episode_return, script

ENVS = 5


class UniformPolicy:
    """Acts from constant logits: what it does is known from the recorded actions alone."""

    version = 7
    scheme = "fp32"

    def __init__(self, sampler):
        self._sampler = sampler
        self.first_rows = []

    def sign(self, unroll):
        unroll["policy_version"][...], unroll["scheme_id"][...] = self.version, 3

    def load(self, update):
        raise AssertionError("nothing is loaded here")

    def act(self, observations, first, t, actions, params):
        params[...] = 0.0
        self._sampler.sample(params, t, actions)

    def states(self):
        return ()


def collect(env, length, count):
    """Unrolls of an environment, or of one of this name."""
    environment = make_vector_env(f"tests.environments:{env}", ENVS, seed=0) if isinstance(env, str) else env
    envs = environment.num_envs
    sampler = make_sampler(environment.spec.action, envs, length, np.random.default_rng(0))
    layout = UnrollLayout(environment.spec, length, envs)
    collector = UnrollCollector(environment, UniformPolicy(sampler), sampler, layout)
    unrolls = []
    for _ in range(count):
        unroll = layout.view(np.full(layout.nbytes, 255, np.uint8))
        collector.collect(unroll)
        unrolls.append(unroll)
    environment.close()
    return unrolls


def joined(unrolls, name, rows=None):
    return np.concatenate([u[name][: len(u["rewards"])] for u in unrolls])


@pytest.mark.parametrize("env_id", ["ClosedForm-v0", "ClosedFormNextStep-v0", "ClosedFormSameStep-v0"])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_episodes_have_their_returns_and_lengths(env_id, length):
    unrolls = collect(env_id, length, count=-(-42 // length))
    returns, lengths = joined(unrolls, "episode_return"), joined(unrolls, "episode_length")
    actions, valid = joined(unrolls, "actions"), joined(unrolls, "valid")
    terminated, truncated = joined(unrolls, "terminated"), joined(unrolls, "truncated")
    done = terminated | truncated
    assert np.array_equal(done, lengths > 0)
    for env in range(ENVS):
        start, episode = 0, 0
        stream = first_stream(unrolls[0], env)
        for row in np.flatnonzero(done[:, env]):
            expected_length, ending = script(stream, episode)
            rows = [r for r in range(start, row + 1) if valid[r, env]]
            assert len(rows) == expected_length == lengths[row, env]
            assert returns[row, env] == episode_return(episode, expected_length, actions[rows, env].sum())
            assert (terminated[row, env], truncated[row, env]) == (ending != "truncated", ending != "terminated")
            start, episode = row + 1, episode + 1
        assert episode >= 5


class Penalties(gymnasium.Env):
    """Episodes of three steps; the second one of each environment ends in an infinite penalty."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        reward = -np.inf if self.episode == 1 and self.t == 3 else 1.0
        return np.zeros(1, np.float32), reward, self.t == 3, False, {}


@pytest.mark.parametrize("length", [1, 2, 5, 24])
def test_an_infinite_return_is_that_of_its_episode_alone(length):
    unrolls = collect(EnvLoop(Penalties, 2, seed=0), length, count=-(-24 // length))
    returns = [r for u in unrolls for r in u["episode_return"][u["episode_length"][:, 0] == 3, 0].tolist()]
    assert len(returns) >= 6
    assert returns == [3.0, -np.inf] + [3.0] * (len(returns) - 2)


def first_stream(unroll, env):
    """An observation encodes (episode, step, stream)."""
    return int(unroll["observations"][0, env, 2])


@pytest.mark.parametrize("env_id", ["ClosedForm-v0", "ClosedFormNextStep-v0"])
@pytest.mark.parametrize("length", [1, 4])
def test_next_step_rows_carry_final_observation_then_one_invalid_row(env_id, length):
    unrolls = collect(env_id, length, count=40 // length)
    valid, first = joined(unrolls, "valid"), joined(unrolls, "first")
    done = joined(unrolls, "terminated") | joined(unrolls, "truncated")
    observations = joined(unrolls, "observations")
    assert np.array_equal(valid[1:], ~done[:-1])
    assert first[0].all() and np.array_equal(first[1:], ~valid[:-1])
    rows, envs = np.nonzero(done[:-2])
    assert np.array_equal(observations[rows + 1, envs, 1], joined(unrolls, "episode_length")[rows, envs])
    assert (observations[rows + 2, envs, 1] == 0).all()
    assert (joined(unrolls, "rewards")[~valid] == 0).all()
    assert sum(u.valid_steps for u in unrolls) == valid.sum()


def test_same_step_keeps_the_final_observation_beside():
    unrolls = collect("ClosedFormSameStep-v0", 4, count=10)
    done = joined(unrolls, "terminated") | joined(unrolls, "truncated")
    assert joined(unrolls, "valid").all()
    assert np.array_equal(joined(unrolls, "first")[1:], done[:-1])
    rows, envs = np.nonzero(done)
    final = joined(unrolls, "final_observations")[rows, envs]
    assert np.array_equal(final[:, 1], joined(unrolls, "episode_length")[rows, envs])


@pytest.mark.parametrize("length", [2, 5])
def test_the_last_row_is_the_next_unrolls_first(length):
    unrolls = collect("ClosedForm-v0", length, count=8)
    for before, after in pairwise(unrolls):
        for name in ("observations", "first", "valid"):
            assert np.array_equal(before[name][-1], after[name][0])
    assert [u.sequence for u in unrolls] == list(range(8))


def test_every_byte_of_every_field_is_written():
    (unroll,) = collect("ClosedForm-v0", 6, count=1)
    assert np.allclose(unroll["behaviour_log_prob"], np.log(0.25))
    assert (unroll["policy_version"] == 7).all() and (unroll["scheme_id"] == 3).all() and unroll.oldest_version == 7
    assert np.isfinite(unroll["timings_s"][:3]).all() and (unroll["timings_s"][:3] >= 0).all()
    for name in ("rewards", "behaviour_params", "episode_return", "observations"):
        assert np.isfinite(unroll[name]).all()


def test_layouts_of_different_shape_have_different_digests():
    environment = make_vector_env("CartPole-v1", 2, backend="gymnasium", env_args={}, wrappers=(), seed=0)
    base = UnrollLayout(environment.spec, 4, 2)
    sizes: list[tuple[int, int, tuple[tuple[int, ...], ...]]] = [(5, 2, ()), (4, 3, ()), (4, 2, ((8,),))]
    others = [UnrollLayout(environment.spec, *size) for size in sizes]
    environment.close()
    assert len({base.digest, *(o.digest for o in others)}) == 4
    assert UnrollLayout(environment.spec, 4, 2).digest == base.digest
    with pytest.raises(ValueError, match="another layout"):
        base.view(np.zeros(base.nbytes + 64, np.uint8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fill", ["zero", "repeat"])
def test_frames_that_travel_once_rebuild_every_stack(fill, channels):
    rng = np.random.default_rng(0)
    stack, rows, envs = 4, 12, 3
    first = np.zeros((rows, envs), bool)
    first[0, 0] = first[3, 1] = first[4, 2] = first[11, 2] = True
    newest = rng.integers(1, 255, (rows, envs, channels, 2, 2), dtype=np.uint8)
    stacks = np.zeros((rows, envs, stack, channels, 2, 2), np.uint8)
    history = rng.integers(1, 255, (envs, stack, channels, 2, 2), dtype=np.uint8)
    for row in range(rows):
        for env in range(envs):
            if first[row, env]:
                history[env] = newest[row, env] if fill == "repeat" else 0
            history[env] = np.concatenate([history[env, 1:], newest[row, env][None]])
            stacks[row, env] = history[env]
    frames = np.concatenate([stacks[0].swapaxes(0, 1)[:-1], newest])
    stacks = stacks.reshape(rows, envs, stack * channels, 2, 2)
    action = ActionSpec("categorical", (2,))
    spec = EnvSpec((stack * channels, 2, 2), "uint8", action, frame_stack=stack, frame_fill=fill)
    assert np.array_equal(restack_frames(frames, first, spec), stacks)
    out = np.moveaxis(np.empty((rows, envs, 2, 2, stack * channels), np.uint8), -1, 2)
    assert restack_frames(frames, first, spec, out) is out and np.array_equal(out, stacks)
    other = replace(spec, frame_fill="repeat" if fill == "zero" else "zero")
    assert not np.array_equal(restack_frames(frames, first, other), stacks)
