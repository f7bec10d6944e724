"""Dict observations and action masks from the environment to the exported graph: what is stored, acted on, trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import nn

import accel
from accel.acting.rules import ActorPlace, make_rule
from accel.algorithms.base import Algorithm
from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.distributions import make_distribution
from accel.config import TrainConfig
from accel.envs.factory import make_vector_env
from accel.envs.observations import observation_layout, settle_masks
from accel.envs.spaces import MASKED, ActionSpec, EnvSpec
from accel.errors import ConfigError, EnvError
from accel.experience.stores.base import Steps
from accel.exporting import run_policy
from accel.networks import build_network
from accel.networks.observations import mask_outputs, split_observations
from accel.runs.loading import load_run
from tests.accel.runs.trained_runs import make_run

FIVE = ActionSpec("categorical", (5,))
IMAGES = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (7, 9, 3), np.uint8),
        "speed": spaces.Box(-np.inf, np.inf, (3,)),
        "goal": spaces.Dict({"a/b": spaces.Discrete(4), "params": spaces.MultiBinary(2)}),
        "action_mask": spaces.Box(0, 1, (5,), np.int8),
    }
)
NUMBERS = spaces.Dict({"speed": IMAGES["speed"], "goal": IMAGES["goal"], "action_mask": IMAGES["action_mask"]})
IDS = "tests.environments.structured:"


def batched(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: batched([one[key] for one in observations]) for key in observations[0]}
    return np.stack(observations)


@pytest.mark.parametrize("space", [IMAGES, NUMBERS], ids=["images", "numbers"])
def test_every_entry_is_found_again_in_the_record(space: spaces.Dict) -> None:
    space.seed(1)
    layout, observations = observation_layout(space, FIVE), [space.sample() for _ in range(3)]
    spec = layout.spec(FIVE, "next_step")
    assert spec.action.masked and EnvSpec.from_json(spec.to_json()) == spec
    rows, together = layout.empty(3), layout.empty(3)
    for row, observation in zip(rows, observations, strict=True):
        layout.write(observation, row)
    layout.write(batched(observations), together)
    assert np.array_equal(rows, together)
    found = spec.split(rows)
    assert [part.name for part in spec.inputs] == list(found)
    for i, observation in enumerate(observations):
        if "image" in found:
            assert found["image"].dtype == np.uint8
            assert np.array_equal(found["image"][i], np.moveaxis(observation["image"], -1, 0))
        assert np.allclose(found["speed"][i], observation["speed"])
        assert np.array_equal(found["goal_a_b"][i], np.eye(4)[observation["goal"]["a/b"]])
        assert np.array_equal(found["goal_params"][i], observation["goal"]["params"])
        assert np.array_equal(found["action_mask"][i], observation["action_mask"])
    theirs = split_observations(spec, torch.from_numpy(rows).unflatten(0, (3, 1)))
    for name, part in found.items():
        assert theirs[name].shape == (3, 1, *part.shape[1:]) and np.array_equal(theirs[name][:, 0].numpy(), part)


def test_a_tuple_without_images_stays_a_vector_and_one_with_images_is_a_record() -> None:
    plain = observation_layout(spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))]))
    assert plain.shape == (5,) and not plain.parts
    images = observation_layout(spaces.Tuple([IMAGES["image"], spaces.Discrete(3)]))
    assert [part.name for part in images.parts] == ["part_0", "part_1"] and images.parts[0].shape == (3, 7, 9)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Text(5)}), r"observation space\['a'\] is Text.*wrapper"),
        (spaces.Dict({"a_b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "both called 'a_b'"),
        (spaces.Dict({"a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(4)}), "has 5 actions"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(5)}), "nothing for a network to look at"),
    ],
)
def test_a_space_that_cannot_be_a_record_is_refused(space: spaces.Dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        observation_layout(space, FIVE)


def test_a_mask_of_box_actions_is_an_ordinary_entry() -> None:
    box = ActionSpec("gaussian", (5,), (-1.0,) * 5, (1.0,) * 5)
    spec = observation_layout(NUMBERS, box).spec(box, "next_step")
    assert not spec.action.masked
    assert next(part for part in spec.parts if part.name == "part_action_mask").dtype == "float32"


def test_a_mask_that_allows_nothing_is_an_error_only_where_an_action_is_wanted() -> None:
    layout = observation_layout(NUMBERS, FIVE)
    spec, rows = layout.spec(FIVE, "next_step"), layout.empty(2)
    settle_masks(spec, rows, np.array([False, False]))
    assert spec.split(rows)["action_mask"].all()
    rows[1] = 0
    with pytest.raises(EnvError, match="action_mask of environment 1 allows no action"):
        settle_masks(spec, rows, np.array([False, True]))


def test_masks_in_info_become_part_of_the_observation() -> None:
    environment = make_vector_env("Taxi-v4", 2, seed=3)
    observations, reference = environment.reset(), gymnasium.make("Taxi-v4")
    assert environment.spec.action.masked and environment.spec.parts[0].shape == (500,)
    states = environment.spec.split(observations)["observations"].argmax(1)
    masks = [reference.unwrapped.action_mask(int(state)) for state in states]  # type: ignore[attr-defined]
    assert np.array_equal(environment.spec.split(observations)["action_mask"], masks)
    environment.close()


ALLOWED = torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8)


def test_a_masked_distribution_is_the_distribution_over_what_is_allowed() -> None:
    torch.manual_seed(0)
    logits, others = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)
    masked, other = (make_distribution(FIVE, mask_outputs(x, ALLOWED.expand(7, 5))) for x in (logits, others))
    of_three = ActionSpec("categorical", (3,))
    alone, other_alone = (make_distribution(of_three, x[:, ALLOWED.bool()]) for x in (logits, others))
    places = torch.tensor([0, 2, 3])
    actions = torch.arange(7) % 3
    assert torch.allclose(masked.log_prob(places[actions]), alone.log_prob(actions))
    assert torch.allclose(masked.entropy(), alone.entropy()) and torch.allclose(masked.kl(other), alone.kl(other_alone))
    (masked.log_prob(places[actions]) + masked.entropy() + masked.kl(other)).sum().backward()
    assert logits.grad is not None and not logits.grad[:, ~ALLOWED.bool()].any() and logits.grad.isfinite().all()
    assert (masked.log_prob(torch.ones(7, dtype=torch.long)) < -1e8).all()


@pytest.mark.parametrize("kind", ["categorical", "multi_categorical", "ε-greedy"])
def test_a_masked_action_is_never_sampled_nor_greedy_and_without_the_mask_it_would_be(kind: str) -> None:
    sizes = (2, 3) if kind == "multi_categorical" else (5,)
    action = ActionSpec("multi_categorical" if len(sizes) > 1 else "categorical", sizes, masked=True)
    spec = EnvSpec((3,), "float32", action)
    options = {"algorithm": "dqn", "initial_epsilon": 0.9, "final_epsilon": 0.9} if kind == "ε-greedy" else {}
    algorithm = make_algorithm(TrainConfig.create(network="mlp:8x1", **options), _with_mask(spec), torch.device("cpu"))
    rule, rows, envs = make_rule(algorithm.rule, action), 50, 200
    outputs = np.random.default_rng(0).normal(size=(envs, algorithm.output_size)).astype(np.float32)
    for is_masked in (True, False):
        params = mask_outputs(torch.from_numpy(outputs), ALLOWED.expand(envs, 5)).numpy() if is_masked else outputs
        sampler = rule.bind(ActorPlace(envs, rows), np.random.default_rng(1))
        sampler.begin()
        actions = np.zeros((envs, *action.shape), np.int64)
        taken = np.zeros(5, np.int64)
        for t in range(rows):
            sampler.sample(params, t, actions)
            columns = actions[:, None] if actions.ndim == 1 else actions + np.array([0, 2])
            np.add.at(taken, columns, 1)
        assert (taken[ALLOWED.numpy() != 0] > 0).all() and (taken[ALLOWED.numpy() == 0] == 0).all() == is_masked
        if is_masked:
            _check_twins(algorithm, rule.action_params(params, None), params)


def _with_mask(spec: EnvSpec) -> EnvSpec:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (3,)), "action_mask": spaces.MultiBinary(5)})
    return observation_layout(space, spec.action).spec(spec.action, "next_step")


def _check_twins(algorithm: Algorithm, acted: np.ndarray, params: np.ndarray) -> None:
    """The learner's distribution of the outputs is the one that the actor's rule names."""
    learned = algorithm.distribution(torch.from_numpy(params), None)
    same = make_distribution(algorithm.network.spec.action, torch.from_numpy(np.asarray(acted, np.float32)))
    assert torch.allclose(learned.kl(same), torch.zeros(()), atol=1e-5)
    assert torch.allclose(learned.entropy(), same.entropy(), atol=1e-4)


def q_of(algorithm: Any, observations: torch.Tensor) -> torch.Tensor:
    return algorithm.q_values(algorithm.outputs(algorithm.network, observations)[0])


def test_no_value_of_a_masked_action_reaches_dqns_targets() -> None:
    spec = _with_mask(EnvSpec((3,), "float32", ActionSpec("categorical", (5,), masked=True)))
    algorithm: Any = make_algorithm(TrainConfig.create(network="mlp:8x1", algorithm="dqn"), spec, torch.device("cpu"))
    record = np.zeros((4, *spec.observation_shape), np.float32)
    record[:, 3:] = [1, 0, 1, 1, 0]
    record[:, :3] = np.random.default_rng(0).normal(size=(4, 3))
    q = q_of(algorithm, torch.from_numpy(record))
    raw = algorithm.network.policy_head(algorithm.network.torso({"x": torch.from_numpy(record[:, :3])}))
    advantages = raw[:, :5][:, ALLOWED.bool()]
    expected = raw[:, 5:] + advantages - advantages.mean(1, keepdim=True)
    assert torch.allclose(q[:, ALLOWED.bool()], expected, atol=1e-6)
    assert (q[:, ~ALLOWED.bool()] == MASKED).all()


@pytest.mark.parametrize("n", [1, 3])
def test_nor_those_of_retrace(n: int) -> None:
    """Where the first row's action is not allowed in the last observation."""
    spec = _with_mask(EnvSpec((3,), "float32", ActionSpec("categorical", (5,), masked=True)))
    options = {"algorithm": "dqn", "corrector": "retrace", "n_step": n, "discount": 0.9}
    algorithm: Any = make_algorithm(TrainConfig.create(network="mlp:8x1", **options), spec, torch.device("cpu"))
    observations = torch.randn(n + 1, 4, 8, generator=torch.Generator().manual_seed(n))
    observations[..., 3:] = 1.0
    observations[-1, :, 3] = 0.0
    rewards = torch.arange(4.0 * n).view(n, 4)
    shape, actions = (n, 4), torch.zeros(n, 4, dtype=torch.int64)
    # λ = 1 and μ far below π: rewards are cut where the action is not the greedy one
    steps = Steps(
        observations, actions, rewards, torch.full(shape, 0.9), torch.full(shape, -9.0), torch.ones(shape) > 0
    )
    q = q_of(algorithm, observations.flatten(0, 1)).view(n + 1, 4, 5).detach()  # the target's too
    expected = q[-1].amax(-1)
    for row in range(n - 1, -1, -1):
        best = q[row + 1].amax(-1)
        if row < n - 1:
            greedy = q[row + 1].argmax(-1) == 0
            expected = torch.where(greedy, expected, best)
        expected = rewards[row] + 0.9 * expected
    assert torch.allclose(algorithm.retrace_targets(steps), expected, rtol=1e-4)


