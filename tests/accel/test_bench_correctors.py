"""The correctors' benchmark measures every cell and says the share of the learner's time."""

from __future__ import annotations

import pytest
import torch

from accel.bench.correctors import bench_correctors

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_one_flat_row_for_every_corrector_length_and_batch(device: str) -> None:
    rows = bench_correctors(lengths=(3, 5), batches=(2,), device=device, repeats=4)
    cells = [(row["corrector"], row["T"], row["B"], row["device"]) for row in rows]
    assert cells == [(c, length, 2, device) for length in (3, 5) for c in ("none", "vtrace", "retrace")]
    for row in rows:
        us, low, high, learner_us = (float(row[k]) for k in ("us", "us_low", "us_high", "learner_us"))
        assert 0 < low <= us <= high
        assert 0 < float(row["cpu_share"]) <= 1.01
        assert row["share"] == pytest.approx(us / (us + learner_us))
