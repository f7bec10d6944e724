"""A node's policies in shared memory: what readers get whatever the writer does, and whom they refuse to read."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel.errors import TransportError
from accel.transport.base import PolicyUpdate
from accel.transport.node_memory import NodeMemory, NodeView, Place, PolicySlot, node_name

NONE = PolicyUpdate(-1, None)
NODE = node_name()
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Linux with /proc")


@pytest.fixture
def memory() -> NodeMemory:
    return NodeMemory(NODE or "")


def test_a_reader_gets_the_newest_once(memory: NodeMemory) -> None:
    view = NodeView(memory.place)
    assert view.read(NONE) is None
    memory.write(first := PolicyUpdate(1, b"one", 1, 1))
    assert view.read(NONE) == first and view.read(first) is None
    memory.write(PolicyUpdate(2, b"two", 2, 2))
    memory.write(third := PolicyUpdate(3, b"three", 3, 3))
    assert view.read(first) == third


def test_an_unchanged_payload_is_left_out_for_those_who_have_it(memory: NodeMemory) -> None:
    view = NodeView(memory.place)
    memory.write(first := PolicyUpdate(1, b"one", 1, 1))
    memory.write(notice := PolicyUpdate(2, None, 2, 1))
    assert view.read(first) == notice
    assert view.read(NONE) == replace(notice, payload=b"one")


def test_nothing_older_than_what_came_from_elsewhere(memory: NodeMemory) -> None:
    view = NodeView(memory.place)
    memory.write(PolicyUpdate(1, b"one", 1, 1))
    assert view.read(PolicyUpdate(2, None, 2, 2)) is None


def test_a_writer_that_ends_in_the_middle_of_a_policy_keeps_nobody(memory: NodeMemory) -> None:
    """What was torn is never read, and nothing waits for it."""
    view = NodeView(memory.place)
    memory.write(first := PolicyUpdate(1, b"one", 1, 1))
    assert view.read(NONE) == first
    program = (
        "import os, sys\n"
        "from accel.transport.base import PolicyUpdate\n"
        "from accel.transport.node_memory import NodeMemory\n"
        "class Fatal(bytes):\n"
        "    def __len__(self): os._exit(0)\n"
        "memory = NodeMemory(sys.argv[1])\n"
        "memory.write(PolicyUpdate(1, None, 1, 1), memoryview(b'whole'))\n"
        "print(memory.place.process, memory.place.file, memory.place.token, flush=True)\n"
        "sys.stdin.readline()\n"
        "memory.write(PolicyUpdate(2, None, 2, 2), Fatal(b'torn'))\n"
    )
    command = [sys.executable, "-c", program, NODE or ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        process, file, token = writer.stdout.readline().split()
        view = NodeView(Place(NODE or "", int(process), int(file), token))
        whole = view.read(NONE)
        assert whole is not None and whole.payload == b"whole"
        writer.stdin.write("\n")
        writer.stdin.flush()
        writer.wait()
    assert view.read(NONE) is None and view.read(whole) is None
    with pytest.raises(TransportError, match="cannot be opened"):
        NodeView(Place(NODE or "", int(process), int(file), token))


def test_memory_of_another_process_with_the_same_number_is_refused(memory: NodeMemory) -> None:
    with pytest.raises(TransportError, match="not the one"):
        NodeView(Place(*memory.place[:3], "another"))
    file = os.memfd_create("foreign")
    with pytest.raises(TransportError, match="not the one"):
        NodeView(Place(*memory.place[:2], file, memory.place.token))
    os.close(file)


def test_a_slot_is_read_whole_while_another_process_writes_it() -> None:
    """Payloads of one byte value each; a torn one would mix two."""
    file = os.memfd_create("slot")
    slot, versions, last = PolicySlot(file), [], NONE
    child = os.fork()
    if child == 0:
        writer = PolicySlot(file)
        for number in range(400):
            writer.write(PolicyUpdate(number, bytes([number % 256]) * 300_000, number + 1, number + 1))
        os._exit(0)
    while not versions or versions[-1] < 399:
        if (update := slot.read(last, patient=True)) is not None:
            assert update.payload == bytes([update.version % 256]) * 300_000
            versions.append(update.version)
            last = update
    os.waitpid(child, 0)
    assert versions == sorted(set(versions))
    os.close(file)


def test_a_closed_memory_leaves_no_file(memory: NodeMemory) -> None:
    before = set(os.listdir("/proc/self/fd"))
    other = NodeMemory(NODE or "")
    other.write(PolicyUpdate(1, b"one", 1, 1))
    view = NodeView(other.place)
    assert view.read(NONE) is not None
    view.close()
    other.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not list(Path("/dev/shm").glob("accel*"))
