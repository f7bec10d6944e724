"""What actors run their policy on: chosen by the configuration and the policy, and said in the summary."""

from __future__ import annotations

from pathlib import Path

import pytest

import accel
from accel.compressors.kernels.library import kernels_here, why_none

NATIVE = "native" if kernels_here() else f"onnxruntime ({why_none()})"

ONLY_AVX2 = [kernels.suffix for kernels in kernels_here()] == ["avx2"]
UNSUMMED = "weights of 8 bits are not summed exactly by the kernels for AVX2"


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("options", "runtime"),
    [
        ({"compressor": "fp32"}, NATIVE),
        ({"compressor": "int8(s8s8)"}, f"{NATIVE}, onnxruntime ({UNSUMMED})" if ONLY_AVX2 else NATIVE),
        ({"compressor": "fp32", "actor_runtime": "onnxruntime"}, "onnxruntime"),
        ({"compressor": "fp32", "actor_runtime": "torch"}, "torch"),
        ({"compressor": "fp32", "network": "mlp:8x1+lstm:8"}, NATIVE),
        ({"compressor": "int8(reduce_range)", "network": "mlp:8x1+gru:8"}, NATIVE),
        ({"compressor": "fp32", "env_workers": 2}, NATIVE),
    ],
)
def test_the_summary_says_what_actors_ran_on(options: dict[str, object], runtime: str, tmp_path: Path) -> None:
    defaults = {"env": "CartPole-v1", "network": "mlp:16x2", "unroll_length": 25, "envs_per_actor": 2}
    config = accel.TrainConfig.create(
        **defaults | {"algorithm": "impala", "actors": 0, "total_env_steps": 1000, "calibration_size": 64} | options,
        results_dir=tmp_path,
        name="run",
    )
    summary = accel.train(config)
    assert summary.actor_runtime == runtime
    assert f" on {runtime.replace('native', 'native kernels')}: " in summary.text()
