"""Collapses are said once, with what to try; healthy runs, kept record by record, are not accused."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec
from accel.learning.collapse import CollapseDetector, low_entropy

KEPT = json.loads(gzip.decompress(Path(__file__).with_name("collapse_runs.json.gz").read_bytes()))["runs"]
HEALTHY = sorted(name for name, run in KEPT.items() if run["healthy"])
SICK = {"cart-collapse-s0": "the policy has collapsed", "pendulum-default-s0": "the critic explains nothing"}


def replay(run: dict[str, Any], total_env_steps: int) -> tuple[str, ...]:
    """What is said of a kept run if it was to be that long."""
    action = {"low": [], "high": [], "squash": False, **run["action"]}
    config = TrainConfig.create(
        algorithm=run["algorithm"], total_env_steps=total_env_steps, stop_window=run["stop_window"]
    )
    detector = CollapseDetector(config, ActionSpec.from_json(action))
    columns = run["columns"]
    for i, env_steps in enumerate(columns["env_steps"]):
        detector.observe(env_steps, {name: values[i] for name, values in columns.items()})
    return detector.findings


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("whole", [False, True], ids=["as asked", "as if over now"])
def test_healthy_runs_are_not_accused(name: str, whole: bool) -> None:
    run = KEPT[name]
    assert replay(run, run["columns"]["env_steps"][-1] if whole else run["total_env_steps"]) == ()


@pytest.mark.parametrize("name", SICK)
def test_collapsed_runs_are_told_with_what_to_try(name: str) -> None:
    run = KEPT[name]
    said = replay(run, 100_000)
    assert said[0].startswith(SICK[name]) and "--learning-rate" in said[0]
    assert len({text.split(":")[0] for text in said}) == len(said) <= 2


def test_a_critic_alone_accuses_nobody() -> None:
    """The kept healthy runs tell the conditions apart: without that on returns some would be accused."""
    explained = [v for v in KEPT["cart-ppo-s0"]["columns"]["explained_variance"] if v is not None]
    assert max(explained) <= 0


def sequence(**columns: list[float | None]) -> dict[str, Any]:
    length = len(next(iter(columns.values())))
    steps = {"env_steps": [1000 * (i + 1) for i in range(length)], "episodes": [100 + i for i in range(length)]}
    usual = {"entropy": [1.0] * length, "explained_variance": [0.5] * length}
    action = {"kind": "categorical", "sizes": [4]}
    return {"algorithm": "ppo", "stop_window": 100, "action": action, "columns": {**steps, **usual, **columns}}


RISE: list[float | None] = [float(i) for i in range(1, 31)]


FALLEN: list[float | None] = [1.0] * 30 + [0.001] * 30
NOTHING = "the critic explains nothing"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"return_mean": RISE + [3.0] * 30, "entropy": FALLEN}, "the policy has collapsed.*from 30 to 3"),
        ({"return_mean": RISE + [3.0] * 30, "entropy": [1.0] * 30 + [0.2] * 30}, ""),  # a dip of one that explores
        ({"return_mean": RISE + [30.0] * 30, "entropy": FALLEN}, ""),  # it has learned all there is
        ({"return_mean": RISE + [3.0, 29.0] * 15, "entropy": FALLEN}, ""),  # it recovers each time
        ({"return_mean": RISE + [3.0] * 30, "entropy": [None] * 60}, ""),  # an algorithm without entropy
        ({"return_mean": [500.0] * 5 + [499.0] * 55, "entropy": [0.001] * 60}, ""),  # it hardly fell
        ({"return_mean": [5.0] * 40, "explained_variance": [-0.1] * 40}, NOTHING),
        ({"return_mean": [5.0 + i for i in range(40)], "explained_variance": [-0.1] * 40}, ""),
        ({"return_mean": [5.0] * 40, "explained_variance": [-0.1, 0.3] * 20}, ""),
        ({"return_mean": [-1000.0 + i for i in range(40)], "explained_variance": [0.0] * 40}, NOTHING),
        (
            {"return_mean": [None] * 40, "explained_variance": [-1.0] * 40, "episodes": [0] * 40},
            f"{NOTHING}(?!.*has not risen)",
        ),
    ],
)
def test_returns_accuse_a_policy_without_entropy_and_a_critic_that_explains_nothing(
    columns: dict[str, list[float | None]], said: str
) -> None:
    found = replay(sequence(**columns), 60_000 if "entropy" in columns else 100_000)
    assert bool(found) == bool(said) and (not said or re.match(said, found[0])), found


def test_a_resumed_run_remembers_what_its_returns_rose_from(tmp_path: Path) -> None:
    """A critic explains nothing where every state is worth the same: a policy that has learned all is not accused."""
    columns = sequence(return_mean=[20.0 + 20.0 * min(i, 24) for i in range(80)], explained_variance=[-0.1] * 80)[
        "columns"
    ]
    records = [{name: values[i] for name, values in columns.items()} for i in range(80)]
    config = TrainConfig.create(algorithm="ppo", total_env_steps=100_000)
    continued, fresh = (CollapseDetector(config, ActionSpec("categorical", (4,))) for _ in range(2))
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join([*map(json.dumps, records[:40]), '{"env_steps": 40000, "cut', ""])
    )
    continued.read(tmp_path / "metrics.jsonl")
    for detector in (continued, fresh):
        for record in records[40:]:
            detector.observe(int(record["env_steps"]), record)
    assert continued.findings == () and fresh.findings != ()


def test_an_action_that_cannot_vary_has_no_part_in_the_entropy() -> None:
    free, fixed = ActionSpec("gaussian", (1,), (-1.0,), (1.0,)), ActionSpec("gaussian", (2,), (-1.0, 0.0), (1.0, 0.0))
    assert low_entropy(fixed) == low_entropy(free)


def test_little_entropy_is_relative_to_the_action_space() -> None:
    assert low_entropy(ActionSpec("categorical", (2,))) == pytest.approx(0.01 * math.log(2))
    assert low_entropy(ActionSpec("multi_categorical", (2, 3))) == pytest.approx(0.01 * math.log(6))
    wide = ActionSpec("gaussian", (2,), (-2.0, -math.inf), (2.0, math.inf))
    gaussians = [0.5 * math.log(2 * math.pi * math.e * sigma**2) for sigma in (0.02, 0.01)]
    assert low_entropy(wide) == pytest.approx(sum(gaussians))
