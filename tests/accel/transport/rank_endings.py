"""Ranks that end badly, for ``test_endings``: ``python rank_endings.py CASE``; prints one JSON object a line."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable

from accel.errors import TransportError
from accel.system.signals import end_with_parent
from accel.transport import mpi
from accel.transport.base import Bytes, Stopped, TransportOptions
from accel.transport.join import join_world
from accel.transport.launcher import Role, Topology, detect_launch
from accel.transport.remote_learner import RemoteLearner
from tests.contracts.rank_ends import WaitingActor, connect

UNROLL_BYTES = 1 << 18
IN_FLIGHT = 2
SILENT = sys.argv[1] in ("silent_actor", "late_unrolls", "stopped_relay")
OPTIONS = TransportOptions(silence_s=4.0, prefetch=1) if SILENT else TransportOptions()
PATIENCE_S = 60.0  # Beyond what an answer takes on any machine.
A_FEW = 20  # unrolls
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


def take_until(transport: RemoteLearner, enough: Callable[[list[int]], object]) -> list[int]:
    """Receives and publishes like a learner until there is enough; unrolls by actor."""
    counts = [0] * transport.actors
    while not enough(counts):
        version = next(VERSIONS)
        transport.publish(version, version.to_bytes(4, "little") * (1 << 18))
        arrival = transport.receive(0.05)
        if arrival is not None:
            counts[arrival.actor] += 1
            transport.release(arrival)
    return counts


def shake_hands(transport: WaitingActor) -> None:
    """Welcome, hello, sizes."""
    transport.welcome(PATIENCE_S)
    transport.hello({})
    transport.configure(UNROLL_BYTES, IN_FLIGHT)


def act(transport: WaitingActor, unrolls: int | None = None) -> None:
    """Welcome, then so many unrolls; None: for as long as it is allowed to."""
    shake_hands(transport)
    say(actor=transport.actor, pid=os.getpid())
    for _ in itertools.count() if unrolls is None else range(unrolls):
        transport.push(wait_for_buffer(transport))
        transport.pull()


def wait_for_buffer(transport: WaitingActor) -> Bytes:
    """A free buffer, with signs of life meanwhile."""
    while not transport.stopping:
        if (buffer := transport.try_acquire()) is not None:
            return buffer
        transport.beat()
        transport.pull()
        time.sleep(1e-3)
    return transport.acquire()


def act_to_the_end(transport: WaitingActor) -> None:
    """``act``, ended in order and told."""
    try:
        act(transport)
    except Stopped:
        say(actor=transport.actor, ended="stopped")
    except TransportError as error:
        say(actor=transport.actor, ended=str(error))
    finally:
        transport.close(PATIENCE_S)


def killed_actor(transport: RemoteLearner | WaitingActor) -> None:
    """An actor is killed in the middle of large sends; the learner carries on with the others."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        before = take_until(transport, lambda _: transport.dead())
        # What the dead actor had sent whole may still arrive: the learner has taken it ahead, or it is on the way.
        left = OPTIONS.prefetch + IN_FLIGHT + 1
        take_until(transport, lambda counts: sum(counts) >= left or not transport.alive())
        after = take_until(transport, lambda counts: all(counts[actor] for actor in transport.alive()))
        alive, dead = sorted(transport.alive()), sorted(transport.dead())
        say(before=before, after=after, alive=alive, dead=dead, unfinished=sorted(transport.stop(PATIENCE_S)))
    elif transport.actor == int(os.environ["VICTIM"]):
        try:
            act(transport, A_FEW)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        act_to_the_end(transport)


def killed_before_hello(transport: RemoteLearner | WaitingActor) -> None:
    """An actor dies before it says a word, with the learner's welcome on its way to it."""
    if isinstance(transport, RemoteLearner):
        time.sleep(0.2)
        start_learner(transport)
        counts = take_until(transport, lambda counts: counts[1] and transport.dead())
        dead = sorted(transport.dead())
        say(counts=counts, dead=dead, unfinished=sorted(transport.stop(PATIENCE_S)))
    elif transport.actor == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        act_to_the_end(transport)


def killed_while_stopping(transport: RemoteLearner | WaitingActor) -> None:
    """An actor dies after the learner asked it to stop, before its goodbye."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, all)
        unfinished = sorted(transport.stop(PATIENCE_S))
        say(unfinished=unfinished, dead=sorted(transport.dead()))
        return
    try:
        act(transport)
    except Stopped:
        if transport.actor == 0:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        transport.close(PATIENCE_S)


def silent_actor(transport: RemoteLearner | WaitingActor) -> None:
    """An actor behind a link that was cut: it falls silent in the middle of large sends, and MPI never tells."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, lambda _: transport.silent())
        take_until(transport, lambda counts: counts[1] > A_FEW)
        began_s = time.monotonic()
        unfinished = sorted(transport.stop(PATIENCE_S))
        say(unfinished=unfinished, waited=time.monotonic() - began_s > PATIENCE_S / 2.0)
        endpoint.abort_job(3)
    elif transport.actor == 0:
        act(transport, A_FEW)
        transport.push(transport.acquire())
        time.sleep(600)
    else:
        act_to_the_end(transport)


