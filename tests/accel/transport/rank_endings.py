"""Ranks that end badly, for ``test_endings``: ``python rank_endings.py CASE``; prints one JSON object a line."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time

from accel.errors import TransportError
from accel.transport import Role, Stopped, Topology, TransportOptions, connect, detect_launch, join_world
from accel.transport.remote_actor import RemoteActor
from accel.transport.remote_learner import RemoteLearner

UNROLL_BYTES = 1 << 18
VERSIONS = itertools.count(1)


def say(**facts: object) -> None:
    """One line for the test to read, in one write so that ranks don't mix."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def start_learner(transport: RemoteLearner) -> None:
    """Welcome, hellos, sizes."""
    transport.welcome({})
    hellos = 0
    while hellos < transport.actors and not transport.dead():
        hellos += len(transport.messages())
        time.sleep(1e-3)
    transport.configure(UNROLL_BYTES)


def take_until(transport: RemoteLearner, done_s: float) -> list[int]:
    """Receives and publishes like a learner until a moment; unrolls by actor."""
    counts = [0] * transport.actors
    while time.monotonic() < done_s:
        version = next(VERSIONS)
        transport.publish(version, {"fp32": version.to_bytes(4, "little") * (1 << 18)})
        arrival = transport.receive(0.05)
        if arrival is not None:
            counts[arrival.actor] += 1
            transport.release(arrival)
    return counts


def act_until(transport: RemoteActor, done_s: float = float("inf")) -> None:
    """Welcome, then unrolls for as long as it is allowed to."""
    transport.welcome(20)
    transport.hello({})
    transport.configure(UNROLL_BYTES)
    say(actor=transport.actor, pid=os.getpid())
    while time.monotonic() < done_s:
        transport.push(transport.acquire())
        transport.pull()


def act_to_the_end(transport: RemoteActor, done_s: float = float("inf")) -> None:
    """``act_until``, ended in order and told."""
    try:
        act_until(transport, done_s)
    except Stopped:
        say(actor=transport.actor, ended="stopped")
    except TransportError as error:
        say(actor=transport.actor, ended=str(error))
    finally:
        transport.close()


def killed_actor(transport: RemoteLearner | RemoteActor) -> None:
    """The last actor is killed in the middle of large sends; the learner carries on with the others."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        before = take_until(transport, time.monotonic() + 1.0)
        after = take_until(transport, time.monotonic() + 0.5)
        alive, dead = sorted(transport.alive()), sorted(transport.dead())
        began_s = time.monotonic()
        unfinished = sorted(transport.stop(10))
        stop_s = time.monotonic() - began_s
        say(before=before, after=after, alive=alive, dead=dead, unfinished=unfinished, stop_s=stop_s)
    elif transport.actor == int(os.environ["VICTIM"]):
        try:
            act_until(transport, time.monotonic() + 0.3)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        act_to_the_end(transport)


def killed_before_hello(transport: RemoteLearner | RemoteActor) -> None:
    """An actor dies before it says a word, with the learner's welcome on its way to it."""
    if isinstance(transport, RemoteLearner):
        time.sleep(0.2)
        start_learner(transport)
        counts = take_until(transport, time.monotonic() + 0.3)
        dead = sorted(transport.dead())
        say(counts=counts, dead=dead, unfinished=sorted(transport.stop(10)))
    elif transport.actor == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        act_to_the_end(transport)


def killed_while_stopping(transport: RemoteLearner | RemoteActor) -> None:
    """An actor dies after the learner asked it to stop, before its goodbye."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, time.monotonic() + 0.2)
        unfinished = sorted(transport.stop(10))
        say(unfinished=unfinished, dead=sorted(transport.dead()))
        return
    try:
        act_until(transport)
    except Stopped:
        if transport.actor == 0:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        transport.close()


def killed_learner(transport: RemoteLearner | RemoteActor) -> None:
    """The learner is killed while actors wait for buffers, compute, or wait for a policy."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, time.monotonic() + 0.3)
        say(killed_s=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if transport.actor == 1:
            transport.welcome(20)
            transport.hello({})
            while True:
                transport.wait_policy(20)
        act_until(transport)
    except TransportError as error:
        say(actor=transport.actor, ended=str(error))
    finally:
        transport.close()
        say(actor=transport.actor, closed_s=time.monotonic())


def failing_learner(transport: RemoteLearner | RemoteActor) -> None:
    """The learner's program ends with an exception, and nobody called stop."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, time.monotonic() + 0.1)
        raise RuntimeError("the learner's own mistake")
    act_to_the_end(transport)


def failing_actor(transport: RemoteLearner | RemoteActor) -> None:
    """An actor's program ends with an exception, and nobody called close."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        counts = take_until(transport, time.monotonic() + 0.5)
        say(counts=counts, alive=sorted(transport.alive()), dead=sorted(transport.dead()))
        say(unfinished=sorted(transport.stop(10)))
    elif transport.actor == 0:
        act_until(transport, time.monotonic() + 0.1)
        raise RuntimeError("the actor's own mistake")
    else:
        act_to_the_end(transport)


def unfinished_abort(transport: RemoteLearner | RemoteActor) -> None:
    """An actor that never listens again can only be ended together with the job."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        say(unfinished=sorted(transport.stop(0.3)))
        endpoint.abort_job(3)
    transport.welcome(20)
    transport.hello({})
    time.sleep(60)


if __name__ == "__main__":
    endpoint = join_world(detect_launch())
    topology = Topology.single_learner(endpoint.size)
    mine = connect(endpoint, topology, options=TransportOptions())
    if topology.role(endpoint.rank) is Role.LEARNER:
        say(fault_tolerant=mine.fault_tolerant)
    cases = (killed_actor, killed_before_hello, killed_while_stopping, killed_learner, failing_learner, failing_actor)
    {case.__name__: case for case in (*cases, unfinished_abort)}[sys.argv[1]](mine)
    say(rank=endpoint.rank, returned=True)
