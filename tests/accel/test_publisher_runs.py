"""Whole runs in one process at lossy schemes: deterministic, recorded, and left behind as artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.launch.train import train
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from tests.accel.live_policies import config_for, make_batch, make_network, observe, payload_of

CLOCKS = ("_ms", "_s", "_share", "per_s", "rate")


def _run(directory: Path, compressor: str) -> tuple[dict[str, object], dict[str, object], bytes]:
    config = TrainConfig.create(
        env="CartPole-v1", algorithm="impala", actors=0, envs_per_actor=8, unroll_length=16, network="mlp:32x2",
        compressor=compressor, total_env_steps=4_000, calibration_size=128, learner_threads=1, device="cpu", seed=3,
        results_dir=directory, name="run", log_interval_s=1000.0,
    )  # fmt: skip
    summary = train(config)
    path = Path(summary.path)
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    return vars(summary), last, (path / "policy" / "final.accel").read_bytes()


@pytest.mark.parametrize("compressor", ["prune(0.5)+int8", "distill(16x2)"])
def test_runs_at_lossy_schemes_repeat_exactly(compressor: str, tmp_path: Path) -> None:
    first, second = (_run(tmp_path / name, compressor) for name in ("a", "b"))
    assert first[0]["return_mean"] == second[0]["return_mean"] and first[0]["scheme"] == compressor
    assert first[2] == second[2] and CompressedPolicy.from_bytes(first[2]).scheme == compressor
    steady = [{k: v for k, v in run[1].items() if not k.split("/")[0].endswith(CLOCKS)} for run in (first, second)]
    assert steady[0][f"publish_kl/{compressor}"] == steady[1][f"publish_kl/{compressor}"] > 0.0
    expected = "reselections" if "prune" in compressor else "distill_kl"
    assert steady[0][f"{expected}/{compressor}"] == steady[1][f"{expected}/{compressor}"] > 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: a machine with a GPU runs it")
@pytest.mark.parametrize(
    "compressor", ["qat", "prune(0.5)+qat", "prune(0.5)+int8", "lowrank(0.25)+int8", "distill(16x2)+int8"]
)
@pytest.mark.parametrize("network", ["mlp:64x2", "nature-cnn:0.5"])
def test_a_learner_on_cuda_publishes_what_one_on_the_cpu_does(network: str, compressor: str) -> None:
    config = config_for(network, compressor)
    artifacts = {}
    for device in ("cpu", "cuda"):
        net = make_network(config).to(device)
        publisher = Publisher(config, net, intervals=Intervals(check=1))
        for update in range(40):
            batch = make_batch(net, seed=update)
            observe(publisher, net, batch)
            payload_of(publisher)
        assert publisher.scheme == compressor and publisher.metrics()[f"withheld/{compressor}"] == 0
        artifacts[device] = publisher.artifact(1)
        params = net(batch.observations.to(device), batch.first.to(device)).params
        assert torch.isfinite(params).all()
    if compressor == "qat":  # selections, bases and students differ a little on another device
        ours, theirs = (np.frombuffer(a.model, np.uint8) for a in artifacts.values() if a is not None)
        assert ours.shape == theirs.shape and np.mean(ours != theirs) < 0.01
