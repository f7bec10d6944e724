"""What a rank and its child share: messages whole and in order, the newest policy whole, unrolls in the same memory."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.acting.child import ActorSupervisor, ChildActor, Link, LinkLostError
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.errors import TransportError
from accel.launch.actor import command
from accel.supervision.activity import PREPARING, STEPPING, WAITING
from accel.transport.base import PolicyUpdate, Stopped
from accel.transport.launcher import LaunchInfo

OPEN: list[Link] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_all()


def close_all() -> None:
    while OPEN:
        OPEN.pop().close()


def pair() -> tuple[Link, Link]:
    """The rank's end and the child's, in one process."""
    ours, theirs = Link.make()
    OPEN.append(ours)
    return ours, adopted(ours, theirs)


def adopted(ours: Link, theirs: socket.socket) -> Link:
    """The child's end, on files of its own as in another process."""
    files = [os.dup(file) for file in ours.files(theirs)[1:]]
    link = Link.adopt((theirs.detach(), *files))
    OPEN.append(link)
    return link


@given(st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=3000), max_size=3), max_size=12))
def test_messages_arrive_whole_and_in_order(bodies: list[dict[str, str]]) -> None:
    ours, theirs = pair()
    for body in bodies:
        ours.send("report", body)
    ours.flush(wait=True)
    found = []
    while len(found) < len(bodies):
        assert theirs.wait(10.0)
        found += theirs.receive()
    assert found == [("report", body) for body in bodies] and theirs.receive() == []
    close_all()


def test_more_than_fits_waits_at_the_sender_and_is_not_lost() -> None:
    ours, theirs = pair()
    for number in range(40):
        ours.send("report", {"number": number, "text": "x" * 50_000})
    found = []
    while len(found) < 40:
        found += theirs.receive()
        ours.flush()
    assert [body["number"] for _, body in found] == list(range(40))


def test_messages_of_a_child_that_is_gone_are_not_the_next_one_s() -> None:
    ours, theirs = pair()
    theirs.send("unroll", {"buffer": 1})
    ours.activity.enter(STEPPING)
    again = adopted(ours, ours.renew())
    assert not ours.wait(0.0) and ours.activity.words[1] == PREPARING
    with pytest.raises(TransportError):
        theirs.receive()
    again.send("hello", {})
    assert ours.receive() == [("hello", {})]


def test_what_a_child_sent_before_it_died_is_read_before_its_death() -> None:
    ours, theirs = pair()
    theirs.send("unroll", {"buffer": 1})
    OPEN.remove(theirs)
    theirs.close()
    assert ours.receive() == [("unroll", {"buffer": 1})]
    with pytest.raises(TransportError):
        ours.receive()


def test_the_newest_policy_is_read_once_and_its_payload_only_when_it_changed() -> None:
    ours, theirs = pair()
    read = theirs.policies.read
    assert read() is None
    ours.policies.write(PolicyUpdate(1, "int8", b"A" * 9000))
    ours.policies.write(PolicyUpdate(2, "fp32", b"B" * 90))
    assert read() == PolicyUpdate(2, "fp32", b"B" * 90) and read() is None
    ours.policies.write(PolicyUpdate(3, "fp32", None))
    assert read() == PolicyUpdate(3, "fp32", None)
    ours.policies.write(PolicyUpdate(4, "int8", b"C" * 30_000))
    ours.policies.write(PolicyUpdate(5, "int8", None))
    assert read() == PolicyUpdate(5, "int8", b"C" * 30_000), "the payload came with a version that was skipped"
    assert adopted(ours, ours.renew()).policies.read() == PolicyUpdate(5, "int8", b"C" * 30_000)
    with pytest.raises(TransportError, match="too long"):
        ours.policies.write(PolicyUpdate(6, "x" * 10_000, None))


