"""Every test's surroundings: one thread, no display, slow tests last, hypothesis without a stopwatch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# pytest-xdist gives its workers a terminal of 80 columns, which programs under test would believe.
os.environ.pop("COLUMNS", None)
# Read by libraries when they load, so before any test module imports them; ranks started by tests inherit them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", SDL_VIDEODRIVER="dummy", MPLBACKEND="Agg")

# Where the session files of each mpirun go: what killed ones leave would stop a later one of the same process number.
_sessions = tempfile.TemporaryDirectory(prefix="accel-tests-mpirun-", ignore_cleanup_errors=True)
os.environ["PRTE_MCA_prte_local_tmpdir_base"] = _sessions.name

# Few examples a run: locally each run draws others.
_NO_STOPWATCH = {"deadline": None, "max_examples": 40, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("local", **_NO_STOPWATCH)
hypothesis.settings.register_profile("ci", **_NO_STOPWATCH, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first, then slow ones, those that start ranks, those that train: a plain mistake shows in seconds.

    Those left out for their time run where they are asked for: -m long.
    """
    for item in items:
        if item.nodeid.startswith("tests/mpi/"):
            item.add_marker(pytest.mark.mpi)
    for group in _by_function(items).values():
        _mark_others_long(group)
    items.sort(key=_cost)
    if "long" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("long")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]


def _by_function(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Tests marked few, by the function that they are calls of."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("long"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return groups


def _mark_others_long(group: list[pytest.Item]) -> None:
    """All but as many as the mark says, which lie evenly among the function's parameters."""
    marker = group[0].get_closest_marker("few")
    assert marker is not None
    count = min(marker.args[0], len(group))
    kept = {round((place + 0.5) * len(group) / count - 0.5) for place in range(count)}
    for place, item in enumerate(group):
        if place not in kept:
            item.add_marker(pytest.mark.long)


def _cost(item: pytest.Item) -> int:
    return max(
        (cost for cost, name in enumerate(("fast", "slow", "mpi", "learning")) if item.get_closest_marker(name)),
        default=0,
    )


def pytest_configure() -> None:
    """Hear stop signals whatever started the tests: a shell's background jobs, and nohup, ignore some from birth."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root on Linux, to mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
