"""Every test's surroundings: one thread, no display, fast tests first, hypothesis without a stopwatch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from zlib import crc32

import hypothesis
import pytest

TESTS = Path(__file__).parent

# pytest-xdist gives its workers a terminal of 80 columns, which programs under test would believe.
os.environ.pop("COLUMNS", None)
# Read by libraries when they load, so before any test module imports them; ranks started by tests inherit them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", SDL_VIDEODRIVER="dummy", MPLBACKEND="Agg")

_NO_STOPWATCH = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("local", _NO_STOPWATCH)
hypothesis.settings.register_profile("ci", _NO_STOPWATCH, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


# Files whose tests take longer together than about three seconds on an idle core, which `scripts/test --fast` omits.
SLOW = frozenset(
    """
    accel/test_bench_command.py
    accel/test_bench_evidence.py
    accel/test_bench_learner.py
    accel/test_bench_policy.py
    accel/test_bench_refresh.py
    accel/test_checkpoint.py
    accel/test_cli.py
    accel/test_computing.py
    accel/test_counters.py
    accel/test_damaged_files.py
    accel/test_damaged_imports.py
    accel/test_envs_native.py
    accel/test_export.py
    accel/test_export_c.py
    accel/test_export_c_products.py
    accel/test_export_progress.py
    accel/test_export_table.py
    accel/test_export_trained.py
    accel/test_full_disks.py
    accel/test_hangs.py
    accel/test_hostile_bundles.py
    accel/test_import_policy.py
    accel/test_learning.py
    accel/test_live_evaluation.py
    accel/test_mismatch_sampling.py
    accel/test_pettingzoo.py
    accel/test_play_progress.py
    accel/test_policies_page.py
    accel/test_population.py
    accel/test_publisher.py
    accel/test_publisher_background.py
    accel/test_publisher_runs.py
    accel/test_quantised_training.py
    accel/test_ready.py
    accel/test_replay_files.py
    accel/test_report_commands.py
    accel/test_session.py
    accel/test_signals.py
    accel/test_structured_observations.py
    accel/test_sweep_after_training.py
    accel/test_sweep_in_training.py
    accel/test_sweep_space.py
    accel/test_sweep_storage.py
    accel/test_sweep_study.py
    accel/test_validation.py
    accel/test_verify.py
    accel/test_wandb.py
    compressors/test_distill.py
    compressors/test_int8.py
    compressors/test_layer_choices.py
    compressors/test_layer_choices_oracle.py
    compressors/test_networks.py
    compressors/test_oracle.py
    compressors/test_plans.py
    compressors/test_probe.py
    compressors/test_prune.py
    compressors/test_qat.py
    compressors/test_resealed.py
    contracts/test_algorithms.py
    contracts/test_learners.py
    contracts/test_stores.py
    contracts/test_transport.py
    monitor/test_report_page.py
    monitor/test_report_series.py
    monitor/test_return_guard.py
    monitor/test_statistics.py
    test_docs.py
    test_examples.py
    test_import_rules.py
    test_published.py
    test_scripts.py
    test_training_runs.py
    """.split()
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first, so that a plain mistake shows in seconds, then all others, mixed.

    Those left out for their time run where they are asked for: -m long.
    """
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
    left_out = [] if "long" in config.option.markexpr else [item for item in items if _is(item, "long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    kept = [item for item in items if not left_out or not _is(item, "long")]
    items[:] = [item for item in kept if not _is(item, "slow", "mpi", "learning")]
    items += _mixed([item for item in kept if _is(item, "slow", "mpi", "learning")])


def _is(item: pytest.Item, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests of ranks, which wait much, between modules that compute: no core idles, and few ranks meet."""
    ranks = sorted((item for item in items if _is(item, "mpi")), key=lambda item: crc32(item.nodeid.encode()))
    modules = groupby((item for item in items if not _is(item, "mpi")), lambda item: item.path)
    places = []
    for blocks in ([[item] for item in ranks], [list(found) for _, found in modules]):
        ends = list(accumulate(map(len, blocks)))
        places += [((end - len(block) / 2) / ends[-1], block) for end, block in zip(ends, blocks, strict=True)]
    return [item for _, block in sorted(places, key=itemgetter(0)) for item in block]


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
