"""Observation layouts against gymnasium's flattening, action converters against the spaces they serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from accel.acting.rules import make_sampler
from accel.envs.actions import action_converter, action_spec
from accel.envs.loop import EnvLoop
from accel.envs.observations import ObservationLayout, observation_layout
from accel.envs.spaces import ActionSpec, EnvSpec, ObservationPart, lay_out_record
from accel.envs.vectorised import VectorisedEnv
from accel.errors import EnvError, InterfaceError
from tests.environments.closed_form import ClosedFormEnv
from tests.environments.given import Given, shown

AnySpace = spaces.Space[Any]
lengths = st.integers(1, 4)
leaves = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), lengths, st.integers(-3, 3)),
    st.builds(lambda nvec: spaces.MultiDiscrete(nvec), st.lists(lengths, min_size=1, max_size=3)),
    st.builds(
        lambda nvec: spaces.MultiDiscrete([nvec, nvec], start=[[2] * len(nvec)] * 2), st.lists(lengths, min_size=1)
    ),
    st.builds(lambda n: spaces.MultiBinary(n), lengths),
    st.builds(
        lambda shape, dtype: spaces.Box(0, 9, tuple(shape), dtype),
        st.lists(lengths, max_size=2),
        st.sampled_from([np.float64, np.float32, np.int64, np.int16]),
    ),
)
flattenable = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda parts: spaces.Tuple(parts), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: spaces.Dict(parts), st.dictionaries(st.sampled_from("zxay"), inner, min_size=1)),
    ),
    max_leaves=5,
)


def check_rows(layout: ObservationLayout, samples: Sequence[Any], batch: Any, wanted: Any) -> None:
    """Samples are written one by one, and as a batch, over what was there; a view of the batch is the same."""
    rows = layout.empty(len(samples))
    for sample, row in zip(samples, rows, strict=True):
        row[...] = 7
        layout.check(sample)
        layout.write(sample, row)
    np.testing.assert_array_equal(rows, wanted)
    rows[...] = 7
    layout.write(batch, rows)
    np.testing.assert_array_equal(rows, wanted)
    view = layout.view_batch(batch)
    assert view is None or np.array_equal(view, wanted)


@given(space=flattenable, seed=st.integers(0, 1000))
def test_vectors_are_what_gymnasium_flattens(space: AnySpace, seed: int) -> None:
    layout = observation_layout(space)
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    wanted = np.stack([np.asarray(gymnasium.spaces.flatten(space, sample), np.float32) for sample in samples])
    assert (layout.shape, layout.dtype) == (wanted.shape[1:], "float32")
    check_rows(layout, samples, concatenate(space, samples, create_empty_array(space, 3)), wanted)
    if layout.is_plain:
        np.testing.assert_array_equal(wanted, np.asarray(samples, np.float32))


def test_an_index_out_of_range_is_refused_in_a_batch_too() -> None:
    layout = observation_layout(gymnasium.spaces.Discrete(4, start=1))
    rows = layout.empty(3)
    layout.write(np.array([1, 4, 2]), rows)
    assert rows.argmax(1).tolist() == [0, 3, 1]
    for odd in (0, 5):
        with pytest.raises(InterfaceError, match=f"the value {odd} of int64, which is out of range"):
            layout.write(np.array([1, odd, 2]), rows)


IMAGES = {
    "grey": ((5, 4), (1, 5, 4), lambda x: x[None]),
    "colour last": ((5, 4, 3), (3, 5, 4), lambda x: np.moveaxis(x, 2, 0)),
    "colour first": ((3, 5, 4), (3, 5, 4), lambda x: x),
    "ambiguous: last": ((4, 5, 4), (4, 4, 5), lambda x: np.moveaxis(x, 2, 0)),
    "stack of grey": ((4, 84, 84), (4, 84, 84), lambda x: x),
    "stack of grey, one channel": ((4, 8, 9, 1), (4, 8, 9), lambda x: x[..., 0]),
    "stack of colour last": ((2, 8, 9, 3), (6, 8, 9), lambda x: np.concatenate([np.moveaxis(f, 2, 0) for f in x])),
    "stack of colour first": ((2, 3, 8, 9), (6, 8, 9), lambda x: np.concatenate(list(x))),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_become_channels_first_and_stay_uint8(name: str) -> None:
    source, shape, reference = IMAGES[name]
    space = spaces.Box(0, 255, source, np.uint8)
    layout = observation_layout(space)
    assert (layout.shape, layout.dtype) == (shape, "uint8")
    images = np.random.default_rng(0).integers(0, 256, (3, *source)).astype(np.uint8)
    wanted = np.stack([reference(image) for image in images])
    check_rows(layout, images, images, wanted)


def test_bytes_that_are_no_image_are_a_vector() -> None:
    layout = observation_layout(spaces.Box(0, 255, (128,), np.uint8))
    assert (layout.shape, layout.dtype) == ((128,), "float32")


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Text(3),))}), r"\['b'\]\[0\] is Text"),
        (spaces.Box(0, 255, (2, 2, 2, 2, 2), np.uint8), "2 to 4 dimensions"),
        (spaces.Box(0, 1, (0,), np.float32), "no numbers"),
    ],
)
def test_observations_without_a_fixed_size_are_refused_by_name(space: AnySpace, named: str) -> None:
    with pytest.raises(EnvError, match=named):
        observation_layout(space)


BYTES = spaces.Box(0, 255, (3, 40, 40), np.uint8)
CONTRADICTIONS = {
    "floats for bytes": (BYTES, np.full(BYTES.shape, 0.5), "value 0.5 of float64.*bytes.*ImageBytes"),
    "floats for bytes, though zero": (BYTES, np.zeros(BYTES.shape, np.float32), "value 0.0 of float32"),
    "above bytes": (BYTES, np.full(BYTES.shape, 256), "value 256 of int64.*from 0 to 255"),
    "below bytes": (BYTES, np.full(BYTES.shape, -1, np.int8), "value -1 of int8"),
    "fractions for integers": (spaces.Box(0, 9, (2,), np.int64), np.array([1, 0.5]), "value 0.5 .* whole numbers"),
    "fractions for bits": (spaces.MultiBinary(2), np.array([0, 0.5]), "value 0.5 of float64"),
    "no index": (spaces.Discrete(4), 4, r"value 4 of int64, which is out of range.*Discrete\(4\)"),
    "a negative index": (spaces.Discrete(4), -1, "value -1"),
    "below the first index": (spaces.Discrete(4, start=2), np.int32(1), "value 1 of int32"),
    "a float for an index": (spaces.Discrete(4), 2.0, "value 2.0 of float64, which is no integer"),
    "indices": (spaces.MultiDiscrete([2, 3]), np.array([2, 0]), "value 2 of int64, which is out of range"),
    "a part": (spaces.Dict({"a": spaces.Dict({"b": BYTES})}), {"a": {"b": np.ones(BYTES.shape)}}, "'a'..'b'. has the"),
    "text": (spaces.Box(0, 1, (), np.float32), "high", "'?high.*no array of real numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_values_that_contradict_their_space_are_named(name: str, where: str) -> None:
    space, odd, named = CONTRADICTIONS[name]
    space.seed(0)
    loop = EnvLoop(lambda: Given(shown(odd), (odd if where == "reset" else space.sample(), {}), space), 2, seed=0)
    with pytest.raises(InterfaceError, match=rf"environment 0, {where}\(\): .*{named}"):
        loop.reset()
        loop.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("odd", [4, -1, 1.5])
def test_an_index_is_looked_at_in_every_step(odd: float) -> None:
    env = Given(shown(3), (0, {}), spaces.Discrete(4))
    loop = EnvLoop(lambda: env, 1, seed=0)
    loop.reset()
    for _ in range(3):
        loop.step(np.zeros(1, np.int64))
    env.result = shown(odd)
    with pytest.raises(InterfaceError, match=rf"environment 0, step\(\): .*value {odd} "):
        loop.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("space", "observation", "row"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1.0000001, -1.5]), [1.0000001, -1.5]),
        (spaces.Box(-1, 1, (2,), np.float32), [1, 0], [1, 0]),
        (spaces.Box(0, 1, (2,), np.float64), np.array([True, False]), [1, 0]),
        (spaces.Box(0, 9, (2,), np.int64), np.array([3.0, 12.0]), [3, 12]),
        (spaces.Discrete(3), np.uint8(2), [0, 0, 1]),
        (spaces.Discrete(3, start=-1), np.array(-1), [1, 0, 0]),
        (spaces.Discrete(2), np.bool_(True), [0, 1]),
        (spaces.MultiBinary(2), np.array([1.0, 0.0]), [1, 0]),
        (spaces.Box(0, 1, (1, 2), np.uint8), np.array([[255, 0]], np.int64), [[[255, 0]]]),
        (spaces.Box(0, 1, (1, 2), np.uint8), np.array([[True, False]]), [[[1, 0]]]),
    ],
)
def test_values_that_are_stored_as_they_are_pass(space: AnySpace, observation: Any, row: Any) -> None:
    loop = EnvLoop(lambda: Given(shown(observation), (observation, {}), space), 1, seed=0)
    np.testing.assert_array_equal(loop.reset(), np.array([row], loop.spec.observation_dtype))
    np.testing.assert_array_equal(loop.step(np.zeros(1, np.int64))[0], np.array([row], loop.spec.observation_dtype))


class Rows(VectorEnv[Any, Any, Any]):
    """A vector environment that shows one batch at a reset, and another one in each step."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_action_space = spaces.Discrete(2)

    def __init__(self, space: AnySpace, first: Any, later: Any, rewards: Any = None) -> None:
        self.single_observation_space, self.num_envs = space, len(first)
        self._first, self._later = first, later
        self._rewards = np.ones(self.num_envs) if rewards is None else rewards

    def reset(self, **_: object) -> tuple[Any, dict[str, Any]]:
        return self._first, {}

    def step(self, _: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = self.num_envs
        return self._later, self._rewards, np.zeros(rows, np.bool_), np.zeros(rows, np.bool_), {}


@pytest.mark.parametrize(
    ("space", "good", "odd"),
    [(BYTES, np.zeros((2, *BYTES.shape), np.uint8), np.ones((2, *BYTES.shape))),
     (spaces.Discrete(3), np.array([1, 2]), np.array([1, 3]))],
)  # fmt: skip
def test_a_vector_environments_values_are_looked_at_as_well(space: AnySpace, good: Any, odd: Any) -> None:
    with pytest.raises(InterfaceError, match="the observation has the value"):
        VectorisedEnv(Rows(space, odd, good), seed=0).reset()
    env = VectorisedEnv(Rows(space, good, odd), seed=0)
    env.reset()
    with pytest.raises(InterfaceError, match="the observation has the value"):
        env.step(np.zeros(2, np.int64))


def test_a_vector_environments_rewards_are_numbers() -> None:
    def stepped(rewards: object, count: int = 2) -> Any:
        rows = np.ones(count, np.int64)
        env = VectorisedEnv(Rows(spaces.Discrete(3), rows, rows, rewards), seed=0)
        env.reset()
        return env.step(np.zeros(count, np.int64))[1]

    for rewards in (["1.0", "2.0"], np.ones((2, 1)), np.array([1, 2], "m8[s]")):
        with pytest.raises(InterfaceError, match="is not one number"):
            stepped(rewards)
    assert stepped(2.5, 1) == 2.5


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(5), ActionSpec("categorical", (5,))),
        (spaces.Discrete(5, start=-2), ActionSpec("categorical", (5,))),
        (spaces.MultiDiscrete([3, 2]), ActionSpec("multi_categorical", (3, 2))),
        (spaces.MultiDiscrete([3, 2], start=[1, -1]), ActionSpec("multi_categorical", (3, 2))),
        (spaces.Box(-2, 3, (2,), np.float32), ActionSpec("gaussian", (2,), (-2.0, -2.0), (3.0, 3.0))),
        (spaces.Box(-1, 1, (2, 2), np.float64), ActionSpec("gaussian", (4,), (-1.0,) * 4, (1.0,) * 4)),
        (spaces.Box(-np.inf, 1, (), np.float32), ActionSpec("gaussian", (1,), (-np.inf,), (1.0,))),
    ],
)
def test_converted_actions_lie_in_the_space(space: AnySpace, spec: ActionSpec) -> None:
    assert action_spec(space, squash=False) == spec
    rng = np.random.default_rng(0)
    if spec.kind == "gaussian":
        low, high = np.clip(spec.low, -9, 9), np.clip(spec.high, -9, 9)
        actions = rng.uniform(low, high, (6, *spec.shape)).astype(spec.dtype)
    else:
        sizes = spec.sizes if spec.kind == "multi_categorical" else spec.sizes[0]
        actions = rng.integers(0, sizes, (6, *spec.shape))
    converted = action_converter(space)(actions)
    assert not np.shares_memory(converted, actions)
    assert all(space.contains(np.asarray(action)) for action in converted)
    restored = converted.reshape(actions.shape) - (0 if spec.kind == "gaussian" else space.start)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(restored, actions)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("bound", [0.4, np.pi, 0.1])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_actions_at_a_bound_stay_within_it(bound: float, squash: bool, dtype: type) -> None:
    space = spaces.Box(-bound, bound, (2,), dtype)
    sampler = make_sampler(action_spec(space, squash=squash), 2, 1, np.random.default_rng(0))
    actions = sampler.to_env(np.array([[90.0, -90.0], [0.0, 0.01]], np.float32))
    assert all(space.contains(action) for action in action_converter(space)(actions))


