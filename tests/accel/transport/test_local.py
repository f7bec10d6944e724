"""The in-process transport in a single thread, and what importing the transport brings with it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from accel.errors import TransportError
from accel.transport.base import Stopped
from accel.transport.local import LocalActor, LocalLearner
from tests.contracts.ranks import ROOT


def started(count: int = 1) -> tuple[LocalLearner, list[LocalActor]]:
    """Both ends after the handshake, for unrolls of 16 bytes."""
    learner = LocalLearner(count)
    actors = [LocalActor(learner, index) for index in range(count)]
    learner.welcome({"seed": 3})
    for index, actor in enumerate(actors):
        assert actor.welcome(0.0) == {"seed": 3}
        actor.hello({"index": index})
        actor.configure(16, 2)
    assert learner.messages() == [(index, {"index": index}) for index in range(count)]
    learner.configure(16)
    return learner, actors


def test_one_thread_plays_both_ends() -> None:
    learner, (actor,) = started()
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


def test_what_would_wait_forever_is_an_error() -> None:
    with pytest.raises(TransportError, match="one thread"):
        LocalActor(LocalLearner(), 0).welcome(1.0)
    _, (actor,) = started()
    with pytest.raises(TransportError, match="one thread"):
        actor.wait_policy(1.0)
    for _ in range(3):
        actor.push(actor.acquire())
    with pytest.raises(TransportError, match="one thread"):
        actor.acquire()


def test_buffers_are_reused_not_grown() -> None:
    learner, (actor,) = started()
    seen: set[int] = set()
    for _ in range(50):
        buffer = actor.acquire()
        seen.add(buffer.ctypes.data)
        actor.push(buffer)
        arrival = learner.receive()
        learner.release(arrival)
    assert len(seen) == 1


def test_both_ends_agree_on_the_size() -> None:
    learner = LocalLearner()
    learner.configure(16)
    with pytest.raises(TransportError, match="16"):
        LocalActor(learner, 0).configure(32, 1)


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
    learner, (_, leaver) = started(2)
    buffer = leaver.acquire()
    buffer[:] = np.arange(16)
    leaver.push(buffer)
    learner.leave(1)
    assert learner.alive() == {0}
    arrival = learner.receive()
    assert arrival is not None and arrival.actor == 1
    assert (arrival.buffer == np.arange(16)).all()
