"""The life of a process for another one: how its end is told, when it is replaced, what may not take for ever."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.supervision.activity import WAITING, Activity, shared_activities
from accel.supervision.processes import descendants, is_stopped
from accel.supervision.supervised import STEADY_S, STOPPED_S, Supervised, describe_end
from accel.system.memory import anonymous_memory
from tests.waiting import until

PROGRAM = """
import os, sys, time
from accel.supervision.activity import STEPPING, WAITING, shared_activities
from accel.supervision.child import begin_child
channel, (memory,) = begin_child(0)
(activity,) = shared_activities(memory)
activity.enter(WAITING)
channel.send("hello", {"pid": os.getpid()})
while channel.wait(None):
    for kind, body in channel.receive():
        if kind == "raise":
            channel.send("error", {"error": "ValueError: bad"})
        if kind in ("raise", "exit"):
            sys.exit(3)
        if kind == "step":
            activity.enter(STEPPING)
        if kind == "close":
            channel.close()
            time.sleep(600)
        if kind == "echo":
            channel.send("echo", body)
"""


@contextmanager
def supervised(program: str = PROGRAM) -> Iterator[Supervised]:
    memory = anonymous_memory()
    (activity,) = shared_activities(memory)
    process = Supervised((sys.executable, "-P", "-c", program), activity, (memory,), limits_s=(1.0, 5.0))
    try:
        process.start(0.0)
        yield process
    finally:
        process.end(wait=True)
        os.close(memory)


def heard(process: Supervised, kind: str, now_s: float = 0.0) -> dict[str, object]:
    while True:
        assert process.channel is not None and process.channel.wait(60.0)
        for found, body in process.receive(now_s):
            if found == kind:
                return body


@pytest.mark.parametrize(
    ("told", "why"), [("exit", "its process left through exit(3)"), ("raise", "it raised ValueError: bad")]
)
def test_a_process_that_ends_is_replaced_by_another(told: str, why: str) -> None:
    with supervised() as process:
        first = heard(process, "hello")["pid"]
        process.send(told)

        def look() -> str:
            process.receive(1.0)
            return process.look(1.0)

        assert until(look) == why
        assert process.fail(1.0, most=1) == 0.1 and process.restart_s == 1.1 and process.look(2.0) == ""
        process.send("echo")  # Nobody hears it, and the next one must not.
        process.start(2.0)
        assert process.incarnation == 1 and process.last_error == {}
        assert heard(process, "hello")["pid"] != first
        process.send("echo", {"number": 2})
        assert heard(process, "echo") == {"number": 2}


def test_a_process_that_closes_its_socket_and_stays_is_ended() -> None:
    with supervised() as process:
        heard(process, "hello")
        process.send("close")
        while process.is_connected:
            process.receive(1.0)
        assert process.look(5.0) == "" and not process.has_ended
        process.look(6.5)
        assert until(lambda: process.look(6.5)) == "its process was ended by SIGKILL"


def test_a_process_that_is_stopped_for_too_long_is_replaced() -> None:
    with supervised() as process:
        pid = int(str(heard(process, "hello")["pid"]))
        assert process.look(1.0) == ""
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid))
        assert process.look(1.0 + STOPPED_S + 0.1) == f"its process was stopped for {STOPPED_S:g} s"


def test_a_step_that_takes_too_long_is_told_and_waiting_is_not() -> None:
    with supervised() as process:
        heard(process, "hello")
        assert process.look(100.0) == "", "it waits"
        process.send("step")
        until(lambda: process.activity.words[1] != WAITING)
        assert process.look(100.5) == "" and process.receive(101.0) == [] and process.look(101.4) == ""
        assert "a step took longer than 1 s" in process.look(101.6)


def test_a_process_ends_with_its_supervisor_s_patience() -> None:
    before = descendants(os.getpid())
    with supervised() as process:
        pid = int(str(heard(process, "hello")["pid"]))
        assert pid in descendants(os.getpid())
    assert process.has_ended and not process.is_connected and not {pid} & descendants(os.getpid()) - before


def test_a_process_that_cannot_be_started_says_why() -> None:
    process = Supervised(("/nowhere/to/be/found",), Activity())
    process.start(0.0)
    assert process.look(0.0) == "its process cannot be started: No such file or directory"
    assert process.fail(0.0, most=0) is None and process.restart_s == float("inf")


def test_pauses_double_up_to_a_minute_and_end_with_the_limit() -> None:
    process = Supervised((), Activity())
    pauses = [process.fail(0.0, 12) for _ in range(13)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, None]


@given(st.integers(0, 20))
def test_a_failure_after_steady_work_is_the_first_of_its_row(failures: int) -> None:
    process = Supervised((), Activity())
    for _ in range(failures):
        process.fail(0.0, 5)
    process.began_work(1.0)
    assert process.fail(1.1 + STEADY_S, 5) == 0.1 and process.failures == 1


def test_how_a_process_ended() -> None:
    assert describe_end(-signal.SIGSEGV, {}) == "its process was ended by SIGSEGV"
    assert describe_end(-127, {}) == "its process was ended by signal 127"
    assert describe_end(4, {}) == "its process left through exit(4)"
    assert describe_end(1, {"error": "ValueError: bad"}) == "it raised ValueError: bad"
