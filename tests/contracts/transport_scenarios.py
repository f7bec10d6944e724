"""What a transport must do, as scenes played by a learner and its actors over any implementation.

Run as a program under mpirun, this file plays scenes on real ranks and prints one JSON line for each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from accel.acting.processes import ActorProcesses
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.errors import TransportError
from accel.supervision.child import begin_child
from accel.transport.base import Aborted, ActorTransport, Arrival, LearnerTransport, Stopped, TransportOptions
from accel.transport.child_actor import ActorMemory, ChildActor
from accel.transport.join import join_world
from accel.transport.launcher import Role, Topology, detect_launch
from tests.contracts.rank_ends import WaitingActor, connect

Messages = list[tuple[int, dict[str, Any]]]
FORMATS = {"unroll": 3, "artifact": 1}
LIMIT_S = 60.0  # Of every wait: beyond what an answer takes on any machine.


class Scene:
    """One behaviour. ``learner`` and ``actor`` play it; ``verdict`` judges, at the learner, what the actors saw."""

    unroll_bytes = 65536
    in_flight = 2
    options = TransportOptions()
    of_ranks = False
    """Whether it is about what a rank sees, and the child that acts for it does not."""

    def __init__(self) -> None:
        self.endings: Messages = []
        self.early: Messages = []

    def learner(self, transport: LearnerTransport) -> None:
        """Plays the learner; returns before ``stop``, which the stage calls."""

    def actor(self, transport: ActorTransport) -> dict[str, Any] | None:
        """Plays an actor; what it returns reaches ``verdict``. ``Stopped`` ends it quietly."""

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        """Judges the actors' findings after ``stop``."""

    def mail(self, transport: LearnerTransport) -> Messages:
        """Messages of the scene itself; how actors ended is put aside for the stage."""
        mail, self.early = self.early, []
        for actor, message in transport.messages():
            (self.endings if "ending" in message else mail).append((actor, message))
        return mail

    def shake_hands(self, transport: LearnerTransport, config: dict[str, Any] | None = None) -> Messages:
        """The learner's side of every start: welcome, hellos, sizes."""
        hellos = self.greet(transport, config)
        transport.configure(self.unroll_bytes)
        return hellos

    def greet(self, transport: LearnerTransport, config: dict[str, Any] | None = None) -> Messages:
        """``shake_hands`` without the sizes: until they are known the learner takes no unrolls."""
        transport.welcome(config or {})
        hellos, early = Messages(), Messages()
        until = time.monotonic() + LIMIT_S
        while len(hellos) < transport.actors:
            for actor, message in self.mail(transport):
                (early if actor in dict(hellos) else hellos).append((actor, message))
            time.sleep(1e-3)
            assert time.monotonic() < until, f"only {hellos} said hello"
        self.early = early
        return hellos

    def wait_for_reports(self, transport: LearnerTransport, key: str, value: object = True) -> None:
        """Until every actor has reported ``{key: value}``."""
        pending = set(range(transport.actors))
        until = time.monotonic() + LIMIT_S
        while pending:
            for actor, message in self.mail(transport):
                assert message == {key: value}, f"actor {actor} reported {message}, not {key}={value}"
                pending.discard(actor)
            transport.pump()
            time.sleep(2e-4)
            assert not any("failure" in message for _, message in self.endings), "an actor failed"
            assert time.monotonic() < until, f"actors {pending} never reported {key}={value}"


def answer(transport: ActorTransport, unroll_bytes: int, in_flight: int = 2) -> dict[str, Any]:
    """The actor's side of every start."""
    config = transport.welcome(LIMIT_S)
    transport.hello({"actor": transport.actor})
    transport.configure(unroll_bytes, in_flight)
    return config


def mark(buffer: np.ndarray, actor: int, number: int) -> None:
    """Fills a whole buffer with who filled it and when."""
    buffer.view(np.uint32)[:] = number << 8 | actor


def check_order(arrival: Arrival, expected: list[int]) -> None:
    """Every byte is of the arrival's actor's next unroll; counts it."""
    words = arrival.buffer.view(np.uint32)
    assert (words == words[0]).all(), "an unroll arrived torn"
    actor, number = int(words[0]) & 255, int(words[0]) >> 8
    assert actor == arrival.actor
    assert number == expected[actor], f"unroll {number} of actor {actor} instead of {expected[actor]}"
    expected[actor] += 1


