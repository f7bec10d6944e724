"""Energy of a run: the processor packages' own counters where they can be read.

Linux shows RAPL counters as ``/sys/class/powercap/*/energy_uj``, one for each package and for parts of it; only
packages are summed, each once: many laptops show one a second time, as ``intel-rapl-mmio``. They count the whole
machine, whatever runs on it, and start anew at ``max_energy_range_uj``, within an hour at some loads, so they are read
at least every few minutes. Most systems let root alone read them.

Source: Linux kernel, Documentation/power/powercap/powercap.rst. Deviations: none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class RunEnergy:
    """What is spent from now on: joules of this machine's processor packages, CPU-seconds of this process.

    Args:
        powercap: where the kernel shows the counters.
    """

    SOURCE = "counters of this machine's processor packages"

    def __init__(self, powercap: Path = POWERCAP) -> None:
        packages = {_text(zone / "name"): zone for zone in sorted(powercap.glob("*"))}
        self._zones = [zone for name, zone in packages.items() if name.startswith("package")]
        self._last, self._joules, self._began_s = self._counters(), 0.0, time.process_time()

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of this process until now."""
        return time.process_time() - self._began_s

    def joules(self) -> float | None:
        """Until now; None where no package's counter can be read. Ask every few minutes: counters start anew."""
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


def _number(path: Path) -> int:
    """−1 where it cannot be read."""
    text = _text(path)
    return int(text) if text.isdigit() else -1


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
