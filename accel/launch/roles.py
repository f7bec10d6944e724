"""The role of a rank that is not the first, as the first one assigns it: actor, inference or learner."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from accel.acting.supervisor import ActorSupervisor
from accel.errors import EXIT_ABORTED, ConfigError, LaunchError
from accel.launch.actor import command as actor_command
from accel.launch.learners import FORMATS, USER_ERRORS, follow
from accel.system.signals import end_with_parent, ignore_stop_signals
from accel.system.untrusted import read_toml
from accel.transport.inference import Questions
from accel.transport.join import START_TIMEOUT_S, join_world
from accel.transport.launcher import LaunchInfo, Role, detect_launch
from accel.transport.learners import take_role
from accel.transport.pinning import pin_rank
from accel.transport.remote_actor import RemoteActor

if TYPE_CHECKING:
    from accel.acting.central import PolicyBatcher
    from accel.config.actor import ActorConfig


def act(
    info: LaunchInfo | None = None, timeout_s: float = START_TIMEOUT_S, supervisor: ActorSupervisor | None = None
) -> int:
    """The role of every rank but the first, as that one says; returns the exit status. Actors' errors reach the user
    through their learner.

    Args:
        info: what the launcher announced; None: read it from the environment.
        timeout_s: how long MPI may take to start.
        supervisor: its child is starting already.

    From then on this process ignores stop signals and, on Linux, ends when its launcher does.
    """
    ignore_stop_signals()
    end_with_parent(signal.SIGKILL)
    info = info or detect_launch()
    if info.rank == 0:
        raise LaunchError("rank 0 is the learner: call accel.train() on it")
    supervisor = supervisor or ActorSupervisor(actor_command(info))
    try:
        endpoint = join_world(info, timeout_s)
        topology, job = take_role(endpoint)
        role, group = topology.role(endpoint.rank), topology.group(endpoint.rank)
        if role is not Role.LEARNER:
            transport = RemoteActor(endpoint, group, formats=FORMATS)
            try:
                if role is Role.ACTOR:
                    return supervisor.serve(transport)
                supervisor.close()
                return _infer(info, transport, Questions(endpoint, group.actors))
            finally:
                transport.close()
    finally:
        supervisor.close()
    from accel.runs.job import Job

    return follow(Job.from_text(job), info, endpoint, topology)


def _infer(info: LaunchInfo, transport: RemoteActor, questions: Questions) -> int:
    from accel.acting.central import InferenceServer

    server = InferenceServer(transport, questions, lambda: pin_rank(info), _batcher)
    try:
        return server.serve()
    except USER_ERRORS as error:
        transport.report({"error": str(error)})
        return EXIT_ABORTED


def _batcher(config: ActorConfig) -> PolicyBatcher:
    from accel.acting.central import PolicyBatcher

    if config.torch_options is None:
        return PolicyBatcher(config.schemes, config.runtime)
    from accel.acting.torch_policy import TorchBatcher
    from accel.config import TrainConfig
    from accel.learning.device import choose_device, choose_precision, take_gpu

    run = TrainConfig.from_json(config.torch_options)
    take_gpu(config.learner)
    try:
        device = choose_device(run.learner.device)
        return TorchBatcher(run.replace(mixed_precision=choose_precision(run, device)), device)
    except ConfigError as error:
        raise ConfigError(f"inference on {os.uname().nodename}: {error}") from error


def start_timeout_s(arguments: Sequence[str]) -> float:
    """How long MPI may take to start, from a command line or its TOML file: all that an actor needs to know of them."""
    values = dict(pairwise(arguments))
    values |= dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    try:
        file = read_toml(Path(values["--config"])) if "--config" in values else {}
        return float(str(values.get("--peer-timeout-s", file.get("peer_timeout_s", START_TIMEOUT_S))))
    except (OSError, ValueError, TypeError):
        return START_TIMEOUT_S  # The learner reports what is wrong with it.
