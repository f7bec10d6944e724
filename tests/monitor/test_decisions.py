"""The decision log: what is written is read back, and damaged lines are skipped and counted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from accel.monitor.decisions import DECISIONS_FILE, DecisionLog, read_decisions
from accel.monitor.errors import RecorderError


def test_round_trip(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, clock=lambda: 1234.5)
    figures = {"rate/int8": 123456.789, "z": -math.inf, "bottleneck": "learner", "missing": None, "episodes": 7}
    log.write(500, "accept", "fp32", "int8", "it's faster", figures)
    log.write(600, "hold", "int8", "int8", "nothing to do")
    first, second = read_decisions(tmp_path)[0]
    assert (first.unix_time_s, first.env_steps, first.kind) == (1234.5, 500, "accept")
    assert (first.before, first.after, first.reason) == ("fp32", "int8", "it's faster")
    assert first.figures == figures | {"rate/int8": 123457.0, "z": "-inf"}
    assert second.figures == {}
    keys = {"unix_time_s", "env_steps", "kind", "from", "to", "reason", "figures"}
    assert set(json.loads((tmp_path / DECISIONS_FILE).read_text().splitlines()[0])) == keys


def test_damaged_lines_are_skipped_counted_and_do_not_spoil_the_next(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.write(1, "hold", "a", "a", "first")
    with (tmp_path / DECISIONS_FILE).open("ab") as file:
        file.write(b'not json\n{"env_steps": 3}\n[1]\n' + b"[" * 100_000 + b"\n")
        for name, value in (("env_steps", "Infinity"), ("unix_time_s", "NaN"), ("unix_time_s", "1" + "0" * 400)):
            line = {"unix_time_s": 1, "env_steps": 1, "kind": "k", "from": "", "to": "", "reason": "",
                    "figures": {}, name: 0}  # fmt: skip
            file.write(json.dumps(line).replace(f'"{name}": 0', f'"{name}": {value}').encode() + b"\n")
        file.write(b'{"half": ')
    log.write(2, "hold", "a", "a", "last")
    decisions, damaged = read_decisions(tmp_path)
    assert [decision.reason for decision in decisions] == ["first", "last"]
    assert damaged == 8


def test_what_was_decided_after_a_checkpoint_is_forgotten(tmp_path: Path) -> None:
    log, path = DecisionLog(tmp_path), tmp_path / DECISIONS_FILE
    for env_steps in (100, 200, 200, 300, 400):
        log.write(env_steps, "hold", "a", "a", str(env_steps))
    written = path.read_bytes().splitlines(keepends=True)
    for env_steps, kept in ((1000, 5), (400, 5), (399, 4), (200, 3), (99, 0)):
        log.go_on(env_steps, "a")
        assert path.read_bytes() == b"".join(written[:kept])
    log.write(150, "hold", "a", "a", "anew")
    assert [decision.reason for decision in read_decisions(tmp_path)[0]] == ["anew"]


def test_a_run_that_goes_on_says_where_another_level_acts_now(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.go_on(0, "a")
    assert read_decisions(tmp_path) == ([], 0) and not list(tmp_path.iterdir())
    log.write(100, "take", "a", "b", "")
    log.write(300, "leave", "b", "a", "forgotten")
    log.go_on(200, "a")
    made = [(d.env_steps, d.kind, d.before, d.after) for d in read_decisions(tmp_path)[0]]
    assert made[1:] == [(200, "resume", "b", "a")]
    log.write(300, "keep", "a", "a", "")
    log.go_on(300, "a")
    assert len(read_decisions(tmp_path)[0]) == 3, "nothing has changed"


def test_damage_before_a_checkpoint_stays_and_goes_after_it(tmp_path: Path) -> None:
    log, path = DecisionLog(tmp_path), tmp_path / DECISIONS_FILE
    log.write(1, "hold", "a", "a", "first")
    with path.open("ab") as file:
        file.write(b'not json\n{"env_steps": 3}\n')
    kept = path.read_bytes()
    log.write(2, "hold", "a", "a", "later")
    with path.open("ab") as file:
        file.write(b'[1]\n{"half": ')
    log.go_on(2, "a")
    assert path.read_bytes().endswith(b"[1]\n"), "only the half-written line goes"
    log.go_on(1, "a")
    assert path.read_bytes() == kept
    assert read_decisions(tmp_path)[1] == 2


def test_a_log_that_cannot_be_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / DECISIONS_FILE).mkdir()
    with pytest.raises(RecorderError, match=r"cannot truncate .*decisions\.jsonl"):
        DecisionLog(tmp_path).go_on(0, "a")


def test_a_log_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLog(tmp_path / "missing")
    for _ in range(2):
        log.write(0, "hold", "a", "a", "")
    (told,) = caplog.records
    assert "decisions.jsonl: No such file or directory; the run goes on" in told.getMessage()
