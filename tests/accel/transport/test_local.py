"""The in-process transport in a single thread, and what importing the transport brings with it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from accel.errors import TransportError
from accel.transport.base import Stopped
from accel.transport.local import LocalTransport
from tests.contracts.ranks import ROOT


def started(actors: int = 1) -> LocalTransport:
    """A transport after the handshake, for unrolls of 16 bytes."""
    transport = LocalTransport(actors)
    transport.learner.welcome({"seed": 3})
    for index in range(actors):
        actor = transport.actor(index)
        assert actor.welcome(0.0) == {"seed": 3}
        actor.hello({"index": index})
        actor.configure(16, 2)
    assert transport.learner.messages() == [(index, {"index": index}) for index in range(actors)]
    transport.learner.configure(16)
    return transport


def test_one_thread_plays_both_ends() -> None:
    transport = started()
    learner, actor = transport.learner, transport.actor(0)
    for step in range(5):
        learner.publish(step, bytes([step // 2]))
        update = actor.wait_policy(0.0)
        assert (update.version, update.payload) == (step, None if step % 2 else bytes([step // 2]))
        assert actor.pull() is None
        buffer = actor.acquire()
        buffer[:] = step
        actor.push(buffer)
        arrival = learner.receive()
        assert arrival is not None and arrival.actor == 0
        assert (arrival.buffer == step).all()
        learner.release(arrival)
        assert learner.receive(1.0) is None
    assert learner.stop() == frozenset()
    with pytest.raises(Stopped):
        actor.acquire()
    assert actor.stopping


def test_actors_in_turn_arrive_in_turn() -> None:
    transport = started(3)
    order = [2, 0, 1, 1, 0, 2, 2]
    for index in order:
        transport.actor(index).push(transport.actor(index).acquire())
    arrivals = [transport.learner.receive() for _ in order]
    assert [arrival.actor for arrival in arrivals if arrival is not None] == order


def test_what_would_wait_forever_is_an_error() -> None:
    lonely = LocalTransport(1)
    with pytest.raises(TransportError, match="one thread"):
        lonely.actor(0).welcome(1.0)
    transport = started()
    actor = transport.actor(0)
    with pytest.raises(TransportError, match="one thread"):
        actor.wait_policy(1.0)
    for _ in range(3):
        actor.push(actor.acquire())
    with pytest.raises(TransportError, match="one thread"):
        actor.acquire()


def test_buffers_are_reused_not_grown() -> None:
    transport = started()
    seen: set[int] = set()
    for _ in range(50):
        buffer = transport.actor(0).acquire()
        seen.add(buffer.ctypes.data)
        transport.actor(0).push(buffer)
        arrival = transport.learner.receive()
        transport.learner.release(arrival)
    assert len(seen) == 1


def test_both_ends_agree_on_the_size() -> None:
    transport = LocalTransport(1)
    transport.learner.configure(16)
    with pytest.raises(TransportError, match="16"):
        transport.actor(0).configure(32, 1)


def test_importing_it_loads_neither_torch_nor_mpi() -> None:
    program = (
        "import importlib, pkgutil, sys, accel.transport as t\n"
        "names = {module.name for module in pkgutil.iter_modules(t.__path__)} - {'mpi'}\n"
        "for name in names: importlib.import_module(f'accel.transport.{name}')\n"
        "print(sorted({'torch', 'mpi4py', 'gymnasium', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done


def test_arrivals_of_a_leaver_stay() -> None:
    transport = started(2)
    leaver = transport.actor(1)
    buffer = leaver.acquire()
    buffer[:] = np.arange(16)
    leaver.push(buffer)
    transport.learner.leave(1)
    assert transport.learner.alive() == {0}
    arrival = transport.learner.receive()
    assert arrival is not None and arrival.actor == 1
    assert (arrival.buffer == np.arange(16)).all()
