"""Dict observations, action masks and a GRU under mpirun: real ranks, int8 actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mpi.training_runs import LEARNING_LIMIT_S, TrainingRun

pytestmark = [pytest.mark.learning, pytest.mark.timeout(LEARNING_LIMIT_S + 60.0)]

IDS = "tests.environments.structured:"
COMMON = "--envs-per-actor 16 --unroll-length 10 --learning-rate 1e-2 --calibration-size 64 --compressor int8 --seed 0"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        f"--env {IDS}DictTarget-v0 --network impala-resnet:0.25 --discount 0 --total-env-steps 100000",
        f"--env {IDS}InfoMasked-v0 --network mlp:16x1 --discount 0 --total-env-steps 100000 --actors 2",
        f"--env {IDS}MaskedMemory-v0 --network mlp:16x1+gru:16 --discount 0.9 --total-env-steps 300000",
    ],
    ids=["an image and a vector", "masks in info, two actors", "a mask and a memory"],
)
def test_int8_actors_learn_from_dictionaries_and_masks(options: str, tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *COMMON.split(), *options.split(), "--stop-at-return", "9") as job:
        assert job.finish(LEARNING_LIMIT_S) == 0, job.output
        summary = job.summary()
        assert "reached 9" in summary.reason and job.mostly_acted_with("int8"), job.output
        assert "is masked" not in job.output
