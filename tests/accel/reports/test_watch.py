"""``accel watch``: every whole record once, through damage and resumes, until the summary is there."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import accel
from accel.errors import RunDirectoryError
from accel.reports.watch import FIRST_READ_BYTES, MetricsTail
from tests.accel.reports.recorded_run import write_run
from tests.waiting import until


def test_the_tail_gives_every_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == []
    path.write_text('{"env_steps": 1}\n{"env_st')
    assert tail.read() == [{"env_steps": 1}]
    with path.open("a") as file:
        file.write('eps": 2}\nbroken\n\n{"env_steps": 3}\n')
    assert tail.read() == [{"env_steps": 2}, {"env_steps": 3}]
    assert tail.read() == []
    path.write_text('{"env_steps": 1}\n')
    assert tail.read() == [{"env_steps": 1}], "a resume has cut the file"


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = json.dumps({"env_steps": 1, "x": "y" * 100}) + "\n"
    path.write_text(line * (3 * FIRST_READ_BYTES // len(line)) + '{"env_steps": 2}\n')
    tail = MetricsTail(path)
    records = tail.read()
    assert records[-1] == {"env_steps": 2}
    assert len(records) <= FIRST_READ_BYTES // len(line) + 1


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    out = io.StringIO()
    status: list[int] = []
    path = write_run(tmp_path, "run", records=2, ended=False)
    watching = threading.Thread(target=lambda: status.append(accel.watch(path, stream=out)), daemon=True)
    watching.start()
    assert until(lambda: "CartPole-v1" in out.getvalue()) and watching.is_alive()
    ended = write_run(tmp_path, "ended", records=3)
    for name in ("metrics.jsonl", "summary.json"):
        (ended / name).replace(path / name)
    watching.join()
    assert status == [0]
    assert "steps 30.0k/1.00M" in out.getvalue()
    assert "30,000 environment steps" in out.getvalue()


def watched(path: Path, once: bool = True) -> tuple[int, str]:
    """The status, and what is said."""
    out = io.StringIO()
    return accel.watch(path, once=once, stream=out), out.getvalue()


def test_once_says_how_a_run_stands(tmp_path: Path) -> None:
    path = write_run(tmp_path, "running", records=5, ended=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 7}\n{"x": 7}\n')
    status, said = watched(path)
    assert status == 0 and "steps 50.0k/1.00M" in said and "running, or ended without a summary" in said
    (path / "metrics.jsonl").unlink()
    status, said = watched(path)
    assert status == 1 and "no record yet" in said


def test_the_newest_evaluation_stays_in_sight(tmp_path: Path) -> None:
    path = write_run(tmp_path, "running", records=5, ended=False)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[1] |= {"evaluation_return": 312.5, "evaluation_env_steps": 15_000, "evaluation_best_return": 320.0}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "greedy 312.5 at 15.0k steps, best 320.0" in watched(path)[1]


def test_a_run_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    path = write_run(tmp_path, "it's dead", records=3, ended=False)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = {"unix_time_s": 1.0, "host": socket.gethostname(), "pid": process.pid}
    (path / "starts.jsonl").write_text(json.dumps(start) + "\n")
    assert "running, or ended" in watched(path)[1]
    process.kill()
    process.communicate()
    status, said = watched(path, once=False)
    assert status == 1 and f"has died: its process {process.pid} is gone" in said
    assert f"accel train --resume '{tmp_path}/it'\"'\"'s dead'" in said
    (path / "starts.jsonl").write_text(json.dumps(start | {"host": "elsewhere"}) + "\n")
    said = watched(path)[1]
    assert "has died" not in said and "running, or ended" in said


def test_what_a_run_holds_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    path = write_run(tmp_path, "evil", records=2, env="Env\x1b[31m-v1", compressor="int8\x1b]0;x\x07")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"learner_\x1b]0;y\x07_share": 0.9}
    (path / "metrics.jsonl").write_text(f"{lines[0]}\n{json.dumps(last)}\n")
    for status, said in (watched(path), watched(path, once=False)):
        assert status == 0 and "\x1b" not in said and "\x07" not in said
        assert "Env[31m-v1" in said and "]0;y 90%" in said


def test_bad_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_run(tmp_path, "halfcheetah", records=1)
    with pytest.raises(RunDirectoryError, match="is no directory"):
        accel.watch(tmp_path / "file")
    with pytest.raises(RunDirectoryError, match=r"holds no config\.toml"):
        accel.watch(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"halfchetah is no directory.*did you mean 'halfcheetah'\?"):
        accel.watch(tmp_path / "halfchetah")
