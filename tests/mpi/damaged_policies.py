"""Two ranks of which the learner sends policies that are damaged or of another format: python FILE first|later."""

from __future__ import annotations

import json
import struct
import sys
import time
from typing import Any

from accel.config import TrainConfig
from accel.launch.roles import act
from accel.transport import Topology, TransportOptions, connect, detect_launch, join_world
from accel.transport.learners import give_roles
from accel.transport.remote_learner import RemoteLearner
from tests.accel.live_policies import payload_of

CONFIG = TrainConfig.create(actors=1, envs_per_actor=4, unroll_length=8, network="mlp:8x1", compressor="fp32")


def tell(**finding: object) -> None:
    sys.stdout.write(json.dumps(finding) + "\n")
    sys.stdout.flush()


def wait_for_message(transport: RemoteLearner, received: list[int], layout: Any) -> dict[str, object]:
    """The actor's next message but for what its policy runs on and being late, taking its unrolls meanwhile."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for _, message in transport.messages():
            if not message.keys() & {"runtime", "late"}:
                return message
        take(transport, received, layout, 0.01)
    return {}


def take(transport: RemoteLearner, received: list[int], layout: Any, timeout_s: float = 10.0) -> None:
    arrival = transport.receive(timeout_s)
    if arrival is not None:
        received.append(layout.view(arrival.buffer).oldest_version)
        transport.release(arrival)


def main(case: str) -> int:
    info = detect_launch()
    if info.rank != 0:
        return act(info)
    import torch

    from accel.algorithms.catalogue import agree, make_algorithm
    from accel.compressors.artifact import FORMAT_VERSION, MAGIC
    from accel.config.actor import ActorConfig
    from accel.launch.learners import FORMATS
    from accel.learning.handshake import wait_for_actors
    from accel.publishing.publisher import Publisher

    endpoint = join_world(info)
    given = give_roles(endpoint, Topology.single_learner(2))
    transport = connect(endpoint, Topology.single_learner(2), options=TransportOptions(in_flight=1), formats=FORMATS)
    assert given.sends
    transport.welcome(ActorConfig.of(CONFIG).to_json())
    group = wait_for_actors(transport, 60, lambda: None)
    algorithm = make_algorithm(CONFIG, group.spec, torch.device("cpu"))
    agreement, layout = agree(CONFIG, algorithm)
    transport.welcome(agreement.to_json())
    transport.configure(layout.nbytes)
    good = payload_of(Publisher(CONFIG, algorithm.network))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 4
    foreign = bytearray(good)
    (version,) = struct.unpack_from("<H", good, len(MAGIC))
    assert version == FORMAT_VERSION
    struct.pack_into("<H", foreign, len(MAGIC), version + 1)
    received: list[int] = []
    if case == "first":
        transport.publish(0, bytes(foreign))
        tell(**wait_for_message(transport, received, layout))
    else:
        transport.publish(0, good)
        while not received:  # an actor is sent the newest policy only
            take(transport, received, layout)
        for number, payload in ((1, bytes(flipped)), (2, bytes(foreign))):
            transport.publish(number, payload)
            tell(**wait_for_message(transport, received, layout))
        transport.publish(3, good)
        while received[-1:] != [3]:
            take(transport, received, layout)
        tell(versions=sorted(set(received)))
    tell(deaf=sorted(transport.stop(20.0)), dead=sorted(transport.dead()))
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
