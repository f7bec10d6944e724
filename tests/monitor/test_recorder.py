"""The recorder: valid lines whatever happens, and event files that TensorBoard's own reader reads."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.monitor.errors import RecorderError
from accel.monitor.event_file import EventFile, event_tag
from accel.monitor.recorder import EVENTS_INTERVAL_S, MAX_PENDING, METRICS_FILE, Recorder, parse_metrics_line

Point = tuple[int, float]


def read_events(directory: Path) -> dict[str, list[Point]]:
    """Scalars by tag, as TensorBoard itself accumulates them over all files of a directory, checksums checked."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def event_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("events.out.tfevents.*"))


def written(directory: Path) -> list[dict[str, Any]]:
    """The whole records of a run, in strict JSON."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    lines = (directory / METRICS_FILE).read_bytes().splitlines(keepends=True)
    return [json.loads(line, parse_constant=refuse) for line in lines if line.endswith(b"\n")]


def test_records_reach_both_files(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.record(
            100,
            {
                "return_mean": 1.5,
                "return_mean/a:A-v0": 2.0,
                "scheme": "int8",
                "refresh_ms/int8": np.float32(0.25),
                "episodes": np.int64(3),
            },
        )
        recorder.record(200, {"return_mean": 2.5, "scheme": "int8", "missing": None, "done": True})
    first, second = written(tmp_path)
    assert isinstance(first.pop("wall_time_s"), float) and second["missing"] is None and second["done"] is True
    assert first == {
        "env_steps": 100,
        "return_mean": 1.5,
        "return_mean/a:A-v0": 2.0,
        "scheme": "int8",
        "refresh_ms/int8": 0.25,
        "episodes": 3,
    }
    events = read_events(tmp_path)
    assert events["returns/mean"] == [(100, 1.5), (200, 2.5)]
    assert events["returns/mean/a:A-v0"] == [(100, 2.0)]
    assert events["compression/refresh_ms/int8"] == [(100, 0.25)]
    assert "scheme" not in events


def test_non_finite_numbers_stay_valid_json(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.record(1, {"a": math.nan, "b": math.inf, "c": np.float64("-inf")})
    (record,) = written(tmp_path)
    assert (record["a"], record["b"], record["c"]) == ("nan", "inf", "-inf")
    assert math.isnan(read_events(tmp_path)["training/a"][0][1])


@given(
    st.lists(
        st.dictionaries(
            st.text(min_size=1).filter(lambda name: name not in ("env_steps", "wall_time_s")),
            st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60) | st.none(),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_any_record_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, float | None]]
) -> None:
    directory = tmp_path_factory.mktemp("run")
    with closing(Recorder(directory)) as recorder:
        for step, record in enumerate(records):
            recorder.record(step, record)
    read = written(directory)
    assert [record.pop("env_steps") for record in read] == list(range(len(records)))
    assert all(record.pop("wall_time_s") for record in read) and read == records


def test_tensorboard_waits_for_its_interval(tmp_path: Path) -> None:
    now_s = 1000.0
    recorder = Recorder(tmp_path, clock=lambda: now_s)
    recorder.record(1, {"x": 1.0})
    now_s += 9.9
    recorder.record(2, {"x": 2.0})
    assert event_files(tmp_path) == []
    now_s += 0.2
    recorder.record(3, {"x": 3.0})
    assert read_events(tmp_path)["training/x"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    recorder.record(4, {"x": 4.0})
    assert len(read_events(tmp_path)["training/x"]) == 3
    recorder.close()
    assert len(read_events(tmp_path)["training/x"]) == 4
    assert len(event_files(tmp_path)) == 1


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, clock=lambda: 0.0)
    for step in range(MAX_PENDING + 2):
        recorder.record(step, {"x": 1.0})
    assert len(read_events(tmp_path)["training/x"]) == MAX_PENDING
    recorder.close()
    assert len(read_events(tmp_path)["training/x"]) == MAX_PENDING + 2


def test_nothing_slow_is_imported_before_the_first_flush(tmp_path: Path) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from accel.monitor.recorder import Recorder
        recorder = Recorder(Path({str(tmp_path)!r}), clock=lambda: 0.0)
        recorder.record(1, {{"x": 1.0}})
        print("tensorboard" in sys.modules)
        recorder.close()
        print("tensorboard" in sys.modules, "torch" in sys.modules, "tensorflow" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "False"]


def test_a_directory_without_records_gets_no_event_file(tmp_path: Path) -> None:
    Recorder(tmp_path).close()
    assert event_files(tmp_path) == []
    assert written(tmp_path) == []


def test_a_half_written_line_is_cut_off_and_appending_goes_on(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path)) as recorder:
        recorder.record(1, {"x": 1.0})
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(b'{"env_steps":2,"x":')
    with closing(Recorder(tmp_path)) as recorder:
        recorder.record(2, {"x": 2.0})
    assert [record["x"] for record in written(tmp_path)] == [1.0, 2.0]


def test_resuming_drops_the_records_after_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads event files in the order of their names, which begin with the time."""
    monkeypatch.setattr("accel.monitor.event_file.time.time_ns", itertools.count(10**18, 10**9).__next__)
    with closing(Recorder(tmp_path)) as recorder:
        for step in (100, 200, 300, 400):
            recorder.record(step, {"x": float(step)})
    with closing(Recorder(tmp_path, resume_env_steps=200)) as recorder:
        recorder.record(250, {"x": -250.0})
        recorder.record(400, {"x": -400.0})
    assert [record["env_steps"] for record in written(tmp_path)] == [100, 200, 250, 400]
    assert read_events(tmp_path)["training/x"] == [(100, 100.0), (200, 200.0), (250, -250.0), (400, -400.0)]


