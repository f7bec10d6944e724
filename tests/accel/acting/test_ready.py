"""Environments in worker processes or EnvPool's threads: every row is what its environment gives, at whatever pace."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel.acting.actor import Actor
from accel.acting.joining import join
from accel.acting.policy import SessionPolicy
from accel.acting.rules import make_sampler
from accel.algorithms.catalogue import agree, make_algorithm
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.envs.factory import make_vector_env
from accel.envs.pool import EnvironmentPool
from accel.errors import ConfigError, EnvError
from accel.experience.unroll import Unroll, UnrollLayout
from accel.publishing.publisher import Publisher
from accel.transport.base import PolicyUpdate
from accel.transport.local import LocalActor, LocalLearner
from tests.accel.publishing.live_policies import config_for, payload_of
from tests.environments.troubled import DIARY, order_failure

LENGTH = 6
TROUBLED = "tests.environments.troubled:"
STACKED = "tests.accel.envs.test_envs_factory:stack_frames"


class Run:
    """An actor with workers and its learner's end, in one thread; ``unrolls`` are copies of what it sent.

    It is the run's last; the others are never heard of.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.number = max(config.acting.actors, 1) - 1
        self.learner, self.config = LocalLearner(self.number + 1), config
        self.learner.welcome(ActorConfig.of(config).to_json())
        self.actor: Actor = join(LocalActor(self.learner, self.number), 0.0)
        torch.manual_seed(0)
        self.algorithm = make_algorithm(config, self.actor.spec, torch.device("cpu"))
        self.payload = payload_of(Publisher(config, self.algorithm.network))
        agreement, self.layout = agree(config, self.algorithm)
        self.learner.welcome(agreement.to_json())
        self.learner.configure(self.layout.nbytes)
        self.learner.publish(1, self.payload)
        self.actor.start()
        self.learner.messages()
        self.unrolls: list[Unroll] = []

    def step(self) -> Unroll:
        self.actor.step()
        arrival = self.learner.receive()
        self.unrolls.append(self.layout.view(arrival.buffer.copy()))
        self.learner.release(arrival)
        return self.unrolls[-1]

    def joined(self, name: str) -> Any:
        return np.concatenate([unroll[name][:LENGTH] for unroll in self.unrolls])


@contextmanager
def running(env: str, network: str = "mlp:16x1", **options: object) -> Any:
    small: dict[str, object] = {"unroll_length": LENGTH, "envs_per_actor": 4, "env_workers": 4, "env": env}
    run = Run(config_for(network, "fp32", **(small | options)))
    try:
        yield run
    finally:
        run.actor.close()


STRUCTURED, CLOSED_FORM = "tests.environments.structured:", "tests.environments:ClosedForm"
UNEVEN = {"env_workers": 4, "wrapper": (f"{TROUBLED}Uneven",)}
KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "mask": (f"{STRUCTURED}Masked-v0", "mlp:8x1", {}),
    "mask in info": (f"{STRUCTURED}InfoMasked-v0", "mlp:8x1", {}),
    "masks of two components": (f"{STRUCTURED}MultiMasked-v0", "mlp:8x1", {"env_workers": 4}),
    "mask and memory": (f"{STRUCTURED}MaskedMemory-v0", "mlp:8x1+gru:8", {}),
    "image and vector": (f"{STRUCTURED}DictTarget-v0", "auto:8x1", {}),
    "structure of numbers": (f"{CLOSED_FORM}-v0", "mlp:8x1", {"env_arg": ("observation=dict",)}),
    "agents": ("tests.environments.agents", "mlp:8x1", {"backend": "pettingzoo"}),
    "agents with masks in info": (
        "tests.environments.agents", "mlp:8x1", {"backend": "pettingzoo", "env_arg": ("mask=info",)},
    ),
    "stacked frames": (
        f"{CLOSED_FORM}-v0", "auto:8x1", {"env_arg": ("observation=image",), "wrapper": (STACKED,)},
    ),
    "EnvPool": ("CartPole-v1", "mlp:8x1", {"backend": "envpool"}),
    "EnvPool, continuous": (
        "Pendulum-v1", "mlp:8x1", {"backend": "envpool", "squash_actions": True, "env_arg": ("max_episode_steps=9",)},
    ),
    "another task": ("NoSuchTask-v0", "mlp:8x1", {"task": (f"{CLOSED_FORM}-v0",), "actors": 2}),
    "same step": (f"{CLOSED_FORM}SameStep-v0", "mlp:8x1", {"env_workers": 3, "envs_per_actor": 3}),
    "one in a worker": (f"{CLOSED_FORM}-v0", "mlp:8x1", {"env_workers": 4}),
    "uneven": ("CartPole-v1", "mlp:8x1", UNEVEN),
    "continuous and uneven": ("tests.environments.learnable:BoxTarget-v0", "mlp:8x1", UNEVEN),
}  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_what_its_environment_gives(kind: str) -> None:
    env, network, options = KINDS[kind]
    if "backend" in options:
        pytest.importorskip(str(options["backend"]), reason="needs the extra of its name")
    with running(env, network, **({"env_workers": 2} | options)) as run:
        for _ in range(4 if "agents" in env else 8):
            run.step()
        spec = run.actor.spec
        assert spec.frame_stack == (3 if "stacked" in kind else 1) and spec.agents == (3 if "agents" in env else 1)
        assert spec.action.masked == ("Mask" in env or options.get("env_arg") == ("mask=info",))
        _assert_replayed(run)
        sampler = make_sampler(spec.action, run.layout.envs, LENGTH, np.random.default_rng(0))
        mu = sampler.log_prob(run.joined("behaviour_params"), run.joined("actions"))
        assert np.isfinite(mu).all()
        np.testing.assert_allclose(run.joined("behaviour_log_prob"), mu, atol=1e-6)