def receive_next(transport: LearnerTransport) -> Arrival:
    """The next arrival, or a failure that says so."""
    arrival = transport.receive(LIMIT_S)
    assert arrival is not None, f"nothing arrived in {LIMIT_S:g} s; alive: {transport.alive()}"
    return arrival


def pump_for(transport: LearnerTransport | ActorTransport, seconds: float) -> None:
    """Lets transfers progress for a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not isinstance(transport, ChildActor):  # whose supervisor sees to them
            transport.pump()  # type: ignore[union-attr]
        time.sleep(1e-3)


class Order(Scene):
    """Actors of unequal speed: everything arrives once, in order for each actor, whole, and from the right one."""

    count = 60
    options = TransportOptions(max_held=5, prefetch=2)

    def learner(self, transport: LearnerTransport) -> None:
        hellos = self.shake_hands(transport, {"answer": 42, "text": "é"})
        assert sorted(actor for actor, _ in hellos) == list(range(transport.actors))
        assert all(message == {"actor": actor} for actor, message in hellos)
        expected = [0] * transport.actors
        held: list[Arrival] = []
        for _ in range(self.count * transport.actors):
            held.append(receive_next(transport))
            if len(held) == 5:  # Content is read late: a buffer must not change while it is held.
                for arrival in held:
                    check_order(arrival, expected)
                    transport.release(arrival)
                held.clear()
        assert expected == [self.count] * transport.actors

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        config = answer(transport, self.unroll_bytes)
        for number in range(self.count):
            buffer = transport.acquire()
            mark(buffer, transport.actor, number)
            transport.push(buffer)
            time.sleep(1e-3 * transport.actor)
        return config

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        assert seen == {actor: {"answer": 42, "text": "é"} for actor in range(actors)}


class SmallUnrolls(Order):
    """The same below the size at which a carrier would send without asking."""

    unroll_bytes = 256


class StalledLearner(Scene):
    """A learner that takes nothing makes actors wait, asleep and with bounded memory; afterwards nothing is lost."""

    unroll_bytes = 1024  # Small enough to pile up unseen in a carrier that buffers.

    def learner(self, transport: LearnerTransport) -> None:
        self.greet(transport)
        self.wait_for_reports(transport, "full")
        time.sleep(0.5)
        self.wakes_s = time.monotonic()
        transport.configure(self.unroll_bytes)
        expected = [0] * transport.actors
        while min(expected) < 30:
            arrival = receive_next(transport)
            check_order(arrival, expected)
            transport.release(arrival)

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes, self.in_flight)
        pushed_s: list[float] = []
        longest_s = longest_cpu_s = 0.0
        try:
            while True:
                began_s, began_cpu_s = time.monotonic(), time.thread_time()
                buffer = transport.acquire()
                if time.monotonic() - began_s > longest_s:
                    longest_s, longest_cpu_s = time.monotonic() - began_s, time.thread_time() - began_cpu_s
                mark(buffer, transport.actor, len(pushed_s))
                transport.push(buffer)
                pushed_s.append(time.monotonic())
                if len(pushed_s) == self.in_flight + 1:
                    transport.report({"full": True})
        except Stopped:
            return {"pushed_s": pushed_s, "longest_s": longest_s, "longest_cpu_s": longest_cpu_s}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        for result in seen.values():
            in_stall = sum(moment < self.wakes_s for moment in result["pushed_s"])
            assert in_stall == self.in_flight + 1, "so many buffers, all of them filled"
            if result["longest_s"] > 0.2:  # Otherwise this actor was late, and the learner awake by then.
                share = result["longest_cpu_s"] / result["longest_s"]
                assert share < 0.5, "waiting burns the core that the learner needs"


class Bounds(StalledLearner):
    """A learner that never releases holds ``max_held`` arrivals, takes ``prefetch`` ahead, and is told."""

    in_flight = 1
    options = TransportOptions(max_held=3, prefetch=2)

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        self.wait_for_reports(transport, "full")
        held = [receive_next(transport) for _ in range(3)]
        message = complaint(lambda: transport.receive(0.1))
        assert "release" in message and "3" in message
        pump_for(transport, 0.3)
        transport.release(held.pop())
        assert "release() takes an arrival" in complaint(lambda: transport.release(Arrival(0, np.zeros(8, np.uint8))))
        arrival = receive_next(transport)
        transport.release(arrival)
        assert "once" in complaint(lambda: transport.release(arrival))
        pump_for(transport, 0.1)
        self.stopped_s = time.monotonic()

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        pushed = sum(moment < self.stopped_s for result in seen.values() for moment in result["pushed_s"])
        most = 4 + self.options.prefetch + 2 * actors  # Received, taken ahead, and in_flight + 1 at each actor.
        assert pushed <= most


class NewestPolicy(Scene):
    """Policies published while an actor was busy are replaced, not queued; even those from before its welcome."""

    last = 200

    def learner(self, transport: LearnerTransport) -> None:
        for version in range(self.last + 1):
            transport.publish(version, str(version).encode() * 500)
        self.shake_hands(transport)
        self.wait_for_reports(transport, "done")

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes)
        versions: list[int] = []
        until = time.monotonic() + LIMIT_S
        while (not versions or versions[-1] != self.last) and time.monotonic() < until:
            update = transport.pull()
            if update is None:
                time.sleep(1e-3)
                continue
            assert update.payload == str(update.version).encode() * 500
            versions.append(update.version)
        transport.report({"done": True})
        return {"versions": versions}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        for result in seen.values():
            versions = result["versions"]
            assert versions[-1] == self.last
            assert versions == sorted(set(versions)), "an older policy after a newer one"
            assert len(versions) <= 2, "one may have been on its way; the rest must have been replaced"


class UnchangedPolicy(Scene):
    """The same payload again travels as a version notice only; another, or the first again, travels in full."""

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        for version, payload in enumerate((b"A" * 9000, b"A" * 9000, b"B" * 9000, b"A" * 9000, b"A" * 9000)):
            transport.publish(version, bytes(payload))
            self.wait_for_reports(transport, "got", version)

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes)
        seen = []
        for _ in range(5):
            update = transport.wait_policy(LIMIT_S)
            seen.append([update.version, None if update.payload is None else update.payload[:1].decode()])
            transport.report({"got": update.version})
        return {"seen": seen}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        for result in seen.values():
            assert result["seen"] == [[0, "A"], [1, None], [2, "B"], [3, "A"], [4, None]]


class NoticeAfterPayload(Scene):
    """A notice that overtakes an unpulled payload must not lose it."""

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        transport.publish(1, b"A" * 9000)
        pump_for(transport, 0.15)
        transport.publish(2, b"A" * 9000)
        self.wait_for_reports(transport, "done")
        assert "older" in complaint(lambda: transport.publish(1, b""))

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes)
        pump_for(transport, 0.5)
        update = transport.wait_policy(LIMIT_S)
        payload = update.payload or b""
        if update.version == 1:  # The learner was too slow for the scene: the notice comes alone.
            update = transport.wait_policy(LIMIT_S)
            assert update.payload is None
        transport.report({"done": True})
        return {"version": update.version, "payload": zlib.crc32(payload)}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        for result in seen.values():
            assert result == {"version": 2, "payload": zlib.crc32(b"A" * 9000)}


class StopInFlight(Scene):
    """Stopping with large transfers under way in both directions ends in order."""

    unroll_bytes = 1 << 20

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        for version in range(8):
            transport.publish(version, bytes([version]) * (1 << 20))
            transport.release(receive_next(transport))

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes)
        pushed = 0
        try:
            while True:
                transport.push(transport.acquire())
                pushed += 1
                transport.pull()
        except Stopped:
            assert transport.stopping
            return {"pushed": pushed}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        assert sum(result["pushed"] for result in seen.values()) >= 8


class LateStop(Scene):
    """An actor that does not listen makes ``stop`` return its index in time; a second ``stop`` gets it."""

    def learner(self, transport: LearnerTransport) -> None:
        with tempfile.NamedTemporaryFile() as deaf_while:
            self.shake_hands(transport, {"deaf_while": deaf_while.name})
            assert transport.stop(0.3) == frozenset(range(transport.actors))
            assert transport.alive() == frozenset(range(transport.actors))

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        deaf_while = Path(answer(transport, self.unroll_bytes)["deaf_while"])
        until = time.monotonic() + LIMIT_S
        while deaf_while.exists():
            time.sleep(0.01)
            assert time.monotonic() < until, "stop() did not return without its actors"
        while not transport.stopping and time.monotonic() < until:
            transport.pull()
            time.sleep(1e-3)
        return {"stopping": transport.stopping}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        assert seen == {actor: {"stopping": True} for actor in range(actors)}


class AbortAtWelcome(Scene):
    """An abort instead of a welcome reaches every actor with its reason."""

    of_ranks = True
    reason = "no such environment"

    def learner(self, transport: LearnerTransport) -> None:
        assert transport.abort(self.reason, LIMIT_S) == frozenset()

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        try:
            transport.welcome(LIMIT_S)
        except Aborted as error:
            return {"reason": str(error)}
        return {"reason": None}

    def verdict(self, seen: dict[int, dict[str, Any]], actors: int) -> None:
        assert seen == {actor: {"reason": self.reason} for actor in range(actors)}


class AbortWhileWaiting(AbortAtWelcome):
    """An abort wakes an actor that waits for a buffer or for a policy."""

    reason = "loss is not finite"

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        time.sleep(0.1)
        super().learner(transport)

    def actor(self, transport: ActorTransport) -> dict[str, Any]:
        answer(transport, self.unroll_bytes)
        try:
            if transport.actor % 2:
                transport.wait_policy(LIMIT_S)
            while True:
                transport.push(transport.acquire())
        except Aborted as error:
            return {"reason": str(error)}


class Large(Scene):
    """Eight megabytes, both ways, bit for bit."""

    unroll_bytes = 8 << 20

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        payload = np.random.default_rng(7).bytes(8 << 20)
        transport.publish(1, payload)
        for _ in range(2 * transport.actors):
            arrival = receive_next(transport)
            assert zlib.crc32(arrival.buffer) == zlib.crc32(payload)
            transport.release(arrival)

    def actor(self, transport: ActorTransport) -> None:
        answer(transport, self.unroll_bytes)
        update = transport.wait_policy(LIMIT_S)
        for _ in range(2):
            buffer = transport.acquire()
            buffer[:] = np.frombuffer(update.payload, np.uint8)
            transport.push(buffer)


class EarlyGoodbye(Scene):
    """An actor that leaves is no dead actor: what it pushed arrives, and the others go on."""

    of_ranks = True

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport, {"actors": transport.actors})
        leaver = transport.actors - 1
        transport.publish(1, b"a" * 9000)
        counts = [0] * transport.actors
        until = time.monotonic() + LIMIT_S
        while (leaver in transport.alive() or min(counts) < 2) and time.monotonic() < until:
            arrival = transport.receive(0.01)
            if arrival is not None:
                counts[arrival.actor] += 1
                transport.release(arrival)
        assert transport.alive() == frozenset(range(leaver))
        assert transport.dead() == frozenset()
        assert counts[leaver] == 2
        transport.publish(2, b"c" * 9000)
        for _ in range(5 * leaver):
            transport.release(receive_next(transport))

    def actor(self, transport: ActorTransport) -> None:
        actors = answer(transport, self.unroll_bytes)["actors"]
        leaves_after = 2 if transport.actor == actors - 1 else 1 << 30
        for _ in range(leaves_after):
            transport.push(transport.acquire())


class Misuse(Scene):
    """What cannot be sent is a named error at once, and does no harm."""

    def learner(self, transport: LearnerTransport) -> None:
        assert "configure" in complaint(transport.receive)
        assert "over the limit" in complaint(lambda: transport.welcome({"text": "x" * (1 << 20)}))
        assert "JSON" in complaint(lambda: transport.welcome({"object": object()}))
        assert "bytes" in complaint(lambda: transport.configure(0))
        self.shake_hands(transport)
        transport.release(receive_next(transport))

    def actor(self, transport: ActorTransport) -> None:
        answer(transport, self.unroll_bytes)
        assert "over the limit" in complaint(lambda: transport.report({"text": "x" * (1 << 20)}))
        transport.push(transport.acquire())


class Formats(Scene):
    """Ends of different versions find out at the welcome, and both are told both versions."""

    of_ranks = True

    def learner(self, transport: LearnerTransport) -> None:
        for _, message in self.shake_hands(transport):
            assert "unroll" in message["error"] and "3" in message["error"] and "4" in message["error"]

    def actor(self, transport: ActorTransport) -> None:
        transport.formats["unroll"] = 4  # type: ignore[attr-defined]
        message = complaint(lambda: transport.welcome(LIMIT_S))
        assert "unroll format" in message and "version 3" in message and "4" in message


class UnrollSizes(Scene):
    """An unroll of another size than the learner's is refused with both sizes, and the job still ends in order."""

    of_ranks = True

    def learner(self, transport: LearnerTransport) -> None:
        self.shake_hands(transport)
        message = complaint(lambda: receive_next(transport))
        assert f"{2 * self.unroll_bytes} bytes" in message and f"{self.unroll_bytes}" in message

    def actor(self, transport: ActorTransport) -> None:
        answer(transport, 2 * self.unroll_bytes)
        while True:
            transport.push(transport.acquire())


