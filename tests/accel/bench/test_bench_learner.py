"""The learner's benchmark times real updates of every precision, phase by phase, on experience of the right shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accel.bench import learner as bench
from accel.bench.learner import bench_learner
from accel.config import TrainConfig
from accel.envs.spaces import ActionSpec, EnvSpec
from accel.errors import ConfigError
from accel.experience.unroll import UnrollLayout
from accel.learning.device import choose_precision

CATEGORICAL = ActionSpec("categorical", (3,))
GAUSSIAN = ActionSpec("gaussian", (2,), (-1.0,) * 2, (1.0,) * 2)
VECTOR = EnvSpec((5,), "float32", CATEGORICAL)
LEARNERS = [
    ({"network": "mlp:8x1"}, VECTOR),
    ({"network": "mlp:8x1+lstm:4"}, VECTOR),
    ({"network": "mlp:8x1", "algorithm": "impala", "corrector": "retrace"}, VECTOR),
    ({"network": "mlp:8x1", "normalise_observations": True, "compressor": "qat"}, VECTOR),
    ({"network": "mlp:8x1", "algorithm": "ppo", "passes": 2, "minibatches": 3, "target_kl": 0.01},
     EnvSpec((5,), "float32", GAUSSIAN, "same_step")),
    ({"network": "nature-cnn:0.25", "algorithm": "ppo", "minibatches": 2},
     EnvSpec((4, 36, 36), "uint8", CATEGORICAL, "next_step", 4, "zero")),
]  # fmt: skip


def can_bf16() -> bool:
    try:
        choose_precision(TrainConfig(mixed_precision="bf16"), torch.device("cpu"))
    except ConfigError:
        return False
    return True


@pytest.mark.few(4)
@pytest.mark.parametrize(("options", "spec"), LEARNERS)
def test_a_row_for_each_precision_whose_phases_make_the_whole(options: dict[str, object], spec: EnvSpec) -> None:
    config = TrainConfig.create(
        **{"algorithm": "ppo"} | options, unroll_length=6, envs_per_actor=3, batch_unrolls=2, device="cpu"
    )
    refused: list[str] = []
    rows = bench_learner([config], spec, seconds=0.05, repeats=4, notify=refused.append)
    precisions = ["none", "bf16"] if can_bf16() else ["none"]
    assert [(row["learner"], row["precision"]) for row in rows] == [
        *(("accel", precision) for precision in precisions),
        ("eager", "none"),
    ]
    assert {row["graphs"] for row in rows} == {"off"}
    assert len(precisions) + len(refused) == 2
    for row in rows:
        assert (row["network"], row["T"], row["B"], row["device"]) == (str(options["network"]), 6, 6, "cpu")
        low, us, high = (float(row[f"us_per_env_step{end}"]) for end in ("_low", "", "_high"))
        phases = [float(row[f"{phase}_us"]) for phase in bench.PHASES]
        assert 0 < low <= us <= high and min(phases) > 0
        assert max(phases) < high
        assert row["env_steps_per_s"] == pytest.approx(1e6 / us)
        assert row["speedup_none"] == pytest.approx(float(rows[0]["us_per_env_step"]) / us)


def test_trainings_of_one_network_are_told_apart() -> None:
    base = TrainConfig.create(network="mlp:8x1", algorithm="ppo", unroll_length=6, device="cpu", learner_threads=2)
    configs = [base.replace(passes=passes) for passes in (1, 3)]
    rows = bench_learner(configs, VECTOR, seconds=0.05, repeats=3)
    assert [(row["passes"], row["speedup_none"], row["torch_threads"]) for row in rows[:2]] == [
        (1, 1.0, 2),
        (3, 1.0, 2),
    ]
    with pytest.raises(ConfigError, match="no configuration"):
        bench_learner([], VECTOR)


def test_the_learner_takes_its_whole_number_of_steps_and_stays_as_it_is() -> None:
    config = TrainConfig.create(
        network="mlp:8x1", unroll_length=6, envs_per_actor=3, algorithm="ppo", passes=3, minibatches=2
    )
    cell = bench.LearnerCell(config, VECTOR, torch.device("cpu"))
    before = [parameter.clone() for parameter in cell.algorithm.network.parameters()]
    times = cell.take()
    assert cell.algorithm.optimizer.state["step"] == 6 and min(times.values()) > 0
    assert 0 < cell.valid_steps <= 18
    for old, new in zip(before, cell.algorithm.network.parameters(), strict=True):
        assert torch.allclose(old, new, atol=1e-5) and not torch.equal(old, new)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_experience_has_ends_and_resets_as_environments_make_them(mode: str) -> None:
    spec = EnvSpec((5,), "float32", CATEGORICAL, mode)  # type: ignore[arg-type]
    unroll = bench.random_experience(UnrollLayout(spec, 200, 8), 0)
    ended, first, valid = unroll["terminated"], unroll["first"], unroll["valid"]
    assert ended.any() and not (ended & ~valid[:-1]).any()
    if mode == "same_step":
        assert valid.all() and np.array_equal(first[1:], ended)
    else:
        assert not valid.all() and np.array_equal(first[1:], ~valid[:-1])
        behind = valid[1:][ended]
        assert not behind.any()
    again = bench.random_experience(UnrollLayout(spec, 200, 8), 0)
    assert all(np.array_equal(array, again[name]) for name, array in unroll.arrays.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
def test_on_cuda_there_are_rows_with_and_without_graphs() -> None:
    config = TrainConfig.create(network="mlp:8x1", algorithm="ppo", unroll_length=6, envs_per_actor=3, device="cuda")
    rows = bench_learner([config], VECTOR, seconds=0.5, repeats=4)
    assert [row["graphs"] for row in rows] == ["off", "on"] * 2
    plain, graphs = rows[:2]
    assert float(graphs["forward_us"]) == 0.0 < float(plain["forward_us"])  # type: ignore[arg-type]