def _assert_replayed(run: Run) -> None:
    """Each worker's environments again, together and in this process, with the actions that were recorded."""
    config, spec = ActorConfig.of(run.config), run.actor.spec
    seed = int(np.random.SeedSequence([config.seed, run.number, 0]).spawn(2)[0].generate_state(1)[0])
    workers = 1 if config.backend == "envpool" else config.env_workers
    share = run.layout.envs // workers
    names = ("rewards", "terminated", "truncated")
    actions, rows = run.joined("actions"), {name: run.joined(name) for name in names}
    sampler = make_sampler(spec.action, share, LENGTH, np.random.default_rng(0))
    for worker in range(workers):
        mine = slice(worker * share, (worker + 1) * share)
        alone = make_vector_env(
            config.task(run.number),
            config.envs_per_actor // workers,
            backend=config.backend,
            env_args=config.env_args,
            wrappers=config.wrappers,
            seed=seed if config.backend == "envpool" else (seed, worker),
            squash_actions=config.squash_actions,
        )
        assert alone.spec == spec
        shown = [np.array(alone.reset())]
        for t in range(len(actions)):
            observations, *answer = alone.step(sampler.to_env(actions[t, mine]))  # type: ignore[arg-type]
            for name, found in zip(names, answer, strict=True):
                assert np.array_equal(rows[name][t, mine], found), (worker, t, name)
            done = rows["terminated"][t, mine] | rows["truncated"][t, mine]
            if spec.autoreset == "same_step" and done.any():
                final = run.joined("final_observations")[t, mine]
                assert np.array_equal(final[done], alone.final_observations[done])
            shown.append(np.array(observations))
        alone.close()
        for k, unroll in enumerate(run.unrolls):
            seen = np.array(shown[k * LENGTH : (k + 1) * LENGTH + 1])
            if spec.frame_stack == 1:
                assert np.array_equal(unroll["observations"][:, mine], seen)
            else:
                stacks = seen.reshape(*seen.shape[:2], spec.frame_stack, *run.layout.frame_shape)
                older = spec.frame_stack - 1
                assert np.array_equal(unroll["frames"][:older, mine], stacks[0, :, :older].swapaxes(0, 1))
                assert np.array_equal(unroll["frames"][older:, mine], stacks[:, :, older])
    assert (rows["terminated"] | rows["truncated"]).any()


def test_a_recurrent_state_goes_with_its_environment() -> None:
    """μ of every row is the policy's, run over that environment's rows alone; episodes have their returns."""
    wrappers = (f"{TROUBLED}Uneven",)
    with running("tests.environments.learnable:Memory-v0", "mlp:8x1+lstm:8", wrapper=wrappers) as run:
        for _ in range(8):
            run.step()
    layout = UnrollLayout(run.layout.spec, LENGTH, 1, run.layout.state_shapes)
    sampler = make_sampler(run.actor.spec.action, 4, LENGTH, np.random.default_rng(0))
    params = np.zeros((1, 2), np.float32)
    for env in range(4):
        policy = SessionPolicy(layout, make_sampler(run.actor.spec.action, 1, LENGTH, np.random.default_rng(0)))
        policy.load(PolicyUpdate(1, run.payload))
        total = 0.0
        for unroll in run.unrolls:
            for state, ours in zip(unroll.states, policy.states(), strict=True):
                np.testing.assert_allclose(state[env], ours[0], atol=1e-5)
            for t in range(LENGTH):
                first = unroll["first"][t, env : env + 1]
                policy.infer(unroll["observations"][t, env : env + 1], first if first.any() else None, params)  # type: ignore[arg-type]
                np.testing.assert_allclose(unroll["behaviour_params"][t, env], params[0], atol=1e-5)
                total += float(unroll["rewards"][t, env])
                if unroll["terminated"][t, env]:
                    assert (unroll["episode_return"][t, env], unroll["episode_length"][t, env]) == (total, 4)
                    total = 0.0
                else:
                    assert unroll["episode_length"][t, env] == 0
    mu = sampler.log_prob(run.joined("behaviour_params"), run.joined("actions"))
    np.testing.assert_allclose(run.joined("behaviour_log_prob"), mu, atol=1e-6)
    assert np.ptp(run.joined("behaviour_params")) > 0 and run.joined("episode_length").sum() > 0


