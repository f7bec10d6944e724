"""What a rank and its child share: the newest policy whole, unrolls in the same memory, one's life."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.acting.supervisor import ActorSupervisor
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.errors import TransportError
from accel.launch.actor import command
from accel.supervision.activity import STEPPING, WAITING
from accel.supervision.channel import Channel, ChannelClosedError
from accel.transport.base import PolicyUpdate, Stopped
from accel.transport.child_actor import ActorMemory, ChildActor
from accel.transport.launcher import LaunchInfo
from tests.waiting import until


@pytest.fixture
def memory() -> Iterator[ActorMemory]:
    """The rank's."""
    memory = ActorMemory.make()
    yield memory
    memory.close()


@pytest.fixture
def its(memory: ActorMemory) -> Iterator[ActorMemory]:
    """The child's, on files of its own as in another process."""
    its = ActorMemory([os.dup(file) for file in memory.files])
    yield its
    its.close()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The rank's channel and the child's."""
    ends = [Channel(connection) for connection in socket.socketpair()]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@pytest.fixture
def ours(ends: tuple[Channel, Channel]) -> Channel:
    """The rank's."""
    return ends[0]


@pytest.fixture
def child(ends: tuple[Channel, Channel], its: ActorMemory) -> ChildActor:
    """One that is ready to act, on two buffers."""
    ours, theirs = ends
    child = ChildActor(theirs, its)
    ours.send("welcome", {"actor": 4, "message": {"seed": 1}})
    assert child.welcome(5.0) == {"seed": 1} and child.actor == 4
    child.configure(1000, 1)
    assert ours.receive() == [("configure", {"unroll_bytes": 1000, "buffers": 2})]
    return child


def test_a_child_fills_the_buffers_that_it_is_given_and_no_other(
    ours: Channel, memory: ActorMemory, child: ChildActor
) -> None:
    ring = memory.buffers(1000, 2)
    assert all(buffer.ctypes.data % 64 == 0 and buffer.nbytes == 1000 for buffer in ring)
    ours.send("free", {"buffer": 1})
    buffer = child.acquire()
    buffer[:] = 7
    child.push(buffer)
    assert ours.receive() == [("unroll", {"buffer": 1})] and int(ring[1].sum()) == 7000 and not ring[0].any()
    waits = threading.Timer(0.2, lambda: ours.send("free", {"buffer": 0}))
    waits.start()
    assert child.acquire().ctypes.data != buffer.ctypes.data, "it waited for the other one"


def test_a_child_that_waits_says_so_and_one_that_goes_on_too(
    ours: Channel, memory: ActorMemory, child: ChildActor
) -> None:
    child.activity.enter(STEPPING)
    found = threading.Event()

    def look() -> None:
        until(lambda: memory.activity.words[1] == WAITING)
        found.set()
        ours.send("free", {"buffer": 0})

    threading.Thread(target=look, daemon=True).start()
    child.acquire()
    assert found.is_set() and memory.activity.words[1] == STEPPING


def test_a_child_ends_when_it_is_told_to(ours: Channel, child: ChildActor) -> None:
    ours.send("stop")
    with pytest.raises(Stopped):
        child.acquire()
    assert child.stopping


def test_a_child_ends_when_its_rank_is_gone(ours: Channel, child: ChildActor) -> None:
    ours.close()
    with pytest.raises(ChannelClosedError, match="gone"):
        child.wait_policy(5.0)


def test_a_child_process_whose_rank_is_gone_ends_without_a_traceback(memory: ActorMemory) -> None:
    ours, theirs = socket.socketpair()
    files = (theirs.fileno(), *memory.files)
    words = (*command(LaunchInfo(1, 2, 1, "none")), ",".join(map(str, files)))
    child = subprocess.Popen(words, pass_fds=files, stderr=subprocess.PIPE, text=True)
    theirs.close()
    ours.close()
    told = child.communicate(timeout=60.0)[1]
    assert (child.returncode, told) == (1, "")


def test_a_policy_is_waited_for(memory: ActorMemory, child: ChildActor) -> None:
    with pytest.raises(TransportError, match=r"no policy from the learner within 0\.1 s"):
        child.wait_policy(0.1)
    threading.Timer(0.2, lambda: memory.policies.write(PolicyUpdate(3, np.arange(9).tobytes(), 1, 1))).start()
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
    assert until(ran.exists)
    program.unlink()
    assert host.serve(transport) == 0  # type: ignore[arg-type]
    assert [report.get("down") for report in transport.reports[:2]] == [
        "its process left through exit(7)", "its process cannot be started: No such file or directory",
    ]  # fmt: skip
    assert [report.get("again_in_s") for report in transport.reports[:2]] == [0.1, 0.2]
    why = "its process cannot be started: No such file or directory, 3 times in a row: mend what ends it"
    assert str(transport.reports[2]["error"]).startswith(why)
