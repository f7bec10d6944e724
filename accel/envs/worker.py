"""A process that steps some of an actor's environments: python -P -m accel.envs.worker REQUEST FILES. No torch.

A worker makes its environments and says ``hello``; told ``reset`` or ``step``, it does so and says ``done``. Actions,
observations, rewards and flags lie in memory that both map (``SharedRows``). A worker ends when the other end of its
socket is closed.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from contextlib import suppress
from typing import cast

import numpy as np
import numpy.typing as npt

from accel.envs.base import VectorEnvironment
from accel.envs.spaces import EnvSpec
from accel.errors import MAX_TOLD, AccelError, message_of, traceback_of
from accel.json_object import Json
from accel.supervision.activity import PREPARING, WAITING, WORDS, Activity
from accel.supervision.channel import Channel, ChannelClosedError
from accel.supervision.child import begin_child
from accel.supervision.supervised import adopt_files

_ALIGNMENT = 64


class SharedActivities:
    """The workers' activities, at the start of the memory that they share with their actor."""

    def __init__(self, memory: int, workers: int) -> None:
        self.nbytes = 8 * WORDS * workers
        if os.fstat(memory).st_size < self.nbytes:
            os.ftruncate(memory, self.nbytes)
        words = memoryview(mmap.mmap(memory, self.nbytes)).cast("q")
        self.activities = [Activity(words[WORDS * k : WORDS * (k + 1)]) for k in range(workers)]


class SharedRows:
    """One row for each environment (or agent) of an actor, behind the activities.

    Attributes:
        actions: [B, *shape] for the next step. observations: [B, *obs]. rewards, terminated, truncated: [B].
        final_observations: [B, *obs] where environments reset within a step, else None.
    """

    def __init__(self, memory: int, workers: int, rows: int, spec: EnvSpec) -> None:
        observation, action = (np.dtype(spec.observation_dtype), spec.observation_shape), spec.action
        fields: list[tuple[str, npt.DTypeLike, tuple[int, ...]]] = [
            ("actions", action.dtype, action.shape),
            ("observations", *observation),
            ("rewards", np.float32, ()),
            ("terminated", np.bool_, ()),
            ("truncated", np.bool_, ()),
        ]
        if spec.autoreset == "same_step":
            fields.append(("final_observations", *observation))
        end, starts = _aligned(8 * WORDS * workers), []
        sizes = [int(np.prod((rows, *shape), dtype=np.int64)) * np.dtype(dtype).itemsize for _, dtype, shape in fields]
        for size in sizes:
            starts.append(end)
            end += _aligned(size)
        if os.fstat(memory).st_size < end:
            os.ftruncate(memory, end)
        everything = np.frombuffer(mmap.mmap(memory, end), np.uint8)
        arrays = {
            name: everything[start : start + size].view(dtype).reshape(rows, *shape)
            for (name, dtype, shape), start, size in zip(fields, starts, sizes, strict=True)
        }
        self.actions, self.observations = arrays["actions"], arrays["observations"]
        self.rewards, self.final_observations = arrays["rewards"], arrays.get("final_observations")
        self.terminated = cast(npt.NDArray[np.bool_], arrays["terminated"])
        self.truncated = cast(npt.NDArray[np.bool_], arrays["truncated"])


def main() -> int:
    """Step environments until the actor closes the socket."""
    begin_child(600)  # above the actor's
    connection, memory = adopt_files(sys.argv[2])
    channel = Channel(connection)
    try:
        _serve(channel, memory, json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - the actor reports it
        named = isinstance(error, AccelError)
        told = {"error": str(error)[:MAX_TOLD] if named else message_of(error), "kind": type(error).__name__}
        with suppress(ChannelClosedError):
            channel.send("error", told | {"traceback": "" if named else traceback_of(error)})
            channel.flush(wait=True)
        return 1
    return 0


def _serve(channel: Channel, memory: int, request: Json) -> None:
    from accel.envs.factory import make_vector_env

    number, workers = int(str(request["worker"])), int(str(request["workers"]))
    activity = SharedActivities(memory, workers).activities[number]
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
                        told = {"environment": failure.environment, "raised": failure.error}
                        channel.send("failed", told | {"traceback": failure.traceback})
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


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


if __name__ == "__main__":
    sys.exit(main())