def complaint(call: Callable[[], object]) -> str:
    """The text of the TransportError that ``call`` raises."""
    try:
        call()
    except TransportError as error:
        return str(error)
    raise AssertionError("no TransportError was raised")


SCENES: dict[str, type[Scene]] = {
    name: scene
    for name, scene in list(globals().items())
    if isinstance(scene, type) and issubclass(scene, Scene) and scene is not Scene
}


def play_learner(scene: Scene, transport: LearnerTransport) -> str | None:
    """Plays the learner to the end and judges. Returns what went wrong."""
    failures: list[str] = []
    try:
        scene.learner(transport)
    except Exception:  # noqa: BLE001 - whatever it was, the verdict says so
        failures.append(traceback.format_exc())
    try:
        unfinished = transport.stop(LIMIT_S)
        assert not unfinished, f"actors {sorted(unfinished)} never said goodbye"
        assert not transport.alive()
        scene.mail(transport)
        failures += [message["failure"] for _, message in scene.endings if "failure" in message]
        seen = {actor: message["result"] for actor, message in scene.endings if message.get("result") is not None}
        if not failures:
            scene.verdict(seen, transport.actors)
    except Exception:  # noqa: BLE001 - whatever it was, the verdict says so
        failures.append(traceback.format_exc())
    transport.close()
    return "\n".join(failures) or None


