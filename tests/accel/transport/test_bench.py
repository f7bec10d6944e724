"""The transport benchmark measures every direction over every carrier, and refuses what it cannot measure."""

from __future__ import annotations

import pytest

from accel.bench.transport import bench_transport
from accel.errors import TransportError
from tests.contracts.ranks import need_mpirun

DIRECTIONS = {"idle receive", "idle pump", "policy", "unroll", "round trip", "unroll stream"}


@pytest.mark.mpi
def test_rows() -> None:
    need_mpirun()
    rows = bench_transport((64, 4096), repeats=5)
    assert [row["carrier"] for row in rows] == ["local"] * 12 + ["mpi"] * 12
    for carrier in ("local", "mpi"):
        for size in (64, 4096):
            mine = [row for row in rows if row["carrier"] == carrier and row["bytes"] in (0, size)]
            assert {row["direction"] for row in mine} == DIRECTIONS
    for row in rows:
        assert 0 < float(row["us_low"]) <= float(row["us"]) <= float(row["us_high"])
        assert 0 < float(row["cpu_share"]) <= 1
        if row["carrier"] == "local" or not row["bytes"]:
            assert row["mb_per_s"] is None, "nothing is copied"
        else:
            assert float(row["mb_per_s"]) == pytest.approx(int(row["bytes"]) / float(row["us"]))


def test_refusals() -> None:
    with pytest.raises(TransportError, match="at least 16 bytes"):
        bench_transport((8,))
    with pytest.raises(TransportError, match="carrier pigeon"):
        bench_transport(carriers=("carrier pigeon",))