class OwnTorso(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        image = next(part for part in spec.parts if part.name == "camera")
        self.convolution = nn.Conv2d(image.shape[0], 4, 3)
        self.mix = nn.Linear(4 * 6 * 4 + 2, 16)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        assert set(observation) == {"camera", "goal_side", "goal_noise"}
        pixels = self.convolution(observation["camera"]).relu().flatten(1)
        return torch.tanh(self.mix(torch.cat((pixels, observation["goal_side"]), 1)))


def own_torso(spec: EnvSpec) -> nn.Module:
    """A user's own network, which gets the dictionary."""
    return OwnTorso(spec)


OWN = "tests.accel.envs.test_structured_observations:own_torso"


@pytest.mark.parametrize("text", ["mlp:8x1", "impala-resnet:0.25+gru:8", OWN, f"{OWN}+lstm:8"])
def test_a_networks_acting_side_takes_what_its_learner_takes_apart(text: str) -> None:
    environment = make_vector_env(IDS + "DictTarget-v0", 3, seed=0)
    observations, spec = environment.reset(), environment.spec
    network = build_network(text, spec, normalise_observations=True, seed=0)
    network.normaliser.update(torch.from_numpy(observations))
    state = tuple(torch.zeros(3, *s) for s in network.state_shapes)
    whole = network(torch.from_numpy(observations)[None], torch.zeros(1, 3, dtype=torch.bool), state)
    acting = network.acting_module()
    assert acting.input_names[:3] == ("camera", "goal_noise", "goal_side")
    parts = [torch.from_numpy(np.array(part)) for part in spec.split(observations).values()]
    assert torch.allclose(acting(*parts, *state)[0], whole.params[0], atol=1e-5)
    whole.params.square().sum().backward()
    assert all(p.grad is not None for name, p in network.named_parameters() if "critic" not in name)


def test_a_network_of_images_needs_one_and_a_missing_entry_is_named() -> None:
    spec = observation_layout(NUMBERS, FIVE).spec(FIVE, "next_step")
    with pytest.raises(ConfigError, match=r"the observations have the parts goal_a_b.*use an mlp"):
        build_network("nature-cnn", spec)
    with pytest.raises(ConfigError, match="StopIteration"):
        build_network(OWN, spec)


BASE: dict[str, object] = {
    "envs_per_actor": 16, "unroll_length": 10, "learning_rate": 1e-2, "discount": 0.0, "actors": 0, "seed": 0,
    "learner_threads": 1, "log_interval_s": 1e6, "calibration_size": 64, "compressor": "int8", "stop_at_return": 9.0,
}  # fmt: skip
PLAIN: dict[str, object] = {"algorithm": "impala", "normalise_observations": False}
LEARNED: dict[str, dict[str, object]] = {
    "a mask in the observation": {"env": "Masked-v0", "network": "mlp:16x1", **PLAIN, "total_env_steps": 20_000},
    "several masks, Q": {
        "env": "Masked-v0", "network": "mlp:16x1", **PLAIN, "corrector": "retrace", "total_env_steps": 20_000,
    },
    "masks of two components, ppo": {
        "env": "MultiMasked-v0", "network": "mlp:16x1", "algorithm": "ppo", "total_env_steps": 20_000,
    },
    "a mask, dqn": {
        "env": "Masked-v0", "network": "mlp:16x1", "algorithm": "dqn", "unroll_length": 4, "learning_rate": 3e-3,
        "discount": 0.1, "exploration_env_steps": 4000, "total_env_steps": 40_000,
    },
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.learning
@pytest.mark.parametrize("case", LEARNED)
def test_it_is_learned_with_int8_actors(case: str, tmp_path: Path) -> None:
    """Images beside vectors, masks in info and masks with a memory: tests/mpi/test_observations.py."""
    options = BASE | LEARNED[case] | {"results_dir": tmp_path, "env": IDS + str(LEARNED[case]["env"])}
    summary = accel.train(TrainConfig.create(**options))
    assert summary.return_mean is not None and summary.return_mean >= 9.0, summary.text()
    assert summary.scheme == "int8"


POLICIES = {
    "images": {"env": IDS + "DictTarget-v0", "network": "impala-resnet:0.25"},
    "masks": {"env": IDS + "InfoMasked-v0", "network": "mlp:16x1+gru:8"},
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", [pytest.param("fp32", marks=pytest.mark.long), "int8"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_bundle_acts_as_the_run_does_on_dictionaries(name: str, scheme: str, tmp_path: Path) -> None:
    path = make_run(tmp_path, calibration_size=64, **POLICIES[name])
    bundle = accel.export(path, tmp_path / "bundle", scheme=scheme, episodes=2)
    run, policy = load_run(path), run_policy.Policy(bundle.path)
    names = [spec["name"] for spec in policy.contract["inputs"]]
    assert names == [*run.policy.input_names] and len(names) > 2
    session = onnxruntime.InferenceSession(bundle.path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [tensor.name for tensor in session.get_inputs()] == names
    environment = run.make_env(1, 0)
    rows, agreed, first = environment.reset(0), 0, True
    for _ in range(10):
        observation = {part: values[0] for part, values in run.spec.split(rows).items()}
        action, params = policy.act(observation, first=first)
        if "action_mask" in observation:
            assert (params[observation["action_mask"] == 0] == np.float32(MASKED)).all()
            assert observation["action_mask"][action] == 1
        theirs = run.act(_as_the_environment_gives_it(name, observation), first=first)
        agreed += int(np.array_equal(theirs, action))
        (rows, *_), first = environment.step(action[None]), False
    environment.close()
    assert agreed == 10 if scheme == "fp32" else agreed >= 7
    assert accel.verify(bundle.path).vectors["relative"] < (1e-5 if scheme == "fp32" else 2e-2)
    shown = subprocess.run([sys.executable, "-W", "error", bundle.path / "example.py"], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def _as_the_environment_gives_it(name: str, parts: dict[str, np.ndarray]) -> Any:
    if name == "masks":
        return parts
    goal = {"side": int(parts["goal_side"].argmax()), "noise": parts["goal_noise"].astype(np.float64)}
    return {"camera": np.moveaxis(parts["camera"], 0, -1), "goal": goal}


def test_batches_of_dictionaries_are_acted_on_and_others_refused(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, env=IDS + "Masked-v0", network="mlp:8x1"))
    masks = np.eye(12, dtype=np.int8)[:3]
    batch = {"state": np.zeros((3, 1), np.float32), "action_mask": masks}
    assert run.act(batch).tolist() == [0, 1, 2]
    one = {"state": np.zeros(1, np.float32), "action_mask": masks[2]}
    assert run.act(one) == 2 and run.act(one, greedy=False) == 2
    with pytest.raises(ConfigError, match="give a dictionary, as the environment does"):
        run.act({"state": np.zeros(1, np.float32)})


@pytest.mark.slow
def test_returns_of_a_masked_policy_need_no_luck(tmp_path: Path) -> None:
    path = make_run(tmp_path, env=IDS + "MaskedMemory-v0", network="mlp:32x1+lstm:32", calibration_size=64)
    for scheme in ("fp32", "prune(0.5)+int8"):
        assert accel.evaluate(path, scheme=scheme, episodes=4, greedy=False).episodes.lengths.tolist() == [10] * 4