def play_actor(scene: Scene, transport: ActorTransport) -> None:
    """Plays an actor to the end; its findings or its failure travel to the learner."""
    try:
        transport.report({"ending": True, "result": scene.actor(transport)})
    except Stopped:
        pass
    except Exception:  # noqa: BLE001 - whatever it was, the verdict says so
        transport.report({"ending": True, "failure": f"actor {transport.actor}: {traceback.format_exc()}"})
    if isinstance(transport, WaitingActor):
        transport.close(LIMIT_S)


class SceneProcesses(ActorProcesses):
    """Actors in processes, which get a scene's messages within the first one that their supervisor reads."""

    def welcome(self, message: dict[str, Any]) -> None:
        """See ``LearnerTransport.welcome``."""
        config = ActorConfig.of(TrainConfig.create(actors=self.actors), schemes=("fp32",))
        super().welcome(replace(config, env_args=message).to_json())

    def messages(self) -> Messages:
        """See ``LearnerTransport.messages``; supervisors add how late an actor is."""
        return [(actor, told) for actor, told in super().messages() if "late" not in told]


class SceneChild(ChildActor):
    """Their end."""

    def welcome(self, timeout_s: float) -> dict[str, Any]:
        """See ``ActorTransport.welcome``."""
        message = super().welcome(timeout_s)["env_args"]
        return message


