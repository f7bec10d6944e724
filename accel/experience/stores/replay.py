"""Uniform replay of n-step transitions, from one ring of rows per environment.

    R_t = Σ_{k<m} γ^k r_{t+k},   discount γ^m (zero where the episode terminated),   bootstrap from o_{t+m}

with m = n, or less where the episode ends sooner. In gymnasium's NEXT_STEP layout the row after an episode's last holds
its final observation, so that o_{t+m} is always the row m further on. Rewards are kept raw and transformed when they
are sampled. A stacked frame is kept once and stacked again at sampling.

Memory (``nbytes``): capacity × (one frame + action + reward + 4 bytes), an observation more where environments reset
within a step, and 4 bytes where the steps of a transition are wanted; taken at the first insertion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from accel.config import TrainConfig
from accel.config.experience import TransitionsConfig
from accel.experience.batch import Batcher
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Arrays, Experience, KeptStore, Ring, Sample, Steps, Transitions, generator_in
from accel.experience.transfer import Joined
from accel.experience.unroll import Unroll, UnrollLayout

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]

# Below one eligible row in so many, rows are listed instead of drawn until they are eligible.
_SPARSE = 8
_TRANSITION = [field.name for field in fields(Transitions)]
_STEP = [field.name for field in fields(Steps)]
_NOTHING_FOLLOWS = -2
"""The number of an unroll that no other one follows."""


@dataclass
class Stream:
    """The rows of one actor's environments, [L, B, ...].

    ``written`` counts rows since the start, ``eligible`` those that a sample may start from.
    """

    frames: Array
    finals: Array | None
    log_probs: npt.NDArray[np.float32] | None
    actions: Array
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    first: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    written: int = 0
    sequence: int = -1
    eligible: int = 0

    @property
    def length(self) -> int:
        """L, rows that the ring holds."""
        return len(self.valid)

    def places(self, rows: Indices, envs: Indices) -> Indices:
        """Of rows, counted since the start, and environments: where they are in arrays of [L · B, ...]."""
        places: Indices = rows % self.length * self.valid.shape[1] + envs
        return places


class Replay(KeptStore):
    """Keeps the newest ``capacity`` rows of all actors together; samples never run out.

    Args:
        config: a learner's part of the run's, whose store keeps transitions; each actor has its share of the capacity.
        layout: of the unrolls. batcher: of the device that samples go to.
        rewards: transforms rewards. generator: the only source of randomness.
    """

    def __init__(
        self,
        config: TrainConfig,
        layout: UnrollLayout,
        batcher: Batcher,
        rewards: RewardTransform,
        generator: np.random.Generator,
    ) -> None:
        options, algorithm = cast(TransitionsConfig, config.store), config.algorithm
        self._capacity, self._batch_size = options.replay_capacity, options.batch_size
        self._n, self._gives_steps = algorithm.bootstrap_steps, algorithm.wants_steps
        self._powers = (algorithm.discount ** np.arange(self._n + 1)).astype(np.float32)
        self._actors, self._spec = max(config.acting.actors, 1), layout.spec
        self._staging, self._rewards, self._generator = batcher.staging, rewards, generator
        self._least_rows = min(config.schedule.least_env_steps, self._capacity)
        self._rows = 0
        self._streams: dict[int, Stream] = {}

    def insert(self, experience: Experience) -> None:
        """Copy an unroll's rows and release it."""
        unroll = experience.unroll
        stream = self._streams.get(experience.actor)
        if stream is None:
            stream = self._streams[experience.actor] = self._make_stream(unroll)
        follows = unroll.sequence == stream.sequence + 1
        prefix = 0 if follows else self._spec.frame_stack - 1
        self._cut(stream, unroll, follows)
        oldest, newest = self._range(stream)
        then_oldest, then_newest = self._range(stream, prefix + len(unroll["rewards"]))
        stream.eligible -= _count_valid(stream, oldest, min(then_oldest, newest))
        self._write(stream, unroll, prefix)
        stream.eligible += _count_valid(stream, max(newest, then_oldest), then_newest)
        stream.sequence = unroll.sequence
        self._rows += unroll.valid_steps
        experience.release()

    @property
    def available(self) -> int:
        """One, as soon as there are transitions, and enough rows."""
        return int(self._rows >= self._least_rows and any(stream.eligible for stream in self._streams.values()))

    def sample(self) -> Sample | None:
        """``batch_size`` transitions, uniformly and with repetition."""
        streams = [stream for stream in self._streams.values() if stream.eligible]
        if not streams:
            return None
        sizes = np.array([stream.eligible for stream in streams], np.float64)
        counts = self._generator.multinomial(self._batch_size, sizes / sizes.sum())
        pairs = [(stream, int(count)) for stream, count in zip(streams, counts, strict=True) if count]
        return self._make_sample([(stream, *self._choose(stream, count)) for stream, count in pairs])

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Nothing: all transitions are alike."""

    def rings(self) -> dict[str, Ring]:
        """One for each actor; the bootstrap's row is the last. See ``KeptStore``."""
        return {
            str(actor): Ring(
                {name: value for name, value in vars(stream).items() if isinstance(value, np.ndarray)},
                stream.length,
                stream.written + 1,
                self._n + 1,
            )
            for actor, stream in self._streams.items()
        }

    def state(self) -> tuple[dict[str, object], Arrays]:
        """See ``KeptStore``."""
        eligible = {str(actor): stream.eligible for actor, stream in self._streams.items()}
        return {"rows": self._rows, "eligible": eligible, "generator": self._generator.bit_generator.state}, {}

    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """See ``KeptStore``."""
        eligible = cast(Mapping[str, int], values["eligible"])
        streams = {
            int(actor): Stream(
                **{"finals": None, "log_probs": None, **ring.arrays},  # type: ignore[arg-type]
                written=ring.end - 1,
                sequence=_NOTHING_FOLLOWS,
                eligible=eligible[actor],
            )
            for actor, ring in rings.items()
        }
        self._rows, self._generator = int(str(values["rows"])), generator_in(values["generator"])
        self._streams = streams

    @property
    def nbytes(self) -> int:
        """What a full replay takes."""
        spec = self._spec
        observation = math.prod(spec.observation_shape) * np.dtype(spec.observation_dtype).itemsize
        final = observation if spec.autoreset == "same_step" else 0
        action = math.prod(spec.action.shape) * spec.action.dtype.itemsize
        return self._capacity * (observation // spec.frame_stack + final + action + 8 + 4 * self._gives_steps)

    def _make_sample(self, chosen: list[tuple[Stream, Indices, Indices]], weights: Array | None = None) -> Sample:
        """Of rows, counted since the start, and environments of some streams; with importance weights [N]."""
        found = _joined("", _TRANSITION, [self._gather(*place) for place in chosen], 0)
        if self._gives_steps:
            found |= _joined("step_", _STEP, [self._gather_steps(*place) for place in chosen], 1)
        if weights is not None:
            found["weights"] = Joined([weights])
        sent = self._staging.send(found)
        return Sample(
            valid_steps=self._batch_size,
            transitions=Transitions(*(sent[name] for name in _TRANSITION)),
            steps=Steps(*(sent[f"step_{name}"] for name in _STEP)) if self._gives_steps else None,
            weights=sent.get("weights"),
        )

    def _range(self, stream: Stream, more: int = 0) -> tuple[int, int]:
        """First and last + 1, counted since the start, of rows whose n following ones and older frames are there; also
        once ``more`` rows are written."""
        written = stream.written + more
        newest = written - self._n
        if written < stream.length:
            return 0, max(newest, 0)
        # The bootstrap's row has taken the place of one more.
        oldest = written - stream.length + 1 + self._spec.frame_stack - 1
        return oldest, max(newest, oldest)

    def _make_stream(self, unroll: Unroll) -> Stream:
        envs = unroll["rewards"].shape[1]
        length = max(self._capacity // (self._actors * envs), len(unroll["rewards"]) + self._n + self._spec.frame_stack)
        kept: dict[str, Array | None] = {
            "frames": unroll["frames"] if "frames" in unroll else unroll["observations"],
            "finals": unroll["final_observations"] if "final_observations" in unroll else None,
            "log_probs": unroll["behaviour_log_prob"] if self._gives_steps else None,
            **{name: unroll[name] for name in ("actions", "rewards", "terminated", "truncated", "first", "valid")},
        }
        rings = {
            name: None if array is None else np.zeros((length, envs, *array.shape[2:]), array.dtype)
            for name, array in kept.items()
        }
        return Stream(**rings)  # type: ignore[arg-type]

    def _cut(self, stream: Stream, unroll: Unroll, follows: bool) -> None:
        """Take the newest n rows out where they would bootstrap across a gap, or from rows that were left out."""
        if not stream.written:
            return
        places = np.arange(stream.written - self._n, stream.written) % stream.length
        if not follows:
            stream.valid[places] = False
            return
        last = places[-1]
        going_on = stream.valid[last] & ~stream.terminated[last] & ~stream.truncated[last]
        stream.valid[places] &= ~going_on | unroll["valid"][0].view(np.bool_)

    def _write(self, stream: Stream, unroll: Unroll, prefix: int) -> None:
        """Rows T of an unroll and the bootstrap's, which the next unroll's row 0 takes the place of."""
        rows = len(unroll["rewards"])
        older = self._spec.frame_stack - 1
        source = unroll["frames"][older - prefix :] if "frames" in unroll else unroll["observations"]
        places = np.arange(stream.written, stream.written + prefix + rows + 1) % stream.length
        stream.frames[places] = source
        stream.valid[places] = stream.first[places] = False
        places = places[prefix:]
        stream.first[places] = unroll["first"]
        places = places[:-1]
        stream.actions[places] = unroll["actions"]
        stream.rewards[places] = unroll["rewards"]
        stream.terminated[places] = unroll["terminated"]
        stream.truncated[places] = unroll["truncated"]
        stream.valid[places] = unroll["valid"][:-1]
        if stream.finals is not None:
            stream.finals[places] = unroll["final_observations"]
        if stream.log_probs is not None:
            stream.log_probs[places] = unroll["behaviour_log_prob"]
        stream.written += prefix + rows

    def _gather(self, stream: Stream, rows: Indices, envs: Indices) -> tuple[Array, ...]:
        """The fields of ``Transitions`` that start at rows [N], counted since the start, of environments [N]."""
        places = stream.places(rows + np.arange(self._n)[:, None], envs)
        ends = stream.terminated.take(places)
        going_on = np.ones(places.shape, np.bool_)
        np.logical_and.accumulate(~(ends | stream.truncated.take(places))[:-1], out=going_on[1:])
        rewards = self._rewards.of(stream.rewards.take(places)) * self._powers[: self._n, None]
        returns = np.where(going_on, rewards, np.float32(0)).sum(0)
        steps = going_on.sum(0)
        terminated = (ends & going_on).any(0)
        discounts = np.where(terminated, np.float32(0), self._powers[steps])
        following = self._observations(stream, rows + steps, envs)
        if stream.finals is not None:
            last = stream.places(rows + steps - 1, envs)
            done = stream.terminated.take(last) | stream.truncated.take(last)
            following[done] = _at(stream.finals, last[done])
        observations = self._observations(stream, rows, envs)
        return observations, _at(stream.actions, places[0]), returns, discounts, following

    def _gather_steps(self, stream: Stream, rows: Indices, envs: Indices) -> tuple[Array, ...]:
        """The fields of ``Steps`` that start at the same rows."""
        recorded = cast(npt.NDArray[np.float32], stream.log_probs)
        observations, valid = [self._observations(stream, rows, envs)], [np.ones(len(rows), np.bool_)]
        places = stream.places(rows + np.arange(self._n)[:, None], envs)
        terminated = stream.terminated.take(places)
        over = terminated | stream.truncated.take(places)
        for k in range(self._n):
            following = self._observations(stream, rows + k + 1, envs)
            if stream.finals is not None:
                following[over[k]] = _at(stream.finals, places[k, over[k]])
            observations.append(following)
            valid.append(valid[-1] & ~over[k])
        return (
            np.stack(observations),
            _at(stream.actions, places),
            self._rewards.of(stream.rewards.take(places)),
            np.where(terminated, np.float32(0), self._powers[1]),
            recorded.take(places),
            np.stack(valid[:-1]),
        )

    def _choose(self, stream: Stream, count: int) -> tuple[Indices, Indices]:
        """Rows, counted since the start, and environments, of ``count`` eligible transitions."""
        oldest, newest = self._range(stream)
        envs = stream.valid.shape[1]
        if stream.eligible * _SPARSE < (newest - oldest) * envs:
            found = np.flatnonzero(stream.valid[np.arange(oldest, newest) % stream.length])
            return np.divmod(self._generator.choice(found, size=count) + oldest * envs, envs)
        parts: list[Indices] = []
        while count:
            drawn = self._generator.integers(oldest * envs, newest * envs, size=count)
            parts.append(drawn[stream.valid.take(drawn % stream.valid.size)])
            count -= len(parts[-1])
        return np.divmod(np.concatenate(parts), envs)

    def _observations(self, stream: Stream, rows: Indices, envs: Indices) -> Array:
        """[N, *obs] of rows counted since the start; frames of before the episode are filled as the layout says."""
        stack = self._spec.frame_stack
        newest = _at(stream.frames, stream.places(rows, envs))
        if stack == 1:
            return newest
        frames = [newest]
        alive = np.ones(len(rows), np.bool_)
        oldest_known = newest
        for k in range(1, stack):
            alive &= ~stream.first.take(stream.places(rows - k + 1, envs)) & (rows - k >= 0)
            frame = _at(stream.frames, stream.places(rows - k, envs))
            filler = oldest_known if self._spec.frame_fill == "repeat" else np.zeros_like(frame)
            frame = np.where(alive.reshape(-1, *[1] * (frame.ndim - 1)), frame, filler)
            oldest_known = np.where(alive.reshape(-1, *[1] * (frame.ndim - 1)), frame, oldest_known)
            frames.append(frame)
        return np.concatenate(frames[::-1], axis=1)


def _at(array: Array, places: Indices) -> Array:
    """Elements of an array [L, B, ...] at ``Stream.places``."""
    found: Array = array.reshape(-1, *array.shape[2:]).take(places, axis=0)
    return found


def _joined(prefix: str, names: Sequence[str], parts: list[tuple[Array, ...]], axis: int) -> dict[str, Joined]:
    """The streams' parts of every field."""
    return {
        f"{prefix}{name}": Joined(arrays, axis) for name, arrays in zip(names, zip(*parts, strict=True), strict=True)
    }


def _count_valid(stream: Stream, start: int, end: int) -> int:
    """Valid ones among rows from ``start`` to before ``end``, counted since the start."""
    return int(np.count_nonzero(stream.valid[np.arange(start, end) % stream.length]))
