"""Saving and restoring between any two updates over the local transport: everything is bit for bit what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from accel.acting.joining import LocalActor
from accel.cli.job import Job, check_config
from accel.config import TrainConfig
from accel.errors import CheckpointError
from accel.learning.assembly import Assembly
from accel.learning.checkpoint import CheckpointState
from accel.learning.crew import wait_for_crew, welcome
from accel.learning.state_tree import Tree, flatten
from accel.runs.directory import RunDirectory
from accel.transport import LocalTransport, TransportOptions

Stop = Callable[[], str | None]


def never() -> str | None:
    return None


def assemble(config: TrainConfig, run: RunDirectory, stop: Stop = never) -> Assembly:
    """As ``run_session`` does it, without the run."""
    job = Job(check_config(config))
    transport = LocalTransport(1, options=TransportOptions(in_flight=1, max_held=job.config.batch_unrolls + 1))
    local = LocalActor(transport.actor(0))
    transport.learner.welcome(welcome(job.config, run.next_restart()))
    local.join()
    crew = wait_for_crew(transport.learner, 5.0, never)
    return Assembly(job, run, crew, transport.learner, stop, (0,), 0, local.actor)


def everything(assembly: Assembly) -> tuple[object, dict[str, torch.Tensor]]:
    """All state that training goes on from, read from the objects themselves."""
    assert assembly.actor is not None
    learner, tensors = assembly.learner, dict[str, torch.Tensor]()
    state: dict[str, Tree] = {
        "network": dict(learner.network.state_dict()),
        "optimizer": learner.optimizer.state_dict(),
        "env_steps": learner.env_steps,
        "version": learner.version,
        "counters": assembly.trainer.counters.to_json(),
        "rewards": assembly.trainer.rewards.state(),  # type: ignore[dict-item]
        "generator": learner.generator.get_state(),
        "torch": torch.get_rng_state(),
        "actor": assembly.actor.generator_state(),  # type: ignore[dict-item]
    }
    return flatten(state, tensors, "state"), tensors


def same(a: tuple[object, dict[str, torch.Tensor]], b: tuple[object, dict[str, torch.Tensor]]) -> bool:
    return a[0] == b[0] and all(torch.equal(tensor, b[1][name]) for name, tensor in a[1].items())


RUNS = {
    "int8, vtrace": {"compressor": "int8", "calibration_size": 128},
    "retrace, rmsprop, running rewards": {"corrector": "retrace", "optimizer": "rmsprop", "normalise_rewards": True},
    "surrogate, lstm, normaliser, linear rate": {
        "network": "mlp:16x1+lstm:8", "objective": "clipped-surrogate", "passes": 2, "minibatches": 2,
        "normalise_observations": True, "learning_rate_schedule": "linear", "batch_unrolls": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_restored_run_is_bit_for_bit_the_saved_one(options: dict[str, object], tmp_path: Path) -> None:
    values: dict[str, object] = {
        "actors": 0, "envs_per_actor": 4, "unroll_length": 16, "network": "mlp:16x1", "compressor": "fp32",
        "learner_threads": 1, "results_dir": tmp_path, "name": "run", "total_env_steps": 10**6,
    }  # fmt: skip
    config = TrainConfig.create(**(values | options))
    with RunDirectory.create(tmp_path, "run") as run:
        twin = assemble(config.replace(seed=1), run)
        compared = 0

        def stop() -> str | None:
            nonlocal compared
            if original.learner.version == compared:
                return None
            compared += 1
            torch.manual_seed(100 + compared)
            before = everything(original)
            original.save()
            torch.manual_seed(0)
            assert not same(everything(twin), before)
            twin.restore()
            assert same(everything(twin), before), compared
            assert same(everything(original), before), "saving changed something"
            return "enough" if compared == 6 else None

        original = assemble(config, run, stop)
        original.transport.configure(original.layout.nbytes)
        original.trainer.publish()
        assert original.actor is not None and twin.actor is not None
        original.actor.start()
        assert original.trainer.run() == "enough"
        assert compared == 6 and original.learner.env_steps > 0
        original.actor.close()
        twin.actor.close()


def test_a_checkpoint_of_another_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = TrainConfig.create(actors=0, envs_per_actor=2, network="mlp:8x1", compressor="fp32", learner_threads=1)
    with RunDirectory.create(tmp_path, "run") as run:
        assembly = assemble(config, run)
        with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
            assembly.restore()
        assembly.learner.version = 1
        assembly.save()
        for changes, message in (
            ({"network": "mlp:9x1"}, "of another network .*--network"),
            ({"env": "Acrobot-v1"}, "other spaces .*--env"),
            ({"optimizer": "rmsprop"}, "an optimizer .*Adam, not .*RMSprop"),
        ):
            with pytest.raises(CheckpointError, match=message):
                assemble(config.replace(**changes), run).restore()
        lacking = CheckpointState({}, {}, {"env_steps": 5})
        run.save_checkpoint(lacking)
        with pytest.raises(CheckpointError, match=r"lacks what training needs.*spec"):
            assembly.restore()
