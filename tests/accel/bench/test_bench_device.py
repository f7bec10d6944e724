"""accel bench learner --backend device: the environment alone, collecting, training, of a real run's parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.bench.device import bench_device
from accel.cli.bench import main
from accel.config import TrainConfig
from accel.errors import ConfigError

ENV = "accel.envs.torch_classic:CartPole"


@pytest.mark.parametrize("options", [{}, {"algorithm": "impala"}], ids=["dppo", "impala"])
def test_rows_go_from_the_environment_alone_to_training(options: dict[str, object]) -> None:
    config = TrainConfig(
        env=ENV, backend="device", network="mlp:8x1", envs_per_actor=64, unroll_length=8, device="cpu", **options
    )
    rows = bench_device(config, seconds=0.05, repeats=3)
    assert [row["learner"] for row in rows] == ["environment alone", "collected", "trained"]
    for row in rows:
        assert (row["T"], row["B"], row["samples"], row["device"]) == (8, 64, 3, "cpu")
        assert row["env_steps_per_s"] == pytest.approx(1e6 / float(str(row["us_per_env_step"])))


def test_the_command_measures_the_training_that_its_options_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"learner --backend device --env {ENV} --envs 32 --passes 1 --seconds 0.1 --repeats 2 --threads 1"
    assert main([*words.split(), "--json", str(tmp_path / "rows.json")]) == 0
    text = capsys.readouterr().out
    assert "16 x 32 steps of accel.envs.torch_classic:CartPole, dppo, passes: 1" in " ".join(text.split())
    assert (tmp_path / "rows.json").exists() and "trained" in text
    with pytest.raises(ConfigError, match="--backend device measures one training"):
        main([*words.split(), "--network", "mlp:8x1,mlp:16x1"])
