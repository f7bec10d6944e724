"""The progress display on a real pseudo-terminal of any width, in a pipe, and when nobody reads."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from accel.display.panel import training_panel
from accel.display.progress import LineProgress, LiveProgress, ProgressLogHandler, open_progress
from accel.display.status import EvaluationStatus, PlayingStatus, TrainingStatus, status_line
from accel.display.text import count, duration, format_return

RECORD: dict[str, object] = {
    "elapsed_s": 12.3,
    "env_steps": 1_234_567,
    "env_steps_per_s": 312_345.6,
    "episodes": 1204,
    "return_mean": 231.44,
    "lag_min": 0,
    "lag_mean": 1.24,
    "lag_max": 5,
    "loss": 1.0,
    "scheme": "int8",
    "updates": 1234,
    "actors_alive": 2,
    "dropped_unrolls": 0,
}
for phase, share in {"wait": 0.031, "batch": 0.04, "forward": 0.45, "backward": 0.28, "compress": 0.199}.items():
    RECORD[f"learner_{phase}_share"] = share
for phase, share in {"env": 0.71, "policy": 0.18, "overhead": 0.06, "wait": 0.05}.items():
    RECORD[f"actor_{phase}_share"] = share


def status(evaluated: EvaluationStatus | None = None, **changes: object) -> TrainingStatus:
    """Of the trainer's record with changes."""
    return TrainingStatus(RECORD | changes, 5_000_000, 475.0, actors=2, evaluated=evaluated)


ROOT = Path(__file__).parents[3]
Kind = type[LineProgress] | type[LiveProgress]
KINDS = [LineProgress, LiveProgress]

PROGRAM = """
    import logging, os, sys
    from accel.display.progress import open_progress
    from tests.accel.display.test_progress import status

    now_s = 0.0
    progress = open_progress(sys.stdout, clock=lambda: now_s)
    progress.begin("CartPole-v1")
    for i in range(12):
        now_s += 1.0
        mean = None if i < 2 else 20.0 * i
        progress.advance(status(return_mean=mean, updates=i, env_steps=400_000 * i))
        if i == 6:
            progress.note("actor 1 died; 1 of 2 go on [red]")
    progress.close()
    progress.close()
    print("trained")
"""


def start(**extra: str) -> tuple[list[str], dict[str, str]]:
    """The program, and variables with which it finds this file's status."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    return command, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **extra}


def run_on_terminal(columns: int, lines: int, **extra: str) -> str:
    """What the program writes to a pseudo-terminal of this size."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command, environment = start(**extra)
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment) as process:
        os.close(terminal)
        chunks = []
        with suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(controller, 65536):
                chunks.append(chunk)
    os.close(controller)
    assert process.returncode == 0
    return b"".join(chunks).decode()


class Screen:
    """As much of a terminal as the display uses: text, line feeds, cursor up, erase line; anything else fails."""

    def __init__(self, output: str, columns: int, lines: int) -> None:
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.top = 0
        self.cursor_visible = True
        for control, text in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", output):
            if text:
                self._write(text, columns)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._line_feed(lines)
            else:
                self._escape(control)

    def _write(self, text: str, columns: int) -> None:
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + text + row[self.column + len(text) :]
        self.column += len(text)
        assert self.column <= columns, f"a line wraps at {columns} columns: {self.rows[self.row]!r}"

    def _line_feed(self, lines: int) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
        self.top = max(self.top, self.row - lines + 1)

    def _escape(self, control: str) -> None:
        body, kind = control[2:-1], control[-1]
        if kind == "A":
            self.row = max(self.row - int(body or 1), self.top)
        elif kind == "K":
            assert body == "2"
            self.rows[self.row] = ""
        elif control in ("\x1b[?25l", "\x1b[?25h"):
            self.cursor_visible = kind == "h"
        else:
            assert kind == "m", f"unknown control {control!r}"

    @property
    def text(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


def test_a_terminal_shows_lines_that_are_drawn_over() -> None:
    screen = Screen(run_on_terminal(110, 30), 110, 30)
    assert screen.cursor_visible
    note, headline, steps, returns, lag, learner, actors, end, *rest = screen.text
    assert note == "actor 1 died; 1 of 2 go on [red]"
    assert headline == "CartPole-v1  int8  version 11  12 s elapsed, at most 1 s left"
    assert re.fullmatch(r"steps    4\.40M/5\.00M at 312k/s  ━{21}─{3}", steps)
    assert returns == "return   220.0 of 475.0 (1,204 episodes)"
    assert lag == "lag      0/1.2/5"
    assert learner == "learner  forward 45% backward 28% compress 20% batch 4%"
    assert actors == "actors   env 71% policy 18% overhead 6% wait 5%"
    assert end == "trained"
    assert rest == [""]


@pytest.mark.parametrize(
    ("extra", "last"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "steps    4.40M/5.00M at 312k/s  =====================---"),
        ({"TERM": "dumb"}, ""),
    ],
)
def test_a_plain_terminal_gets_ascii_and_a_dumb_one_lines(extra: dict[str, str], last: str) -> None:
    output = run_on_terminal(80, 24, **extra)
    assert output.isascii() and output.endswith("trained\r\n")
    assert last in Screen(output, 80, 24).text if last else "\x1b" not in output


