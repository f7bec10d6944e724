"""What a run says at its end: figures survive the file, the text tells gains and losses, damage is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel.algorithms.catalogue import make_algorithm
from accel.algorithms.distributions import make_distribution
from accel.compressors.pipeline import make_compressor
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import CheckpointError
from accel.networks import build_network
from accel.publishing.publisher import Publisher
from accel.runs.directory import RunDirectory
from accel.runs.fp32_comparison import compare_with_fp32
from accel.runs.summary import EvaluationSummary, SchemeComparison, Summary

COMPARISON = SchemeComparison("int8", 8, 10.0, 20.0, 30.0, 1.5e-3, 0.975, 7000, 19000)
SUMMARY = Summary(
    path="results/x", reason="total_env_steps = 10 reached", env="CartPole-v1", scheme="int8",
    actor_runtime="onnxruntime", algorithm="impala", corrector="vtrace", actors=2, device="cpu", seed=0,
    env_steps=123456, updates=77, episodes=5, return_mean=12.25, training_s=2.0, wall_s=5.5, env_steps_per_s=61728.0,
    lag={"lag_min": 0, "lag_mean": 1.5, "lag_max": 4}, dropped_unrolls=3, dead_actors=1,
    learner_s={"forward": 1.0, "wait": 3.0, "batch": 0.0}, actor_s={"env": 1.0}, comparison=COMPARISON,
)  # fmt: skip


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY,
        replace(SUMMARY, comparison=None, return_mean=None),
        replace(SUMMARY, evaluation=EvaluationSummary(450.0, 120_000, 10, 500.0, 90_000), warnings=("a", "b")),
        replace(SUMMARY, return_mean=-math.inf, comparison=replace(COMPARISON, kl=math.inf)),
    ],
)
def test_a_summary_survives_its_file(summary: Summary, tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "run") as run:
        run.write(run.summary, summary.to_json())
    assert Summary.read(tmp_path / "run") == summary
    assert summary.text() == Summary.read(tmp_path / "run").text()


def test_the_text_has_every_figure() -> None:
    text = SUMMARY.text()
    assert "learner (cpu, bf16): " in replace(SUMMARY, mixed_precision="bf16").text()
    on_gpu = replace(SUMMARY, device="cuda", mixed_precision="bf16", learner_graphs="on").text()
    assert "learner (cuda, bf16, CUDA graphs): " in on_gpu
    for figure in (
        "mean return 12.2", "123,456 environment steps", "77 updates", "61,728 environment steps/s",
        "2.0 s of training", "5.5 s since", "0 / 1.5 / 4", "3 unrolls dropped", "1 actors died",
        "wait 75%, forward 25%", "results/x",
    ):  # fmt: skip
        assert figure in text, figure
    assert "batch" not in text


LEARNER_BOUND = {"learner_s": {"forward": 9.0, "wait": 1.0}, "actor_s": {"env": 1.0, "wait": 3.0}}


def test_a_run_without_an_update_says_why() -> None:
    assert "Raise --total-env-steps" in replace(SUMMARY, updates=0, finished=True).text()
    assert "Raise --total-env-steps" not in SUMMARY.text() + replace(SUMMARY, updates=0, finished=False).text()


def test_the_bottleneck_is_named_with_what_would_help() -> None:
    learner = replace(SUMMARY, **LEARNER_BOUND).text()
    assert "The learner is the bottleneck (actors wait for it 75% of their time)" in learner
    assert "a GPU (--device cuda), more cores or a smaller network would help" in learner
    assert "a faster GPU or a smaller network would help" in replace(SUMMARY, device="cuda", **LEARNER_BOUND).text()
    environment = replace(SUMMARY, learner_s={"wait": 9.0, "forward": 1.0}, actor_s={"env": 3.0, "policy": 1.0}).text()
    assert "The environment is the bottleneck (75% of the actors' busy time)" in environment
    policy = replace(SUMMARY, learner_s={"wait": 9.0, "forward": 1.0}, actor_s={"env": 1.0, "policy": 3.0}).text()
    balanced = replace(SUMMARY, learner_s={"wait": 1.0, "forward": 1.0}, actor_s={"env": 1.0, "wait": 1.0}).text()
    assert "bottleneck" not in policy + balanced


def test_processor_time_is_told() -> None:
    assert "CPU-seconds" not in SUMMARY.text()
    assert "12.5 CPU-seconds of training." in replace(SUMMARY, cpu_s=12.5).text()


def test_a_run_without_an_episode_or_an_unroll_says_so() -> None:
    empty = dict.fromkeys(("lag_min", "lag_mean", "lag_max"))
    text = replace(SUMMARY, return_mean=None, lag=empty, learner_s={}, actor_s={}).text()
    assert "no finished episode" in text and "- / - / -" in text


@pytest.mark.parametrize(
    ("policy_us", "verdict"),
    [
        (10.0, "runs at 2.00x fp32's speed here and saves 20%"),
        (20.5, "0.98x fp32's speed here and costs 1%"),
        (40.0, "0.50x fp32's speed here and costs 40%"),
    ],
)
def test_gains_and_losses_are_told_alike(policy_us: float, verdict: str) -> None:
    text = replace(COMPARISON, policy_us=policy_us).text()
    assert verdict in text
    assert ("--compressor fp32" in text) == (policy_us > 30)


def test_evaluations_and_warnings_are_told() -> None:
    text = replace(
        SUMMARY, evaluation=EvaluationSummary(450.0, 120_000, 10, 500.0, 90_000), warnings=("the policy has collapsed",)
    ).text()
    assert "greedy evaluation: mean return 450.0 over 10 episodes after 120,000 environment steps" in text
    assert "best 500.0 after 90,000" in text and "accel evaluate results/x --which best" in text
    assert "\nWarning: the policy has collapsed\n" in text
    assert "Warning" not in SUMMARY.text() and "--which" not in SUMMARY.text()


def test_nobody_is_told_to_leave_a_default() -> None:
    slower = replace(SUMMARY, comparison=replace(COMPARISON, policy_us=40.0))
    assert "--compressor fp32" in slower.text()
    text = replace(slower, compressor_chosen=False).text()
    assert "--compressor fp32" not in text and "0.50x fp32's speed here and costs 40% of an actor's step. Per" in text
    assert "--compressor fp32" not in replace(slower, compressor="auto(fp32;int8)").text()


def test_what_only_travels_in_fewer_bits_is_told_so() -> None:
    text = replace(COMPARISON, scheme="fp16", policy_us=20.5, bytes=9500, weight_only=True).text()
    assert "compute in floats" in text and "9500 or 19000 bytes" in text
    assert "compute in floats" not in replace(COMPARISON, weight_only=True).text()


def test_hints_suit_the_run() -> None:
    fixed = replace(SUMMARY, scheme="fp32", compressor="fp32", comparison=None)
    assert "--compressor auto" in fixed.text()
    tuned = replace(fixed, compressor="auto(fp32;int8)", path="results/x<script> y")
    assert "--compressor auto" not in tuned.text() and "accel bench policy" in tuned.text()
    assert "accel report 'results/x<script> y'" in tuned.text() and "why each level" in tuned.text()


def test_a_stopped_run_says_how_to_continue_it() -> None:
    assert "--resume" not in SUMMARY.text()
    stopped = replace(SUMMARY, reason="stopped by SIGINT", finished=False, path="results/x y")
    assert "\n  accel train --resume 'results/x y'    (continues the run)\n" in stopped.text()
    too_soon = replace(stopped, env_steps=0, updates=0).text()  # before there was a checkpoint
    assert "--resume" in replace(stopped, updates=0).text()
    assert "--resume" not in too_soon and "evaluate" not in too_soon
    assert "accel train --config 'results/x y'/config.toml --name NEW" in too_soon


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"path": "x"}'])
def test_a_missing_or_damaged_summary_is_named(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(CheckpointError, match="no readable summary"):
        Summary.read(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [("env_steps", "many"), ("training_s", None), ("lag", [1]), ("learner_s", {"wait": "long"}), ("actors", 1.5),
     ("comparison.bytes", 10**400), ("lag.lag_min", [1]), ("training_s", "1"), ("comparison.policy_us", 0),
     ("comparison.fp32_bytes", 0), ("comparison.env_us", -30.0)],
)  # fmt: skip
def test_a_summary_of_other_values_is_named_with_the_field(place: str, value: object, tmp_path: Path) -> None:
    document = SUMMARY.to_json()
    part: Any = document
    *outer, name = place.split(".")
    for key in outer:
        part = part[key]
    part[name] = value
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=rf"no readable summary.json \({place}"):
        Summary.read(tmp_path)


@pytest.mark.parametrize("action", [ActionSpec("categorical", (3,)), ActionSpec("gaussian", (2,), (-1, -1), (1, 1))])
def test_a_scheme_is_compared_on_the_inputs_it_is_given(action: ActionSpec) -> None:
    torch.manual_seed(0)
    spec = EnvSpec((5,), "float32", action)
    config = TrainConfig.create(compressor="fp32", network="mlp:16x1")
    network = make_algorithm(config, spec, torch.device("cpu")).network
    distribution = partial(make_distribution, action)
    with torch.no_grad():
        for parameter in network.policy_head.parameters():
            parameter.mul_(50.0)
    publisher = Publisher(config, network)
    fp32 = publisher.full_precision(3)
    inputs = {"observations": np.random.default_rng(0).normal(size=(21, 5)).astype(np.float32)}
    same = compare_with_fp32(fp32, fp32, inputs, distribution, action, batch=8, env_us=12.0)
    assert same.kl == pytest.approx(0, abs=1e-6) and same.agreement == (1.0 if action.kind == "categorical" else None)
    assert not same.weight_only
    module = network.acting_module()
    plan = make_compressor("fp16").bind(module, {"observations": torch.zeros(1, 5)}, output_names=module.output_names)
    half = plan.refresh(module, version=3)
    assert compare_with_fp32(half, fp32, inputs, distribution, action, batch=8, env_us=12.0).weight_only
    assert min(same.fp32_us, same.policy_us) > 0 and same.bytes == same.fp32_bytes == len(fp32.to_bytes())
    other = build_network("mlp:16x1", spec)
    changed = Publisher(config, other).full_precision(3)
    result = compare_with_fp32(changed, fp32, inputs, distribution, action, batch=8, env_us=12.0)
    with torch.no_grad():
        observations = torch.from_numpy(inputs["observations"])
        full, compressed = (make_distribution(action, n.acting_module()(observations)[0]) for n in (network, other))
    assert result.kl == pytest.approx(full.kl(compressed).mean().item(), rel=1e-3)
    assert (result.batch, result.env_us) == (8, 12.0)
