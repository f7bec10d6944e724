"""A process that steps some of an actor's environments: python -P -m accel.envs.worker FILES. No torch.

A worker makes its environments and says ``hello``; told ``reset`` or ``step``, it does so and says ``done``. Actions,
observations, rewards and flags lie in memory that both map (``SharedRows``). A worker ends when the other end of its
socket is closed.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from accel.envs.base import Observations, VectorEnvironment
from accel.envs.spaces import EnvSpec
from accel.json_object import Json
from accel.supervision.activity import PREPARING, WAITING, WORDS, shared_activities
from accel.supervision.channel import Channel, ChannelClosedError
from accel.supervision.child import begin_child, error_report
from accel.system.memory import map_buffers
from accel.system.request import take_request


class SharedRows:
    """One row for each environment (or agent) of an actor, behind the activities.

    Attributes:
        actions: [B, *shape] for the next step. observations: [B, *obs]. rewards, terminated, truncated: [B].
        final_observations: [B, *obs] where environments reset within a step, else None.
    """

    def __init__(self, memory: int, workers: int, rows: int, spec: EnvSpec) -> None:
        observation = np.dtype(spec.observation_dtype), spec.observation_shape
        fields = [(spec.action.dtype, spec.action.shape), observation, (np.dtype(np.float32), ())]
        fields += [(np.dtype(np.bool_), ())] * 2
        if spec.autoreset == "same_step":
            fields.append(observation)
        sizes = [rows * math.prod(shape) * dtype.itemsize for dtype, shape in fields]
        buffers = map_buffers(memory, sizes, start=8 * WORDS * workers)
        arrays: list[Any] = [
            buffer.view(dtype).reshape(rows, *shape) for buffer, (dtype, shape) in zip(buffers, fields, strict=True)
        ]
        self.actions, self.observations, self.rewards, self.terminated, self.truncated, *final = arrays
        self.final_observations: Observations | None = final[0] if final else None


def main() -> int:
    """Step environments until the actor closes the socket."""
    channel, (memory,) = begin_child(600)  # above the actor's
    try:
        _serve(channel, memory, json.loads(take_request()))
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the actor reports it
        with suppress(ChannelClosedError):
            channel.send("error", error_report(error))
            channel.flush(wait=True)
        return 1
    return 0


def _serve(channel: Channel, memory: int, request: Json) -> None:
    from accel.envs.factory import make_vector_env

    number, workers = int(str(request["worker"])), int(str(request["workers"]))
    activity = shared_activities(memory, workers)[number]
    environment = make_vector_env(**request["environment"])  # type: ignore[arg-type]
    environment.activity = activity
    count, spec = environment.num_envs, environment.spec
    shared: SharedRows | None = None
    mine = slice(number * count, (number + 1) * count)
    activity.enter(WAITING)
    with suppress(ChannelClosedError):
        channel.send("hello", {"spec": spec.to_json(), "rows": count})
        while channel.wait(None):
            for kind, _ in channel.receive():
                if shared is None:
                    shared = SharedRows(memory, workers, workers * count, spec)
                if kind == "reset":
                    shared.observations[mine] = environment.reset()
                else:
                    _step(environment, shared, mine)
                    for failure in environment.failures:
                        channel.send("failed", failure.to_json())
                    environment.failures.clear()
                activity.enter(WAITING)
                channel.send("done")
    activity.enter(PREPARING)  # It may take longer than a step.
    environment.close()


def _step(environment: VectorEnvironment, shared: SharedRows, mine: slice) -> None:
    # A copy, because some environments keep a reference to their last action.
    actions = shared.actions[mine].copy()
    observations, rewards, terminated, truncated = environment.step(actions)
    shared.observations[mine], shared.rewards[mine] = observations, rewards
    shared.terminated[mine], shared.truncated[mine] = terminated, truncated
    if shared.final_observations is not None:
        shared.final_observations[mine] = environment.final_observations


if __name__ == "__main__":
    sys.exit(main())