def test_a_pipe_gets_plain_lines_at_growing_intervals() -> None:
    command, environment = start()
    lines = subprocess.run(
        command, capture_output=True, env=environment, check=True, encoding="utf-8"
    ).stdout.splitlines()
    assert lines[0] == "CartPole-v1"
    assert all("\x1b" not in line for line in lines)
    # The stage, then after 1, 2, 4 more seconds and, on closing, the last of 12; the note where it happened.
    steps = [re.search(r"\| steps (\S+)/5\.00M at", line) for line in lines]
    assert [match[1] for match in steps if match] == ["0", "800k", "2.40M", "4.40M"]
    assert lines[4] == "actor 1 died; 1 of 2 go on [red]"
    assert lines[-1] == "trained"


def drawn(shown: TrainingStatus, width: int = 100) -> list[str]:
    console = Console(file=(file := io.StringIO()), width=width, force_terminal=False)
    console.print(training_panel("CartPole-v1", shown, console))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_plain_lines_say_everything() -> None:
    assert status_line("CartPole-v1", status(), 99.0) == (
        "CartPole-v1 | 12 s | steps 1.23M/5.00M at 312k/s | return 231.4 of 475.0 (1,204 episodes) | lag 0/1.2/5 | "
        "learner forward 45% backward 28% compress 20% batch 4% | actors env 71% policy 18% overhead 6% wait 5% | int8"
    )
    worse = status(return_mean=None, lag_mean=None, actors_alive=1, dropped_unrolls=7)
    line = status_line("CartPole-v1", worse, 99.0)
    assert "no episode finished yet" in line and "lag -" in line
    assert line.endswith("int8 | 1 of 2 actors alive | 7 unrolls dropped")
    assert [row.strip() for row in drawn(worse)[-2:]] == ["1 of 2 actors alive", "7 unrolls dropped"]


@pytest.mark.parametrize(("least", "told"), [(60.0, []), (20.0, ["actor 1 makes 20% of the median actor's steps"])])
def test_an_actor_that_lags_behind_is_named(least: float, told: list[str]) -> None:
    rates = {"actor_steps_per_s_min": least, "actor_steps_per_s_median": 100.0, "slowest_actor": 1}
    rates |= {"actor_steps_per_s/1": least, "actor_steps_per_s/0": 1234.0}
    lagging = status(**rates)
    rates_text = f"{least:.0f}/s  0: 1.23k/s"
    assert status_line("CartPole-v1", lagging, 9.0).endswith(" | ".join([f"slowest 1: {rates_text}", "int8", *told]))
    assert [line.strip() for line in drawn(lagging)[6:]] == [f"slowest  1: {rates_text}", *told]


def test_an_evaluation_beside_training_is_shown() -> None:
    evaluated = status(EvaluationStatus(487.2, 40_000, 500.0))
    assert " | greedy 487.2 at 40.0k steps, best 500.0 | lag" in status_line("CartPole-v1", evaluated, 99.0)
    assert drawn(evaluated, 80)[3] == "greedy   487.2 at 40.0k steps, best 500.0"


@pytest.mark.parametrize(
    "record",
    [{}, {"evaluation_return": 1.0}, {"evaluation_return": None}, {"evaluation_env_steps": 3},
     {"evaluation_return": 1.0, "evaluation_env_steps": float("nan"), "evaluation_best_return": 1.0},
     {"evaluation_return": "much", "evaluation_env_steps": 3, "evaluation_best_return": 1.0}],
)  # fmt: skip
def test_a_record_without_a_whole_evaluation_has_none(record: dict[str, object]) -> None:
    assert EvaluationStatus.from_record(record) is None


def in_ascii() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)


def in_utf8() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)


