"""Full disks and run directories that disappear: training goes on where it can, and says what was kept where not."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import accel
from accel.config import TrainConfig
from accel.errors import RunDirectoryError
from accel.learning.loop import Loop
from accel.runs.directory import RunDirectory
from accel.runs.summary import Summary
from tests.accel.learning.test_session import SMALL

ROOT = Path(__file__).parents[3]
Actions = dict[int, Callable[[], object]]


def fill(disk: Path, left_bytes: int = 0) -> Path:
    """Take up what is free, but for so many bytes."""
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free - left_bytes
    with filler.open("wb") as file:
        file.write(bytes(free))
    return filler


def configure(path: Path, **options: object) -> TrainConfig:
    base = {"name": "run", "total_env_steps": 10**6, "checkpoint_interval_s": 1e-6, "log_interval_s": 1e-6}
    return TrainConfig.create(**{**SMALL, "results_dir": path, **base, **options})


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Actions:
    """What is done to a run between its updates, by their number."""
    actions: Actions = {}
    original = Loop.finished

    def step(loop: Loop) -> str | None:
        actions.pop(loop.counters.updates, lambda: None)()
        return original(loop)

    monkeypatch.setattr(Loop, "finished", step)
    return actions


def test_training_goes_on_while_the_disk_is_full(
    disk: Path, during: Actions, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filled after the tenth update, emptied after the thirtieth: the end is that of an undisturbed run."""
    run = disk / "run"
    kept: list[list[str]] = []
    during[10] = lambda: fill(disk)
    during[30] = lambda: (kept.append(sorted(os.listdir(run / "checkpoints"))), (disk / "filler").unlink())
    summary = accel.train(configure(disk, total_env_steps=6000))
    assert summary.env_steps >= 6000 and summary.updates > 40
    assert Summary.read(run) == summary
    output = capsys.readouterr().out
    told = output.splitlines()
    # A checkpoint under way as the disk fills gives its room back when it fails: a line may fit before the next one.
    lost = [text for text in told if re.search(r"cannot write .*metrics\.jsonl: No space left", text)]
    back = [text for text in told if re.search(r"metrics\.jsonl is written again; \d+ lines", text)]
    assert 1 <= len(lost) == len(back) < 10
    (name,) = re.findall(
        r"cannot write a checkpoint .*No space left.*; (step-\d+\.safetensors) is kept; the run goes", output
    )
    assert name in kept[0] and output.count("checkpoints are written again") == 1
    assert all(name.startswith("step-") for name in kept[0])
    steps = [record["env_steps"] for record in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    assert steps == sorted(set(steps)) and steps[-1] == summary.env_steps
    again = accel.train(configure(disk, total_env_steps=7000), resume=run)
    assert again.env_steps >= 7000


def test_a_last_checkpoint_that_does_not_fit_ends_with_an_error_and_keeps_the_one_before(
    disk: Path, during: Actions
) -> None:
    run = disk / "run"
    during[10] = lambda: fill(disk)
    with pytest.raises(
        RunDirectoryError, match=r"No space left.*; step-\d+\.safetensors is kept; make room, and resume the run"
    ) as error:
        accel.train(configure(disk, total_env_steps=4000))
    assert error.value.exit_code != 0 and not (run / "summary.json").exists()
    assert 0 < RunDirectory.open(run, read_only=True).load_checkpoint().env_steps < 4000
    (disk / "filler").unlink()
    assert accel.train(configure(disk, total_env_steps=4000), resume=run).env_steps >= 4000


def test_a_run_that_does_not_fit_is_refused_before_it_starts(disk: Path) -> None:
    filler = fill(disk, left_bytes=300_000)
    with pytest.raises(
        RunDirectoryError, match=r"0\.\d MiB free, and the run's checkpoints and policies need 1\.\d MiB"
    ):
        accel.train(configure(disk))
    assert os.listdir(disk) == ["filler"]
    filler.unlink()
    fill(disk)
    with pytest.raises(RunDirectoryError, match="No space left on device; make room there"):
        accel.train(configure(disk))
    assert os.listdir(disk) == ["filler"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_output_that_goes_nowhere_does_not_end_a_run(tmp_path: Path) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if not isinstance(value, bool)]
    words += [f"--results-dir={tmp_path}", "--name=run", "--total-env-steps=1000"]
    command = f'"{sys.executable}" -m accel train {shlex.join(words)} >/dev/full 2>/dev/full'
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0 and Summary.read(tmp_path / "run").finished


@pytest.mark.parametrize("becomes", ["gone", "another", "a file"])
def test_a_run_directory_that_disappears_ends_the_run(becomes: str, tmp_path: Path, during: Actions) -> None:
    run = tmp_path / "run"

    def lose() -> None:
        run.rename(tmp_path / "moved")
        if becomes == "another":
            run.mkdir()
        elif becomes == "a file":
            run.touch()

    during[10] = lose
    with pytest.raises(RunDirectoryError, match="was removed, moved or replaced") as error:
        accel.train(configure(tmp_path))
    assert error.value.exit_code != 0
    assert not (run / "checkpoints").exists() and not (run / "config.toml").exists()
    assert RunDirectory.open(tmp_path / "moved", read_only=True).load_checkpoint().env_steps > 0


def test_a_finished_run_that_could_not_write_its_summary_writes_it_when_it_is_resumed(tmp_path: Path) -> None:
    config = configure(tmp_path, total_env_steps=2000)
    summary = accel.train(config)
    (tmp_path / "run" / "summary.json").unlink()
    again = accel.train(config, resume=tmp_path / "run")
    assert (again.env_steps, again.updates, again.finished) == (summary.env_steps, summary.updates, True)
    assert Summary.read(tmp_path / "run") == again
