"""Package counters: summed over packages, across their overflow, and absent where they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.system.energy import RunEnergy


def _zone(root: Path, zone: str, name: str, energy_uj: int, most_uj: int = 1_000_000_000) -> None:
    (root / zone).mkdir(exist_ok=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", most_uj)):
        (root / zone / file).write_text(f"{value}\n")


def test_packages_are_summed_and_their_parts_left_out(tmp_path: Path) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    _zone(tmp_path, "intel-rapl:0:0", "core", 1_000_000)
    _zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    energy = RunEnergy(tmp_path)
    assert energy.joules() == 0.0
    _zone(tmp_path, "intel-rapl:0", "package-0", 8_500_000)
    _zone(tmp_path, "intel-rapl:0:0", "core", 900_000_000)
    _zone(tmp_path, "intel-rapl:1", "package-1", 9_000_000)
    assert energy.joules() == pytest.approx(3.5 + 2.0)


def test_a_package_that_is_shown_twice_counts_once(tmp_path: Path) -> None:
    for zone in ("intel-rapl:0", "intel-rapl-mmio:0"):
        _zone(tmp_path, zone, "package-0", 5_000_000)
    energy = RunEnergy(tmp_path)
    for zone in ("intel-rapl:0", "intel-rapl-mmio:0"):
        _zone(tmp_path, zone, "package-0", 8_000_000)
    assert energy.joules() == pytest.approx(3.0)


def test_a_counter_that_starts_anew_goes_on(tmp_path: Path) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    energy = RunEnergy(tmp_path)
    _zone(tmp_path, "intel-rapl:0", "package-0", 2_000_000)
    assert energy.joules() == pytest.approx(3.0)
    _zone(tmp_path, "intel-rapl:0", "package-0", 4_000_000)
    assert energy.joules() == pytest.approx(5.0)


def test_without_readable_counters_there_is_no_energy(tmp_path: Path) -> None:
    unknown = RunEnergy(tmp_path)
    assert unknown.joules() is None and 0.0 <= unknown.cpu_s <= unknown.cpu_s
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "name").write_text("package-0\n")
    assert RunEnergy(tmp_path).joules() is None
