"""The learner's half of the handshake: what the actors answered, all alike. No torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from accel.envs.spaces import EnvSpec
from accel.errors import LaunchError, TransportError
from accel.json_object import Json
from accel.learning.actors import failure_text
from accel.runs.job import error_of_kind
from accel.transport.base import LearnerTransport
from accel.transport.learners import LearnerLink

POLL_S = 0.002

logger = logging.getLogger("accel")


Stop = Callable[[], str | None]
"""Polled between updates: why the run should stop, or None."""


@dataclass(frozen=True)
class LearnerPlace:
    """A learner's place in a job.

    Attributes:
        transport: its end. stop: see ``Stop``.
        cores: those this process runs on; they decide torch's threads where the configuration does not.
        allowed_cores: how many it might use before it was pinned, for ``machine.json``; None: as many as now.
        link: to the run's other learners; None: there are none.
    """

    transport: LearnerTransport
    stop: Stop
    cores: tuple[int, ...] = ()
    allowed_cores: int | None = None
    link: LearnerLink | None = None


@dataclass(frozen=True)
class ActorGroup:
    """What the actors answered, all alike.

    Attributes:
        spec: the environment's layout.
        cpu_features: what every actor's CPU offers.
        hosts: where actors run, by actor.
        processes: (host, number, start) of this learner's actors' ranks, where they say so.
    """

    spec: EnvSpec
    cpu_features: frozenset[str]
    hosts: tuple[str, ...]
    processes: tuple[tuple[str, int, int], ...] = ()


def wait_for_actors(transport: LearnerTransport, timeout_s: float, stop: Stop) -> ActorGroup:
    """Every actor's answer to the welcome.

    Raises:
        AccelError: an actor's own error, a silent or dead actor, actors that disagree, or a stop request meanwhile.
    """
    answers: dict[int, Json] = {}
    failed: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    while len(answers) < transport.actors:
        for actor, message in transport.messages():
            if "error" in message:
                raise error_of_kind(str(message.get("kind")), f"actor {actor}: {message['error']}")
            if "spec" in message:
                answers[actor] = message
            elif "down" in message:
                failed[actor] = f"; actor {actor} failed {message.get('failures', 1)} times: {message['down']}"
                logger.warning("%s", failure_text(actor, message))
        silent = sorted(set(range(transport.actors)) - set(answers))
        if silent and (dead := transport.dead() & set(silent)):
            raise TransportError(f"actors {_numbers(dead)} died before training began; see their messages above")
        if silent and time.monotonic() > deadline:
            why = "".join(failed[actor] for actor in silent if actor in failed) or (
                ": look at their nodes, or raise --peer-timeout-s where environments take longer to make"
            )
            raise TransportError(f"actors {_numbers(silent)} did not answer within {timeout_s:g} s{why}")
        if (reason := stop()) is not None:
            raise LaunchError(f"{reason} before training began")
        if silent:
            time.sleep(POLL_S)
    first = answers[0]
    for actor, answer in answers.items():
        if answer["spec"] != first["spec"]:
            theirs, ours = (EnvSpec.from_json(found["spec"]) for found in (answer, first))  # type: ignore[arg-type]
            raise TransportError(
                f"actor {actor} on {answer['host']} has another environment than actor 0 on {first['host']}: {theirs} "
                f"and {ours}. One policy acts in all of them: give --task environments of the same spaces, and install "
                "the same packages on every node"
            )
    features = [frozenset(str(f) for f in answer["cpu_features"]) for answer in answers.values()]  # type: ignore[attr-defined]
    return ActorGroup(
        spec=EnvSpec.from_json(first["spec"]),  # type: ignore[arg-type]
        cpu_features=frozenset.intersection(*features),
        hosts=tuple(str(answers[actor]["host"]) for actor in sorted(answers)),
        processes=tuple(
            (str(answer["host"]), int(str(answer.get("pid", 0))), int(str(answer.get("started", 0))))
            for _, answer in sorted(answers.items())
        ),
    )


def join_groups(own: ActorGroup, link: LearnerLink | None) -> ActorGroup:
    """What the actors of all learners answered. Raises TransportError: they disagree, or a learner is gone."""
    if link is None:
        return own
    told: Json = {
        "spec": own.spec.to_json(),
        "cpu_features": sorted(own.cpu_features),
        "hosts": list(own.hosts),
    }
    groups = link.gather(told)
    for learner, theirs in enumerate(groups):
        if theirs["spec"] != groups[0]["spec"]:
            raise TransportError(
                f"the actors of learner {learner} have another environment or version than those of learner 0: "
                "install the same packages on every node"
            )
    features = [frozenset(str(f) for f in theirs["cpu_features"]) for theirs in groups]  # type: ignore[attr-defined]
    hosts = [str(host) for theirs in groups for host in theirs["hosts"]]  # type: ignore[attr-defined]
    return ActorGroup(own.spec, frozenset.intersection(*features), tuple(hosts), own.processes)


def _numbers(actors: frozenset[int] | set[int] | list[int]) -> str:
    return ", ".join(str(actor) for actor in sorted(actors))
