"""The comparison with other libraries' updates: rows of one training, and as many optimiser steps as accel makes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError
from tests.scripts import load

DISCRETE = EnvSpec((5,), "float32", ActionSpec("categorical", (3,)))
CONTINUOUS = EnvSpec((5,), "float32", ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2))
INSTALLED = ["cleanrl", *(["sb3"] if importlib.util.find_spec("stable_baselines3") else [])]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("evidence/other_learners.py")


def test_rows_of_one_training(script: ModuleType, tmp_path: Path) -> None:
    small = ["network=mlp:8x1", "unroll_length=6", "passes=2", "minibatches=2", "env=CartPole-v1"]
    script.main(["--seconds", "0.05", "--repeats", "3", "--out", str(tmp_path / "rows.json"), *small])
    ours, *theirs = json.loads((tmp_path / "rows.json").read_text())
    assert ours["learner"] == "accel" and [row["learner"] for row in theirs] == INSTALLED
    assert {(row["T"], row["B"], row["passes"], row["minibatches"]) for row in theirs} == {(6, 8, 2, 2)}
    assert all(row["speedup_none"] == ours["us_per_env_step"] / row["us_per_env_step"] for row in theirs)


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_every_update_makes_all_its_optimiser_steps(script: ModuleType, spec: EnvSpec, name: str) -> None:
    task, steps = script.Task(spec, (8,), torch.nn.Tanh, 6, 4, 3, 4, torch.device("cpu")), list[object]()
    update = script.OTHERS[name](task)
    hook = register_optimizer_step_post_hook(lambda *given: steps.append(given))
    try:
        update()
        update()
    finally:
        hook.remove()
    assert len(steps) == 2 * 3 * 4


def test_rows_of_sac(script: ModuleType, tmp_path: Path) -> None:
    small = ["env=Pendulum-v1", "algorithm=sac", "network=mlp:8x1", "batch_size=4"]
    script.main(["--seconds", "0.05", "--repeats", "3", "--out", str(tmp_path / "rows.json"), *small])
    rows = json.loads((tmp_path / "rows.json").read_text())
    installed = [name for name, library in script.PEERS_OF_SAC.items() if importlib.util.find_spec(library)]
    assert [row["learner"] for row in rows] == ["accel", *installed]
    assert all(0 < row["us_low"] <= row["us"] and (row["network"], row["batch_size"]) == ("mlp:8x1", 4) for row in rows)
    with pytest.raises(ConfigError, match="n_step: SAC is compared"):
        script.main([*small, "n_step=3"])
