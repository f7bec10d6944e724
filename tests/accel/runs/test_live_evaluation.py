"""Evaluation while training: repeatable, without influence on what is learned, and the best policy can be played."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import accel
from accel.cli import main
from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.errors import CheckpointError
from accel.json_object import Json
from accel.runs.checkpoint import CheckpointState, CheckpointStore
from accel.runs.directory import RunDirectory
from accel.runs.live_evaluation import FIRST_SEED, ProcessEvaluation
from accel.runs.loading import load_run
from accel.runs.playing import play
from accel.runs.summary import EvaluationSummary, Summary

EVERY = 800


def configure(path: Path, name: str, **options: object) -> TrainConfig:
    small: dict[str, object] = {
        "actors": 0, "envs_per_actor": 8, "unroll_length": 16, "network": "mlp:16x1", "learner_threads": 1,
        "algorithm": "ppo", "compressor": "int8",
        "total_env_steps": 2000, "log_interval_s": 0.02, "calibration_size": 256, "evaluate_every": EVERY,
        "evaluation_episodes": 4, "seed": 3,
    }  # fmt: skip
    return TrainConfig.create(**(small | {"results_dir": path, "name": name} | options))


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "evaluation_return" in line]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    accel.train(configure(path, "run"))
    return path / "run"


@pytest.mark.slow
def test_policies_are_played_at_their_steps_and_told_everywhere(evaluated: Path) -> None:
    found = evaluations(evaluated)
    steps = [line["evaluation_env_steps"] for line in found]
    assert [step // EVERY for step in steps] == [1, 2, 2] and steps[-1] >= 2000
    best = max(found, key=lambda line: line["evaluation_return"])
    summary = Summary.read(evaluated).evaluation
    assert summary == EvaluationSummary(
        found[-1]["evaluation_return"], steps[-1], 4, best["evaluation_return"], best["evaluation_env_steps"]
    )
    text = Summary.read(evaluated).text()
    assert f"best {summary.best_mean:.1f} after {summary.best_env_steps:,}" in text and "--which best" in text
    assert all(8 <= line["evaluation_length"] == line["evaluation_return"] <= 500 for line in found)


def test_the_best_policy_is_the_one_that_was_played(evaluated: Path) -> None:
    summary, run = Summary.read(evaluated).evaluation, load_run(evaluated, which="best")
    assert run.arguments == (str(evaluated), "--which", "best"), "what a sweep's command exports"
    assert load_run(evaluated).arguments == (str(evaluated),)
    assert summary is not None and run.env_steps == summary.best_env_steps
    artifact = CompressedPolicy.read(evaluated / "policy" / "best.accel")
    played = play(artifact, run, episodes=4, seed=FIRST_SEED + 3)
    assert played.returns.mean() == summary.best_mean
    observations = torch.randn(64, 4)
    newest = load_run(evaluated)
    same = torch.equal(run.policy(observations)[0], newest.policy(observations)[0])
    assert same == (run.version == newest.version)


def test_the_program_plays_and_exports_the_best(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = Summary.read(evaluated).evaluation
    assert main(["evaluate", str(evaluated), "--which", "best", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env_steps"] == summary.best_env_steps
    out = tmp_path / "bundle"
    assert main(["export", str(evaluated), "--which", "best", "--out", str(out), "--episodes", "0"]) == 0
    assert f"{summary.best_env_steps:,}" in (out / "MODEL_CARD.md").read_text()
    assert main(["evaluate", "--which", "best", "--policy", "x.zip", "--env", "CartPole-v1"]) == 2
    assert "--which best is for runs" in capsys.readouterr().err


@pytest.mark.slow
def test_it_changes_nothing_that_is_learned_and_is_the_same_twice(evaluated: Path, tmp_path: Path) -> None:
    accel.train(configure(tmp_path, "again"))
    accel.train(configure(tmp_path, "without", evaluate_every=None))
    again, without = (RunDirectory.open(tmp_path / n, read_only=True) for n in ("again", "without"))
    ours = RunDirectory.open(evaluated, read_only=True)
    for other in (again, without):
        tensors = other.load_checkpoint().tensors
        assert all(torch.equal(value, tensors[name]) for name, value in ours.load_checkpoint().tensors.items())
    keys = ("evaluation_env_steps", "evaluation_return", "evaluation_length", "evaluation_best_return")
    assert [[r[k] for k in keys] for r in evaluations(evaluated)] == [
        [r[k] for k in keys] for r in evaluations(tmp_path / "again")
    ]
    kept, theirs = ours.load_checkpoint("best"), again.load_checkpoint("best")
    assert kept.counters == theirs.counters
    assert all(torch.equal(value, theirs.tensors[name]) for name, value in kept.tensors.items())
    assert not without.best.exists() and not evaluations(tmp_path / "without")
    with pytest.raises(CheckpointError, match="--evaluate-every N"):
        load_run(tmp_path / "without", which="best")


@pytest.mark.long
def test_a_resumed_run_keeps_the_best_it_had(tmp_path: Path) -> None:
    first = accel.train(configure(tmp_path, "run", total_env_steps=1700)).evaluation
    rate = 1e-9  # from there on nothing is learned
    config = configure(tmp_path, "run", total_env_steps=2600, learning_rate=rate)
    second = accel.train(config, resume=tmp_path / "run").evaluation
    assert second is not None and second.env_steps >= 2600
    assert second.best_mean >= first.best_mean
    steps = [line["evaluation_env_steps"] for line in evaluations(tmp_path / "run")]
    assert steps == sorted(set(steps))


@pytest.mark.long
def test_torch_actors_policies_are_played_too(tmp_path: Path) -> None:
    config = configure(tmp_path, "run", actor_runtime="torch", compressor="fp32", total_env_steps=900)
    summary = accel.train(config).evaluation
    assert summary is not None and summary.best_mean > 8
    assert load_run(tmp_path / "run", which="best").env_steps == summary.best_env_steps


def evaluation_of(run: Path, spec: Json) -> ProcessEvaluation:
    return ProcessEvaluation(
        run, spec, every=10, env_steps=0, waits=True, cores=None, limits_s=(20.0, 60.0), stopped=lambda: None
    )


def test_every_result_is_told_once_and_one_best_policy_kept_however_old_the_run(
    evaluated: Path, tmp_path: Path
) -> None:
    """As after a kill: the newest checkpoint is older than the best evaluation."""
    path = shutil.copytree(evaluated, tmp_path / "run")
    run, artifact = RunDirectory.open(path, read_only=True), (path / "policy" / "final.accel").read_bytes()
    best = run.load_checkpoint("best")
    shutil.rmtree(run.best)
    poor = {"best_mean": -1.0, "best_env_steps": 10**6}
    counters = {**best.counters, "env_steps": 10**6, "evaluation": poor}
    CheckpointStore(run.best, 1).save(CheckpointState(best.tensors, {}, counters))  # type: ignore[arg-type]
    newest = load_run(path)
    weights = save({name: value.clone() for name, value in newest.algorithm.networks.state_dict().items()})
    evaluation = evaluation_of(path, newest.spec.to_json())
    for step in (10, 20):
        evaluation.offer(step, step, artifact, lambda: weights)
    evaluation.finish(25, 25, artifact, lambda: weights, 300.0)
    told = [evaluation.metrics() for _ in range(4)]
    evaluation.close()
    assert [news.get("evaluation_env_steps") for news in told] == [10, 20, 25, None]
    assert run.load_checkpoint("best").env_steps <= 25 and len(CheckpointStore(run.best).paths()) == 1


def test_a_failing_evaluation_is_told_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = evaluation_of(tmp_path, {})  # there is no run there
    with caplog.at_level(logging.WARNING, "accel"):
        for step in (5, 10, 20, 30):
            evaluation.offer(step, step, b"", bytes)
    evaluation.close()
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == len(caplog.records) == 1
    assert "no more evaluations: RunDirectoryError" in caplog.text and "the run goes on" in caplog.text
    assert evaluation.metrics() == {} and evaluation.result is None
