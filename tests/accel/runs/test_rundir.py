"""Run directories: never overwritten, one writer at a time, clear words when something is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from datetime import datetime
from pathlib import Path

import pytest

from accel.errors import CheckpointError, RunDirectoryError
from accel.runs.directory import RunDirectory, default_run_name

_NOBODY = 65534


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def make(root: Path, name: str = "run") -> RunDirectory:
    run = RunDirectory.create(root, name)
    run.write_config({"env": "CartPole-v1", "seed": 3})
    return run


def test_a_new_run_can_be_opened_again(tmp_path: Path) -> None:
    with make(tmp_path / "deep" / "results") as run:
        run.write(run.machine, {"cpu": "x"})
        run.write(run.summary, {"return_mean": float("nan"), "times": {"env": float("inf")}, "path": Path("a")})
        assert run.write(path := run.policy / "policy-5.accel", b"bytes") == path
    with RunDirectory.open(tmp_path / "deep" / "results" / "run") as again:
        assert again.path == run.path
        assert again.read_config() == {"env": "CartPole-v1", "seed": 3}
        assert json.loads(again.machine.read_text()) == {"cpu": "x"}
        assert json.loads(again.summary.read_text()) == {"return_mean": "nan", "times": {"env": "inf"}, "path": "a"}
        assert (again.policy / "policy-5.accel").read_bytes() == b"bytes"


def test_a_config_is_read_back_and_explains_its_options(tmp_path: Path) -> None:
    values = {"env_arg": ("a=1", 'b="\\\x7f'), "learning_rate": 1e-5, "seed": 3, "pin_cores": True, "name": "ünï\n#[x]"}
    with make(tmp_path) as run:
        run.write_config(values, {"seed": "seed of everything\nrandom"})
        assert run.read_config() == {**values, "env_arg": list(values["env_arg"])}  # type: ignore[arg-type]
        assert "\n# seed of everything\n# random\nseed = 3\n" in run.config.read_text()


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with make(Path("results")) as run:
        assert run.path == tmp_path / "results" / "run"


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.write(run.summary, {"kept": True})
    with pytest.raises(RunDirectoryError, match=r"exists already.*--resume .*/run, or choose another --name"):
        RunDirectory.create(tmp_path, "run")
    assert json.loads(run.summary.read_text()) == {"kept": True}
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match="exists already"):
        RunDirectory.create(tmp_path, "empty")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "a\nb", "a\x1b[2J", "\udcff", "x" * 201, "ä" * 101])
def test_names_that_are_no_directory_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunDirectoryError, match="plain directory name"):
        RunDirectory.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_results_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/accel-results")):
        with pytest.raises(RunDirectoryError, match="choose another --results-dir"):
            RunDirectory.create(root, "run")
    for long in ("x" * 300, "x/" * 1500):
        with pytest.raises(RunDirectoryError, match=r"too long; choose another --results-dir"):
            RunDirectory.create(tmp_path / long, "run")


def test_a_directory_without_permission_is_a_clear_error() -> None:
    root = Path(tempfile.mkdtemp())
    user = os.geteuid()
    root.chmod(0o555)
    try:
        if user == 0:
            os.seteuid(_NOBODY)
        with pytest.raises(RunDirectoryError, match="Permission denied; choose another --results-dir"):
            RunDirectory.create(root, "run")
    finally:
        os.seteuid(user)
        root.rmdir()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is no directory"):
        RunDirectory.open(tmp_path / "missing")
    with pytest.raises(RunDirectoryError, match=r"holds no config\.toml"):
        RunDirectory.open(tmp_path)
    (tmp_path / "config.toml").write_text("= broken")
    with RunDirectory.open(tmp_path) as run, pytest.raises(RunDirectoryError, match=r"config\.toml cannot be read"):
        run.read_config()


def test_two_processes_cannot_write_the_same_run(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from accel.runs.directory import RunDirectory
        run = RunDirectory.open(Path(sys.argv[1]))
        print("open", flush=True)
        sys.stdin.read()
    """
    make(tmp_path).close()
    path = tmp_path / "run"
    with python(code, path) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RunDirectoryError, match="in use by another process"):
            RunDirectory.open(path)
        reader = RunDirectory.open(path, read_only=True)
        assert reader.read_config()["env"] == "CartPole-v1"
        other.kill()
    with RunDirectory.open(path):
        pass


def test_of_two_creators_one_wins(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from accel.errors import RunDirectoryError
        from accel.runs.directory import RunDirectory
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            RunDirectory.create(Path(sys.argv[1]), "run")
            print("made")
        except RunDirectoryError:
            print("refused")
    """
    processes = [python(code, tmp_path) for _ in range(3)]
    for process in processes:
        process.stdout.readline()
    outputs = sorted(process.communicate("\n")[0].strip() for process in processes)
    assert outputs == ["made", "refused", "refused"]


def test_reading_only_writes_nothing(tmp_path: Path) -> None:
    make(tmp_path).close()
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    run = RunDirectory.open(tmp_path / "run", read_only=True)
    with pytest.raises(RunDirectoryError, match="reading only"):
        run.write(run.summary, {})
    with pytest.raises(RunDirectoryError, match="reading only"):
        run.next_restart()
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        run.load_checkpoint()
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_starts_are_counted_over_processes(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        assert run.next_restart() == 0
    for expected in (1, 2):
        with RunDirectory.open(tmp_path / "run") as run:
            assert run.next_restart() == expected
    entries = [json.loads(line) for line in (run.path / "starts.jsonl").read_text().splitlines()]
    assert [entry["pid"] for entry in entries] == [os.getpid()] * 3


def test_a_run_that_never_started_leaves_its_name_free(tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.next_restart()
        run.metrics.touch()
        run.abandon()
    assert not run.path.exists()
    with make(tmp_path) as run:
        run.metrics.write_text('{"env_steps": 1}\n')
        run.abandon()
    assert run.metrics.exists()


@pytest.mark.parametrize("becomes", ["gone", "another", "a file"])
def test_only_a_run_s_own_directory_is_removed_and_one_that_is_gone_is_no_error(becomes: str, tmp_path: Path) -> None:
    with make(tmp_path) as run:
        run.path.rename(tmp_path / "moved")
        if becomes == "another":
            run.path.mkdir()
        elif becomes == "a file":
            run.path.touch()
        with pytest.raises(RunDirectoryError, match="was removed, moved or replaced"):
            run.check_space(1)
        run.abandon()
    assert run.path.exists() == (becomes != "gone") and (tmp_path / "moved").exists()


def test_partial_files_of_a_killed_writer_are_cleared_when_the_run_goes_on(tmp_path: Path) -> None:
    make(tmp_path).close()
    partial = tmp_path / "run" / ".summary.json.99999.partial"
    partial.write_text("half")
    RunDirectory.open(tmp_path / "run", read_only=True)
    assert partial.exists()
    RunDirectory.open(tmp_path / "run").close()
    assert not partial.exists()


def test_default_names_are_plain_and_tell_what_they_are() -> None:
    now = datetime(2025, 1, 31, 23, 59, 58)
    assert default_run_name("CartPole-v1", 7, now) == "CartPole-v1-20250131-235958-s7"
    assert default_run_name("my.module:ALE/Pong-v5", 0, now) == "my.module-ALE-Pong-v5-20250131-235958-s0"
    assert default_run_name("///", 0, now) == "run-20250131-235958-s0"
