"""Two ranks of which the learner sends a first policy of another format."""

from __future__ import annotations

import json
import struct
import sys
import time

from accel.config import TrainConfig
from accel.launch.roles import act
from accel.transport.join import join_world
from accel.transport.launcher import Topology, detect_launch
from accel.transport.learners import give_roles
from accel.transport.remote_learner import RemoteLearner
from tests.accel.live_policies import payload_of

CONFIG = TrainConfig.create(actors=1, envs_per_actor=4, unroll_length=8, network="mlp:8x1", compressor="fp32")


def tell(**finding: object) -> None:
    sys.stdout.write(json.dumps(finding) + "\n")
    sys.stdout.flush()


def wait_for_message(transport: RemoteLearner) -> dict[str, object]:
    """The actor's next message but for what its policy runs on and being late."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for _, message in transport.messages():
            if not message.keys() & {"runtime", "late"}:
                return message
        time.sleep(0.01)
    return {}


def main() -> int:
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
    given = give_roles(endpoint, Topology.of(2, 1))
    transport = RemoteLearner(endpoint, Topology.of(2, 1).groups[0], formats=FORMATS)
    assert given
    transport.welcome(ActorConfig.of(CONFIG).to_json())
    group = wait_for_actors(transport, 60, lambda: None)
    algorithm = make_algorithm(CONFIG, group.spec, torch.device("cpu"))
    agreement, layout = agree(CONFIG, algorithm)
    transport.welcome(agreement.to_json())
    transport.configure(layout.nbytes)
    good = payload_of(Publisher(CONFIG, algorithm.network))
    foreign = bytearray(good)
    (version,) = struct.unpack_from("<H", good, len(MAGIC))
    assert version == FORMAT_VERSION
    struct.pack_into("<H", foreign, len(MAGIC), version + 1)
    transport.publish(0, bytes(foreign))
    tell(**wait_for_message(transport))
    tell(deaf=sorted(transport.stop(20.0)), dead=sorted(transport.dead()))
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