def late_unrolls(transport: RemoteLearner | WaitingActor) -> None:
    """An actor is heard again while the learner takes no unrolls: it starts anew all the same, without its old ones."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        while not transport.silent():
            transport.pump()
        while not transport.alive():
            transport.pump()
        taken: list[int] = []
        while 3 not in taken:
            if (arrival := transport.receive(0.05)) is not None:
                taken.append(int(arrival.buffer[0]))
                transport.release(arrival)
        say(late=2 in taken, unfinished=sorted(transport.stop(PATIENCE_S)))
        return
    shake_hands(transport)
    for number in (1, 2):
        buffer = transport.acquire()
        buffer[:] = number
        transport.push(buffer)
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        transport.pull()
    time.sleep(2.0 * OPTIONS.silence_s)  # type: ignore[operator]
    while transport.fence is None:
        transport.beat()
        transport.pull()
    while not transport.rejoin():
        transport.pull()
    buffer = transport.acquire()
    buffer[:] = 3
    transport.push(buffer)
    transport.close(PATIENCE_S)


def killed_relay(transport: RemoteLearner | WaitingActor) -> None:
    """The actor that relays policies dies in the middle of one; the others report every version that they get."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        policy_reaches(transport, {0, 1, 2}, 3)
        transport.publish(next(VERSIONS), b"x" * (1 << 26))
        transport.pump()
        os.kill(PIDS[0], signal.SIGKILL)
        policy_reaches(transport, {1, 2}, 3)
        say(dead=sorted(transport.dead()), unfinished=sorted(transport.stop(PATIENCE_S)))
    else:
        report_versions(transport)


def stopped_relay(transport: RemoteLearner | WaitingActor) -> None:
    """The actor that relays policies is stopped for a moment: the others do without, and it takes part again."""
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        policy_reaches(transport, {0, 1, 2}, 3)
        os.kill(PIDS[0], signal.SIGSTOP)
        policy_reaches(transport, {1, 2}, 3)
        os.kill(PIDS[0], signal.SIGCONT)
        policy_reaches(transport, {0, 1, 2}, 3)
        say(dead=sorted(transport.dead()), unfinished=sorted(transport.stop(PATIENCE_S)))
    else:
        report_versions(transport)


PIDS: dict[int, int] = {}


def policy_reaches(transport: RemoteLearner, actors: set[int], times: int) -> None:
    """Publishes so many policies, each when these actors have the last one."""
    for _ in range(times):
        version, waits = next(VERSIONS), set(actors)
        transport.publish(version, version.to_bytes(4, "little") * (1 << 18))
        until_s = time.monotonic() + PATIENCE_S
        while waits:
            for actor, message in transport.messages():
                PIDS[actor] = int(str(message["pid"]))
                if message["version"] == version:
                    waits.discard(actor)
            time.sleep(1e-3)
            if time.monotonic() > until_s:
                raise TransportError(f"version {version} never reached actors {waits}")


def report_versions(transport: WaitingActor) -> None:
    """Reports every policy, checked, until the learner stops this actor."""
    transport.welcome(PATIENCE_S)
    transport.hello({"pid": os.getpid()})
    last = 0
    while not transport.stopping:
        if (update := transport.pull()) is not None:
            content = update.payload or b""
            torn = update.version.to_bytes(4, "little") * (len(content) // 4) != content and content[:1] != b"x"
            if torn or update.version <= last:
                raise TransportError(f"policy {update.version} after {last} is torn or old")
            last = update.version
            transport.report({"version": last, "pid": os.getpid()})
        transport.beat()
        if transport.fence is not None:
            transport.rejoin()
        time.sleep(1e-3)
    transport.close(PATIENCE_S)
    say(actor=transport.actor, ended="stopped")


def learner_that_stays(transport: RemoteLearner | WaitingActor) -> None:
    """An actor died; the learner has more to do after the others said goodbye than these wait for it in MPI."""
    mpi.LEAVE_S = 0.5
    if isinstance(transport, RemoteLearner):
        start_learner(transport)
        take_until(transport, lambda _: transport.dead())
        transport.stop(PATIENCE_S)
        time.sleep(3.0)
        say(stayed=True)
    elif transport.actor == 0:
        act(transport, A_FEW)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        act_to_the_end(transport)


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)  # As every rank of accel: prterun leaves sleeping ones behind.
    endpoint = join_world(detect_launch())
    topology = Topology.of(endpoint.size, 1)
    mine = connect(endpoint, topology, OPTIONS)
    if topology.role(endpoint.rank) is Role.LEARNER:
        say(fault_tolerant=mine.fault_tolerant)
    cases = (killed_actor, killed_before_hello, killed_while_stopping)
    more = (silent_actor, late_unrolls, learner_that_stays, killed_relay, stopped_relay)
    {case.__name__: case for case in (*cases, *more)}[sys.argv[1]](mine)
    say(rank=endpoint.rank, returned=True)
