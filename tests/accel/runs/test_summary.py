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


def times(learner: dict[str, float], actor: dict[str, float]) -> dict[str, Any]:
    return {"learner_s": learner, "actor_s": actor}


def compared(**changes: Any) -> dict[str, Any]:
    return {"comparison": replace(COMPARISON, **changes)}


LEARNER_BOUND = times({"forward": 9.0, "wait": 1.0}, {"env": 1.0, "wait": 3.0})
FIXED = {"scheme": "fp32", "compressor": "fp32", "comparison": None}
TUNED = FIXED | {"compressor": "auto(fp32;int8)", "path": "results/x<script> y"}
STOPPED = {"reason": "stopped by SIGINT", "finished": False, "path": "results/x y"}
EVALUATED = {
    "evaluation": EvaluationSummary(450.0, 120_000, 10, 500.0, 90_000), "warnings": ("the policy has collapsed",)
}  # fmt: skip
LEAVE, FLOATS, ANEW = "--compressor fp32", "compute in floats", "accel train --config 'results/x y'/config.toml"
TEXTS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    (
        {},
        ("mean return 12.2", "123,456 environment steps", "77 updates", "61,728 environment steps/s",
         "2.0 s of training", "5.5 s since", "0 / 1.5 / 4", "3 unrolls dropped", "1 actors died",
         "wait 75%, forward 25%", "results/x"),
        ("batch", "CPU-seconds", "Warning", "--which", "--resume", "Raise --total-env-steps"),
    ),
    ({"mixed_precision": "bf16"}, ("learner (cpu, bf16): ",), ()),
    ({"device": "cuda", "mixed_precision": "bf16", "learner_graphs": "on"}, ("(cuda, bf16, CUDA graphs): ",), ()),
    ({"updates": 0}, ("Raise --total-env-steps",), ()),
    ({"updates": 0, "finished": False}, ("--resume",), ("Raise --total-env-steps",)),
    (
        LEARNER_BOUND,
        ("The learner is the bottleneck (actors wait for it 75% of their time)",
         "a GPU (--device cuda), more cores or a smaller network would help"),
        (),
    ),
    (LEARNER_BOUND | {"device": "cuda"}, ("a faster GPU or a smaller network would help",), ()),
    (
        times({"wait": 9.0, "forward": 1.0}, {"env": 3.0, "policy": 1.0}),
        ("The environment is the bottleneck (75% of the actors' busy time)",),
        (),
    ),
    (times({"wait": 9.0, "forward": 1.0}, {"env": 1.0, "policy": 3.0}), (), ("bottleneck",)),
    (times({"wait": 1.0, "forward": 1.0}, {"env": 1.0, "wait": 1.0}), (), ("bottleneck",)),
    ({"cpu_s": 12.5}, ("12.5 CPU-seconds of training.",), ()),
    (
        {"return_mean": None, "lag": dict.fromkeys(("lag_min", "lag_mean", "lag_max")), **times({}, {})},
        ("no finished episode", "- / - / -"),
        (),
    ),
    (compared(policy_us=10.0), ("runs at 2.00x fp32's speed here and saves 20%",), (LEAVE,)),
    (compared(policy_us=20.5), ("0.98x fp32's speed here and costs 1%",), (LEAVE,)),
    (compared(policy_us=40.0), ("0.50x fp32's speed here and costs 40%", LEAVE), ()),
    (
        compared(policy_us=40.0) | {"compressor_chosen": False},  # nobody is told to leave a default
        ("0.50x fp32's speed here and costs 40% of an actor's step. Per",),
        (LEAVE,),
    ),
    (compared(policy_us=40.0) | {"compressor": "auto(fp32;int8)"}, (), (LEAVE,)),
    (compared(scheme="fp16", policy_us=20.5, bytes=9500, weight_only=True), (FLOATS, "9500 or 19000 bytes"), ()),
    (compared(weight_only=True), (), (FLOATS,)),
    (
        EVALUATED,
        ("greedy evaluation: mean return 450.0 over 10 episodes after 120,000 environment steps",
         "best 500.0 after 90,000", "accel evaluate results/x --which best", "\nWarning: the policy has collapsed\n"),
        (),
    ),
    (FIXED, ("--compressor auto",), ()),
    (
        TUNED,
        ("accel bench policy", "accel report 'results/x<script> y'", "why each level"),
        ("--compressor auto",),
    ),
    (STOPPED, ("\n  accel train --resume 'results/x y'    (continues the run)\n",), ()),
    (STOPPED | {"env_steps": 0, "updates": 0}, (f"{ANEW} --name NEW",), ("--resume", "evaluate")),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "told", "untold"), TEXTS)
def test_the_text_has_the_figures_and_hints_that_suit_the_run(
    changes: dict[str, Any], told: tuple[str, ...], untold: tuple[str, ...]
) -> None:
    text = replace(SUMMARY, **changes).text()
    assert [phrase for phrase in told if phrase not in text] == [phrase for phrase in untold if phrase in text] == []


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
