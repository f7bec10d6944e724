"""Every test's surroundings: one thread, no display, slow tests last, hypothesis without a stopwatch."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# Read by libraries when they load, so before any test module imports them; ranks started by tests inherit them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", SDL_VIDEODRIVER="dummy", MPLBACKEND="Agg")

_NO_STOPWATCH = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("local", _NO_STOPWATCH)
hypothesis.settings.register_profile("ci", _NO_STOPWATCH, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then those that start ranks, then those that train: a plain mistake shows in seconds."""
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    if item.get_closest_marker("learning"):
        return 2
    return 1 if item.get_closest_marker("mpi") else 0


def pytest_configure() -> None:
    """Hear stop signals whatever started the tests: a shell's background jobs, and nohup, ignore some from birth."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
