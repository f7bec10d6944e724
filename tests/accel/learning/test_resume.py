"""Saving and restoring between any two updates over the local transport: everything is bit for bit what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accel.acting.joining import InlineActor
from accel.algorithms.state_tree import Tree, flatten
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.config.algorithms import ALGORITHMS
from accel.config.train import DEFAULT_ALGORITHM
from accel.errors import CheckpointError
from accel.learning.handshake import LearnerPlace, Stop, wait_for_actors
from accel.learning.session import Session
from accel.runs.checkpoint import CheckpointState
from accel.runs.directory import RunDirectory
from accel.runs.job import Job, check_config
from accel.transport.base import TransportOptions
from accel.transport.local import LocalActor, LocalLearner


def never() -> str | None:
    return None


def open_session(config: TrainConfig, run: RunDirectory, stop: Stop = never) -> Session:
    """As ``run_session`` does it, without the run."""
    job = Job(check_config(config))
    learner = LocalLearner(options=TransportOptions(max_held=job.config.store.held_unrolls + 1))
    local = InlineActor(LocalActor(learner, 0))
    told = ActorConfig.of(job.config, schemes=("fp32", job.config.compression.compressor), restart=run.next_restart())
    learner.welcome(told.to_json())
    local.join()
    group = wait_for_actors(learner, 5.0, never)
    session = Session(job, run, group, LearnerPlace(learner, stop, (0,)), local)
    learner.welcome(session.learner.agreement.to_json())
    return session


def everything(session: Session) -> tuple[object, dict[str, torch.Tensor]]:
    """All state that training goes on from, read from the objects themselves."""
    algorithm, tensors = session.learner.algorithm, dict[str, torch.Tensor]()
    state: dict[str, Tree] = {
        "networks": dict(algorithm.networks.state_dict()),
        "algorithm": algorithm.save(),
        "counters": session.loop.counters.to_json(),
        "rewards": session.loop.rewards.state(),  # type: ignore[dict-item]
        "torch": torch.get_rng_state(),
        "actor": session.actor.generator_state(),  # type: ignore[dict-item]
    }
    return flatten(state, tensors, "state"), tensors


def same(a: tuple[object, dict[str, torch.Tensor]], b: tuple[object, dict[str, torch.Tensor]]) -> bool:
    return a[0] == b[0] and all(torch.equal(tensor, b[1][name]) for name, tensor in a[1].items())


REPLAY = {"learning_starts": 128, "batch_size": 16, "samples_per_insert": 4.0, "replay_capacity": 1000}
RUNS: dict[str, dict[str, object]] = {
    "int8, vtrace": {"compressor": "int8", "calibration_size": 128},
    "retrace, rmsprop, running rewards": {
        "algorithm": "impala", "corrector": "retrace", "optimizer": "rmsprop", "normalise_rewards": True,
    },
    "surrogate, lstm, normaliser, linear rate": {
        "network": "mlp:16x1+lstm:8", "algorithm": "ppo", "passes": 2, "minibatches": 2,
        "normalise_observations": True, "learning_rate_schedule": "linear", "batch_unrolls": 2,
    },
    "a2c": {"algorithm": "a2c"},
    "a3c": {"algorithm": "a3c", "normalise_observations": True},
    "seed": {"algorithm": "seed", "compressor": "int8", "calibration_size": 128},
    "dppo": {"algorithm": "dppo", "unroll_length": 16},
    "a student": {"compressor": "distill(16x2)", "network": "mlp:32x2", "calibration_size": 128},
    "ptr-ppo": {"algorithm": "ptr-ppo", "unroll_length": 16, "trajectory_priority": "return"},
    "impact": {
        "algorithm": "impact", "buffer_batches": 2, "batch_uses": 2, "target_interval_updates": 3,
        "normalise_observations": True,
    },
    "ga3c": {"algorithm": "ga3c"},
    "pruned": {"compressor": "prune(0.5)+int8", "network": "mlp:32x2", "calibration_size": 128},
    "dqn": {"algorithm": "dqn", **REPLAY, "target_interval_updates": 3, "normalise_rewards": True},
    "gorila": {"algorithm": "gorila", **REPLAY},
    "apex": {"algorithm": "apex", **REPLAY},
    "r2d2": {"algorithm": "r2d2", **REPLAY, "network": "mlp:16x1+lstm:8", "batch_size": 4},
    "d4pg": {"algorithm": "d4pg", **REPLAY, "env": "Pendulum-v1", "target_interval_updates": 3},
    "sac": {"algorithm": "sac", **REPLAY, "env": "Pendulum-v1"},
    "td3": {"algorithm": "td3", **REPLAY, "env": "Pendulum-v1"},
}  # fmt: skip


def test_every_algorithm_is_restored() -> None:
    assert {str(options.get("algorithm", DEFAULT_ALGORITHM)) for options in RUNS.values()} == ALGORITHMS.keys()


@pytest.mark.few(6)
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_restored_run_is_bit_for_bit_the_saved_one(options: dict[str, object], tmp_path: Path) -> None:
    values: dict[str, object] = {
        "actors": 0, "envs_per_actor": 4, "unroll_length": 16, "network": "mlp:16x1", "compressor": "fp32",
        "learner_threads": 1, "results_dir": tmp_path, "name": "run", "total_env_steps": 10**6,
    }  # fmt: skip
    config = TrainConfig.create(**(values | options))
    with RunDirectory.create(tmp_path, "run") as run:
        twin = open_session(config.replace(seed=1), run)
        compared = 0

        def stop() -> str | None:
            nonlocal compared
            if compared == 6:
                return "enough"
            if original.loop.counters.updates == compared:
                return None
            compared += 1
            torch.manual_seed(100 + compared)
            before = everything(original)
            original.checkpoints.save()
            torch.manual_seed(0)
            assert not same(everything(twin), before)
            twin.checkpoints.restore()
            assert same(everything(twin), before), compared
            assert same(everything(original), before), "saving changed something"
            return "enough" if compared == 6 else None

        original = open_session(config, run, stop)
        assert original.train().reason == "enough"
        assert compared == 6 and original.loop.counters.env_steps > 0
        original.actor.close()
        twin.actor.close()


def test_a_checkpoint_of_another_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = TrainConfig.create(actors=0, envs_per_actor=2, network="mlp:8x1", compressor="fp32", learner_threads=1)
    with RunDirectory.create(tmp_path, "run") as run:
        session = open_session(config, run)
        with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
            session.checkpoints.restore()
        session.loop.counters.updates = 1
        session.checkpoints.save()
        for changes, message in (
            ({"network": "mlp:9x1"}, "of another network .*--network"),
            ({"env": "Acrobot-v1"}, "other spaces .*--env"),
            ({"optimizer": "rmsprop"}, "an optimizer .*Adam, not .*RMSprop"),
        ):
            with pytest.raises(CheckpointError, match=message):
                open_session(config.replace(**changes), run).checkpoints.restore()
        lacking = CheckpointState({}, {}, {"env_steps": 5})
        run.save_checkpoint(lacking)
        with pytest.raises(CheckpointError, match=r"lacks what training needs.*spec"):
            session.checkpoints.restore()