def test_a_policy_that_is_being_written_is_never_read_in_part() -> None:
    ours, theirs = pair()
    done = threading.Event()

    def write() -> None:
        for version in range(1, 400):
            ours.policies.write(PolicyUpdate(version, "fp32", bytes([version % 251]) * (50_000 + version)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    versions = []
    while not done.is_set() or not versions or versions[-1] != 399:
        update = theirs.policies.read()
        if update is not None and update.payload is not None:
            assert update.payload == bytes([update.version % 251]) * (50_000 + update.version)
            versions.append(update.version)
    writer.join()
    assert versions == sorted(set(versions))


def test_unrolls_are_in_the_same_memory() -> None:
    ours, theirs = pair()
    mine, its = ours.buffers(1000, 3), theirs.buffers(1000, 3)
    for number, buffer in enumerate(its):
        buffer[:] = number + 1
    assert [int(buffer.sum()) for buffer in mine] == [1000, 2000, 3000]
    assert all(buffer.ctypes.data % 64 == 0 and buffer.nbytes == 1000 for buffer in mine)


def started(in_flight: int = 1) -> tuple[Link, ChildActor]:
    ours, theirs = pair()
    child = ChildActor(theirs)
    ours.send("welcome", {"actor": 4, "message": {"seed": 1}})
    assert child.welcome(5.0) == {"seed": 1} and child.actor == 4
    child.configure(1000, in_flight)
    assert ours.receive() == [("configure", {"unroll_bytes": 1000, "buffers": in_flight + 1})]
    return ours, child


def test_a_child_fills_the_buffers_that_it_is_given_and_no_other() -> None:
    ours, child = started()
    ring = ours.buffers(1000, 2)
    ours.send("free", {"buffer": 1})
    buffer = child.acquire()
    buffer[:] = 7
    child.push(buffer)
    assert ours.receive() == [("unroll", {"buffer": 1})] and int(ring[1].sum()) == 7000 and not ring[0].any()
    waits = threading.Timer(0.2, lambda: ours.send("free", {"buffer": 0}))
    waits.start()
    assert child.acquire().ctypes.data != buffer.ctypes.data, "it waited for the other one"


def test_a_child_that_waits_says_so_and_one_that_goes_on_too() -> None:
    ours, child = started()
    child.activity.enter(STEPPING)
    found = threading.Event()

    def look() -> None:
        while ours.activity.words[1] != WAITING:
            time.sleep(0.01)
        found.set()
        ours.send("free", {"buffer": 0})

    threading.Thread(target=look, daemon=True).start()
    child.acquire()
    assert found.is_set() and ours.activity.words[1] == STEPPING


def test_a_child_ends_when_it_is_told_to_or_when_its_rank_is_gone() -> None:
    ours, child = started()
    ours.send("stop", {})
    with pytest.raises(Stopped):
        child.acquire()
    assert child.stopping
    ours, child = started()
    OPEN.remove(ours)
    ours.close()
    with pytest.raises(LinkLostError, match="gone"):
        child.wait_policy(5.0)


def test_a_child_process_whose_rank_is_gone_ends_without_a_traceback() -> None:
    ours, theirs = Link.make()
    files = ours.files(theirs)
    words = (*command(LaunchInfo(1, 2, 1, "none")), ",".join(map(str, files)))
    child = subprocess.Popen(words, pass_fds=files, stderr=subprocess.PIPE, text=True)
    theirs.close()
    ours.close()
    told = child.communicate(timeout=60.0)[1]
    assert (child.returncode, told) == (1, "")


def test_a_policy_is_waited_for() -> None:
    ours, child = started()
    with pytest.raises(TransportError, match=r"no policy from the learner within 0\.1 s"):
        child.wait_policy(0.1)
    threading.Timer(0.2, lambda: ours.policies.write(PolicyUpdate(3, "fp32", np.arange(9).tobytes()))).start()
    assert child.wait_policy(10.0).version == 3 and child.pull() is None


class Told:
    """A rank's transport to a learner that has welcomed it, and stops it when it gives up."""

    actor, fence, has_news, stopping, aborted = 0, None, True, False, False

    def __init__(self, config: ActorConfig) -> None:
        self._welcomes = [config.to_json()]
        self.reports: list[dict[str, Any]] = []

    def poll_welcome(self) -> Any:
        return self._welcomes.pop() if self._welcomes else None

    def hello(self, message: dict[str, Any]) -> None:
        self.reports.append(message)
        self.stopping = True

    def report(self, message: dict[str, Any]) -> None:
        self.reports.append(message)

    def pull(self) -> None: ...

    def try_acquire(self) -> None: ...

    pump = beat = pull


def test_a_system_that_starts_no_more_processes_costs_restarts(tmp_path: Path) -> None:
    program = tmp_path / "child"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\nexit 7\n")
    program.chmod(0o755)
    config = TrainConfig.create(env="CartPole-v1", actors=1, max_actor_restarts=2)
    host, transport = ActorSupervisor([str(program)]), Told(ActorConfig.of(config, schemes=("fp32",)))
    ran = tmp_path / "ran"
    while not ran.exists():
        time.sleep(0.01)
    program.unlink()
    assert host.serve(transport) == 0  # type: ignore[arg-type]
    assert [report.get("down") for report in transport.reports[:2]] == [
        "its process left through exit(7)", "another process cannot be started: No such file or directory",
    ]  # fmt: skip
    assert [report.get("again_in_s") for report in transport.reports[:2]] == [0.1, 0.2]
    assert transport.reports[2]["error"] == "another process cannot be started: No such file or directory"