@pytest.mark.parametrize(("algorithm", "ahead"), [("impala", True), ("a2c", False)])
def test_rows_ahead_of_the_slowest_name_the_policy_that_chose_them(algorithm: str, ahead: bool) -> None:
    """Synchronous learning has none: all rows of an unroll are the newest policy's."""
    wrappers = (f"{TROUBLED}Uneven",)
    with running("CartPole-v1", wrapper=wrappers, algorithm=algorithm) as run:
        mixed = False
        for version in range(2, 12):
            unroll = run.step()
            versions = unroll["policy_version"]
            assert (np.diff(versions, axis=0) >= 0).all() and versions.max() == version - 1
            assert unroll.oldest_version == versions.min() >= version - 2
            mixed = mixed or versions.min() < versions.max()
            run.learner.publish(version, run.payload)
        assert mixed == ahead
        assert (run.joined("scheme_id") == 0).all()


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["segfault", "exit", "raise", "hang"])
def test_a_failure_costs_its_environment_alone(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises is made anew in its worker, any other failure takes a new worker."""
    monkeypatch.setenv(DIARY, str(tmp_path))
    wrappers = (f"{TROUBLED}Leisurely", f"{TROUBLED}Obedient")
    with running("CartPole-v1", wrapper=wrappers, actor_timeout_s=1.0) as run:
        run.step()
        order_failure(tmp_path, 0, how)
        told: list[dict[str, object]] = []
        while not told:
            run.step()
            told = [dict(message) for _, message in run.learner.messages()]
        seen = len(run.unrolls)
        for _ in range(3):
            run.step()
        assert not run.learner.messages()
        (failure,) = told
        env = int(str(failure["environment"]))
        others = [other for other in range(4) if other != env]
        expected = {
            "segfault": "ended by SIGSEGV", "exit": "exit(7)", "raise": "the simulator broke",
            "hang": "a step took longer than 1 s (--actor-timeout-s)",
        }  # fmt: skip
        assert expected[how] in str(failure["raised"])
        broken = [unroll for unroll in run.unrolls if not unroll["valid"][:, env].any()]
        assert len(broken) == 1 and run.unrolls.index(broken[0]) < seen + 1
        for unroll in run.unrolls:
            done = unroll["terminated"] | unroll["truncated"]
            assert np.array_equal(unroll["valid"][1:, others], ~done[:, others])
            assert unroll.valid_steps == np.count_nonzero(unroll["valid"][:LENGTH])
        (row,) = np.flatnonzero(broken[0]["truncated"][:, env])
        assert broken[0]["rewards"][row, env] == 0 and broken[0]["episode_length"][row, env] == 0
        # New episodes begin behind it, and rows go on from unroll to unroll.
        for now, following in pairwise(run.unrolls):
            assert np.array_equal(now["observations"][-1], following["observations"][0])
        assert np.abs(run.unrolls[-1]["observations"][:, env]).max() > 0


@pytest.mark.parametrize(
    ("program", "told"),
    [(sys.executable, r"exit\(7\) \(--max-actor-restarts"), ("/nowhere", "cannot be started: No such file")],
)
def test_a_worker_that_fails_again_and_again_ends_its_actor(
    program: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do further processes that the system does not start."""
    with running("CartPole-v1", wrapper=(f"{TROUBLED}Leaves",), max_actor_restarts=2, env_workers=1) as run:
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(EnvError, match=rf"failed 3 times in a row, .*{told}"):
            for _ in range(200):
                run.step()


@pytest.mark.parametrize(
    ("env", "wrappers", "limit_s", "message"),
    [
        ("NoSuchThing-v0", [], 600.0, "NoSuchThing"),
        ("CartPole-v1", [f"{TROUBLED}HangsInTheMaking"], 1.0, "construction or a reset took longer than 1 s"),
    ],
    ids=["unknown", "hangs"],
)
def test_environments_that_cannot_be_made_are_named(
    env: str, wrappers: list[str], limit_s: float, message: str
) -> None:
    environment = {"id": env, "num_envs": 2, "seed": 0, "wrappers": wrappers}
    with pytest.raises(EnvError, match=message):
        EnvironmentPool(environment, 2, step_s=0.5, preparation_s=limit_s, max_restarts=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_workers": 3}, "cannot share out envs_per_actor = 8 equally"),
        ({"env_workers": 2, "actor_runtime": "torch", "compressor": "fp32"}, "leave actor_runtime = 'torch'"),
        ({"env_workers": 2, "algorithm": "seed"}, "inference = 'central' out"),
        ({"env_workers": 2, "backend": "envpool", "env_arg": ("num_threads=2",)}, "EnvPool's threads: leave env_arg"),
    ],
)
def test_what_workers_do_not_go_with_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.create(**options)