def test_lines_survive_a_kill(tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from accel.monitor.recorder import Recorder
        recorder = Recorder(Path({str(tmp_path)!r}))
        step = 0
        while True:
            recorder.record(step, {{"x": float(step)}})
            print(step, flush=True)
            step += 1
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        seen = -1
        while seen < 200:
            seen = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        seen = int((process.stdout.read().split() or [str(seen)])[-1])
    steps = [record["env_steps"] for record in written(tmp_path)]
    assert steps[: seen + 1] == list(range(seen + 1))


def test_a_damaged_line_inside_does_not_keep_a_run_from_being_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / METRICS_FILE
    path.write_bytes(b'{"env_steps": 1}\n' + bytes(512) + b'\n{"env_steps": 2}\n{"env_steps": 3}\n')
    with closing(Recorder(tmp_path, resume_env_steps=2)) as recorder:
        recorder.record(4, {})
    assert f"{path} has 1 damaged lines, which are skipped" in caplog.text
    found = [parse_metrics_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    assert [record and record["env_steps"] for record in found] == [1, None, 2, 4]


def test_a_foreign_file_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    for foreign in ("not json\n", '{"x": 1}\n'):
        path.write_text(foreign)
        with pytest.raises(RecorderError, match=r"metrics\.jsonl, line 1 is no record of metrics; move the file away"):
            Recorder(tmp_path, resume_env_steps=0)
        assert path.read_text() == foreign


def test_bad_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match="cannot write"):
        Recorder(tmp_path / "missing")
    recorder = Recorder(tmp_path)
    with pytest.raises(RecorderError, match="ndarray"):
        recorder.record(1, {"x": np.zeros(2)})  # type: ignore[dict-item]
    with pytest.raises(RecorderError, match="set by the recorder"):
        recorder.record(1, {"env_steps": 5})
    recorder.close()
    recorder.close()


@pytest.mark.parametrize(
    ("metric", "tag"),
    [
        ("return_mean", "returns/mean"),
        ("loss", "losses/total"),
        ("policy_loss", "losses/policy"),
        ("env_steps_per_s", "speed/env_steps_per_s"),
        ("lag_max", "mismatch/lag_max"),
        ("publish_kl/prune(0.5)+int8", "compression/publish_kl/prune(0.5)+int8"),
        ("learning_rate", "training/learning_rate"),
    ],
)
def test_tags_are_in_folders(metric: str, tag: str) -> None:
    assert event_tag(metric) == tag


def test_training_continues_when_events_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with closing(Recorder(directory, clock=itertools.count(0.0, EVENTS_INTERVAL_S).__next__)) as recorder:
        shutil.rmtree(directory)
        recorder.record(1, {"x": 1.0})
        recorder.record(2, {"x": 2.0})
    first, second = [record.message for record in caplog.records]
    assert "metrics.jsonl: No such file or directory; the run goes on without these lines" in first
    assert second.startswith("TensorBoard events are no longer written")


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from accel.monitor.recorder import Recorder

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder = Recorder(Path(sys.argv[1]))
recorder.record(1, {"x": 1.0})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for step in range(2, 6):
    recorder.record(step, {"x": 1.0, "a_longer_name_than_before": float(step)})
if sys.argv[2] != "events":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recorder.record(6, {"x": 1.0})
recorder.close()
"""


@pytest.mark.parametrize("kind", ["lines", "events"])
def test_a_line_that_fits_in_part_only_is_not_written(kind: str, tmp_path: Path) -> None:
    """A limit on files' sizes in the middle of the second line, as a disk that becomes full then."""
    words = [sys.executable, "-c", _LIMITED, str(tmp_path), kind]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert done.stderr.count("metrics.jsonl: ") == 1 and "the run goes on without these lines" in done.stderr
    assert ("TensorBoard events are no longer written" in done.stderr) == (kind == "events")
    steps = [record["env_steps"] for record in written(tmp_path)]
    assert steps == ([1] if kind == "events" else [1, 6])


def test_a_flipped_byte_is_noticed_by_tensorboards_reader(tmp_path: Path) -> None:
    """The checksums are real: the reader that accepts our files refuses a damaged one."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = EventFile(tmp_path)
    events.add_scalars(1.0, 5, {"x": 2.0})
    events.close()
    events.close()
    (path,) = event_files(tmp_path)
    assert len(list(EventFileLoader(str(path)).Load())) == 2
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    assert len(list(EventFileLoader(str(path)).Load())) == 1
