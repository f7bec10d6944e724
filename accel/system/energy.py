"""Energy of a run: the processor packages' own counters where they can be read.

Linux shows RAPL counters as ``/sys/class/powercap/*/energy_uj``, one for each package and for parts of it; only
packages are summed, each once: many laptops show one a second time, as ``intel-rapl-mmio``. They count the whole
machine, whatever runs on it, and start anew at ``max_energy_range_uj``, within an hour at some loads, so they are read
at least every few minutes. Most systems let root alone read them.

Source: Linux kernel, Documentation/power/powercap/powercap.rst. Deviations: none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class PackageEnergy:
    """Joules of this machine's processor packages since this was made. ``read`` it now and then."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        """Args: powercap: where the kernel shows the counters."""
        packages = {_text(zone / "name"): zone for zone in sorted(powercap.glob("*"))}
        self._zones = [zone for name, zone in packages.items() if name.startswith("package")]
        self._last = self._counters()
        self._joules = 0.0

    def read(self) -> float | None:
        """Joules until now; None where no package's counter can be read."""
        now = self._counters()
        for zone, value in now.items():
            if zone in self._last:
                spent = value - self._last[zone]
                self._joules += 1e-6 * (spent if spent >= 0 else spent + _number(zone / "max_energy_range_uj"))
        self._last = now
        return self._joules if now else None

    def _counters(self) -> Mapping[Path, int]:
        found = {zone: _number(zone / "energy_uj") for zone in self._zones}
        return {zone: value for zone, value in found.items() if value >= 0}


@dataclass(frozen=True)
class Energy:
    """CPU-seconds, and joules with their source; None where nothing measures them."""

    cpu_s: float
    joules: float | None
    source: str


class RunEnergy:
    """What a learner's process and its actors spend from now on.

    Args:
        powercap: where the kernel shows the counters. cpu_s: CPU-seconds of this process.
    """

    def __init__(
        self,
        powercap: Path = POWERCAP,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._began_s = cpu_s, cpu_s()
        self._packages = PackageEnergy(powercap)

    def poll(self) -> None:
        """Call it every few minutes: counters start anew."""
        self._packages.read()

    def end(self, actors_s: float, learners: int = 1) -> Energy:
        """Until now.

        Args:
            actors_s: seconds that this learner's actors, in other processes, did not wait.
            learners: as many have spent the same, each with its actors.
        """
        cpu_s = learners * (self._clock() - self._began_s + actors_s)
        joules = self._packages.read()
        return Energy(cpu_s, joules, "" if joules is None else "counters of this machine's processor packages")


def _number(path: Path) -> int:
    """−1 where it cannot be read."""
    text = _text(path)
    return int(text) if text.isdigit() else -1


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