def play_processes(name: str, actors: int) -> str | None:
    """A scene with actors in processes of this machine."""
    scene = SCENES[name]()
    command = [sys.executable, "-m", "tests.contracts.transport_scenarios", "--child", name]
    return play_learner(scene, SceneProcesses(actors, lambda number: command, scene.options))


def play_child(name: str) -> None:
    """A scene as an actor's process; it stays until it is told to stop."""
    channel, memory = begin_child(0)
    scene, transport = SCENES[name](), SceneChild(channel, ActorMemory(memory))
    with suppress(Stopped):
        play_actor(scene, transport)
        while True:
            transport.wait_policy(LIMIT_S)


def play_remote(names: Sequence[str]) -> None:
    """Scenes one after another on this rank; the learner prints a line of JSON for each."""
    endpoint = join_world(detect_launch())
    topology = Topology.of(endpoint.size, 1)
    for name in names:
        scene = SCENES[name]()
        transport = connect(endpoint, topology, scene.options, FORMATS)
        if topology.role(endpoint.rank) is Role.LEARNER:
            began_s = time.monotonic()
            failure = play_learner(scene, transport)
            line = {"scene": name, "failure": failure, "seconds": round(time.monotonic() - began_s, 3)}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        else:
            play_actor(scene, transport)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        play_child(sys.argv[2])
    else:
        play_remote(sys.argv[1:])