def test_squashing_is_for_bounded_boxes() -> None:
    assert action_spec(spaces.Box(-1, 1, (2,)), squash=True).squash
    with pytest.raises(EnvError, match="finite bounds"):
        action_spec(spaces.Box(-np.inf, 1, (2,)), squash=True)
    with pytest.raises(EnvError, match="Box action space"):
        action_spec(spaces.Discrete(2), squash=True)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([[2, 3], [2, 3]]),
        spaces.MultiBinary(3),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1))),
        spaces.Box(0, 1, (0,)),
    ],
)
def test_unsupported_action_spaces_are_named(space: AnySpace) -> None:
    with pytest.raises(EnvError, match=type(space).__name__):
        action_spec(space, squash=False)


def test_box_actions_of_any_shape_reach_the_environment() -> None:
    env = EnvLoop(lambda: ClosedFormEnv(box_actions=True), 2, seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 6)).astype(np.float32)
    before = actions.copy()
    env.reset()
    _, rewards, _, _ = env.step(actions)
    np.testing.assert_allclose(rewards, 1 + before.astype(np.float64).sum(axis=1) / 8, rtol=1e-6)
    assert env.spec.action == ActionSpec("gaussian", (6,), (-1.0,) * 6, (1.0,) * 6)


@pytest.mark.parametrize("parts", [[], [("action_mask", 3)], [("mask", 5)]], ids=["none", "too small", "another name"])
def test_masked_actions_without_their_mask_are_no_layout(parts: list[tuple[str, int]]) -> None:
    placed, shape, dtype = lay_out_record(ObservationPart(name, (size,), "float32") for name, size in parts)
    action = ActionSpec("multi_categorical", (2, 3), masked=True)
    spec = EnvSpec(shape if placed else (4,), dtype, action, parts=placed)
    with pytest.raises(ValueError, match=r"sizes \(2, 3\) need a part 'action_mask'"):
        EnvSpec.from_json(spec.to_json())
    placed, shape, dtype = lay_out_record([ObservationPart("action_mask", (5,), "float32")])
    whole = EnvSpec(shape, dtype, action, parts=placed)
    assert EnvSpec.from_json(whole.to_json()) == whole