def written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize("is_closed", [False, True], ids=["broken", "closed"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_cannot_be_written_does_not_end_the_run(kind: Kind, is_closed: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream: TextIO = io.StringIO() if is_closed else os.fdopen(writer, "w")
    progress = kind(stream)
    if is_closed:
        stream.close()
        os.close(writer)
    progress.advance(status())
    progress.note("note")
    progress.close()
    if not is_closed:
        with pytest.raises(BrokenPipeError):
            stream.close()


@pytest.mark.parametrize("kind", KINDS)
def test_log_records_become_notes(kind: Kind) -> None:
    stream = io.StringIO()
    progress = kind(stream)
    logger = logging.Logger("test")
    logger.addHandler(ProgressLogHandler(progress))
    logger.warning("actor %d died", 3)
    assert stream.getvalue() == "actor 3 died\n"
    progress.close()
    assert stream.getvalue() == "actor 3 died\n"


@pytest.mark.parametrize("kind", KINDS)
def test_characters_that_a_stream_cannot_show_are_replaced(kind: Kind) -> None:
    stream = in_ascii()
    progress = kind(stream)
    progress.begin("é")
    progress.advance(status(scheme="π"))
    progress.note("≥ 3")
    progress.close()
    assert "? 3" in written(stream)


def test_the_display_is_chosen_by_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    assert isinstance(open_progress(io.StringIO()), LineProgress)
    assert isinstance(open_progress(terminal), LiveProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(terminal), LineProgress)


FLOATS = ("elapsed_s", "env_steps_per_s", "return_mean")
WHOLE = ("env_steps", "episodes", "updates", "actors_alive", "lag_min", "lag_mean", "lag_max", "dropped_unrolls")


@given(
    st.builds(PlayingStatus, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**15))
    | st.builds(
        lambda floats, whole, scheme: status(**floats, **whole, scheme=scheme),
        st.dictionaries(st.sampled_from(FLOATS), st.floats()),
        st.dictionaries(st.sampled_from(WHOLE), st.integers(0, 10**15)),
        st.text("abc+()0.", min_size=1),
    ),
    st.integers(1, 200),
)
def test_any_status_can_be_shown_at_any_width(any_status: TrainingStatus | PlayingStatus, columns: int) -> None:
    assert "\n" not in status_line("env", any_status, 1.0)
    stream = in_utf8()
    progress = LiveProgress(stream, columns=columns, interval_s=0.0)
    for _ in range(2):
        progress.advance(any_status)
    progress.close()
    screen = Screen(written(stream).replace("\n", "\r\n"), columns, 30)
    # the stage, five parts, and a row for each of two warnings: the panel of the first advance is written over
    assert len([row for row in screen.text if row]) <= 8


def test_a_stage_replaces_the_one_before_on_a_terminal() -> None:
    stream = in_utf8()
    progress = LiveProgress(stream, columns=80, interval_s=0.0)
    progress.begin("collecting")
    progress.advance(PlayingStatus(0, 0, 8000))
    progress.begin("playing [int8]")
    progress.advance(PlayingStatus(5, 20, 4000))
    shown = Screen(written(stream).replace("\n", "\r\n"), 80, 24).text
    assert [row for row in shown if row] == [
        "playing [int8]  ━━━━━━──────────────────  5 of 20 episodes, 4,000 steps  0 s"
    ]
    progress.close()
    assert not any(Screen(written(stream).replace("\n", "\r\n"), 80, 24).text)


@pytest.mark.parametrize(
    "changes", [{"episodes": "many"}, {"lag_min": []}, {"actor_env_share": None}, {"updates": None}]
)
def test_a_record_that_cannot_be_shown_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(changes))} = .* is no number"):
        status(**changes)
    with pytest.raises(KeyError):
        TrainingStatus({}, 1, None, 1)


def test_the_time_left_follows_from_the_present_rate() -> None:
    assert status().remaining_s == pytest.approx((5_000_000 - 1_234_567) / 312_345.6)
    assert status(env_steps_per_s=0.0).remaining_s is None


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        *[(duration, 0.4, "0 s"), (duration, 59.9, "59 s"), (duration, 60, "1:00"), (duration, 3599, "59:59")],
        *[(duration, 3600, "1:00:00"), (duration, 86_399, "23:59:59"), (duration, 183_900, "2 d 03:05")],
        *[(duration, None, "-"), (duration, float("nan"), "-"), (duration, float("inf"), "-")],
        *[(count, 0, "0"), (count, 999, "999"), (count, 1000, "1.00k"), (count, 999.6, "1.00k")],
        *[(count, 9_994, "9.99k"), (count, 9_996, "10.0k"), (count, 45_600_000, "45.6M"), (count, 99_960, "100k")],
        *[(count, 999_600, "1.00M"), (count, 2.5e9, "2.50G"), (count, 1e15, "1000000G")],
        *[(format_return, 475.0, "475.0"), (format_return, -20.91, "-20.9"), (format_return, 0.123456, "0.1235")],
        *[(format_return, 4812.25, "4812.2"), (format_return, 1e7, "1e+07")],
    ],
)
def test_numbers_are_short(form: Callable[[float | None], str], value: float | None, text: str) -> None:
    assert form(value) == text
