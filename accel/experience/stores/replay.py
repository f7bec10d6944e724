"""Uniform replay of n-step transitions, from one ring of rows per environment.

    R_t = Σ_{k<m} γ^k r_{t+k},   discount γ^m (zero where the episode terminated),   bootstrap from o_{t+m}

with m = n, or less where the episode ends sooner. In gymnasium's NEXT_STEP layout the row after an episode's last holds
its final observation, so that o_{t+m} is always the row m further on. Rewards are kept raw and transformed when they
are sampled. A stacked frame is kept once and stacked again at sampling.

Memory: capacity × (one frame + action + reward + 3 bytes), taken at the first insertion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.envs.spaces import EnvSpec
from accel.errors import EnvError
from accel.experience.rewards import RewardTransform
from accel.experience.stores.base import Experience, Sample, Transitions
from accel.experience.unroll import Unroll

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]

_TRIES = 1000


@dataclass
class _Stream:
    """The rows of one actor's environments, [L, B, ...]; ``written`` counts rows since the start."""

    frames: Array
    finals: Array | None
    actions: Array
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    first: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    written: int = 0
    sequence: int = -1

    @property
    def length(self) -> int:
        """L, rows that the ring holds."""
        return len(self.valid)


class Replay:
    """Keeps the newest ``capacity`` rows of all actors together; samples never run out.

    Args:
        capacity: rows (transitions) of all environments together.
        batch_size: N, transitions of one sample.
        n_step: n. discount: γ.
        streams: how many actors there are; each has its share of the capacity.
        spec: the environment's layout. device: where samples go.
        rewards: transforms rewards. generator: the only source of randomness.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        n_step: int,
        discount: float,
        streams: int,
        spec: EnvSpec,
        device: torch.device,
        rewards: RewardTransform,
        generator: np.random.Generator,
    ) -> None:
        self._capacity = capacity
        self._batch_size = batch_size
        self._n = n_step
        self._powers = (discount ** np.arange(n_step + 1)).astype(np.float32)
        self._actors = max(streams, 1)
        self._spec = spec
        self._device = device
        self._rewards = rewards
        self._generator = generator
        self._streams: dict[int, _Stream] = {}

    def insert(self, experience: Experience) -> None:
        """Copy an unroll's rows and release it."""
        unroll = experience.unroll
        stream = self._streams.get(experience.actor)
        if stream is None:
            stream = self._streams[experience.actor] = self._make_stream(unroll)
        prefix = 0
        if unroll.sequence != stream.sequence + 1 and stream.written:
            # Rows that would bootstrap across the gap are of no use.
            stream.valid[np.arange(stream.written - self._n, stream.written) % stream.length] = False
            prefix = self._spec.frame_stack - 1
        self._write(stream, unroll, prefix)
        stream.sequence = unroll.sequence
        experience.release()

    @property
    def available(self) -> int:
        """One, as soon as there are transitions."""
        return int(any(self._usable(stream) > 0 for stream in self._streams.values()))

    def sample(self) -> Sample | None:
        """``batch_size`` transitions, uniformly and with repetition."""
        streams = [stream for stream in self._streams.values() if self._usable(stream) > 0]
        if not streams or not any(bool(stream.valid.any()) for stream in streams):
            return None
        sizes = np.array([self._usable(stream) * stream.valid.shape[1] for stream in streams], np.float64)
        counts = self._generator.multinomial(self._batch_size, sizes / sizes.sum())
        parts = [self._gather(stream, int(count)) for stream, count in zip(streams, counts, strict=True) if count]
        joined = [np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*parts, strict=True)]
        transitions = Transitions(*(torch.from_numpy(array).to(self._device) for array in joined))
        return Sample(valid_steps=self._batch_size, transitions=transitions)

    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """Nothing: all transitions are alike."""

    def _usable(self, stream: _Stream) -> int:
        """Rows whose n following ones are there, and the older frames of whose stack are."""
        return min(stream.written, stream.length) - self._n - (self._spec.frame_stack - 1)

    def _make_stream(self, unroll: Unroll) -> _Stream:
        envs = unroll["rewards"].shape[1]
        length = max(self._capacity // (self._actors * envs), len(unroll["rewards"]) + self._n + self._spec.frame_stack)
        source = unroll["frames"] if "frames" in unroll else unroll["observations"]
        finals = unroll["final_observations"] if "final_observations" in unroll else None

        def zeros(array: Array) -> Array:
            return np.zeros((length, envs, *array.shape[2:]), array.dtype)

        def flags() -> npt.NDArray[np.bool_]:
            return np.zeros((length, envs), np.bool_)

        return _Stream(
            zeros(source),
            None if finals is None else zeros(finals),
            zeros(unroll["actions"]),
            np.zeros((length, envs), np.float32),
            flags(),
            flags(),
            flags(),
            flags(),
        )

    def _write(self, stream: _Stream, unroll: Unroll, prefix: int) -> None:
        """Rows T of an unroll and the bootstrap's, which the next unroll's row 0 takes the place of."""
        rows = len(unroll["rewards"])
        older = self._spec.frame_stack - 1
        source = unroll["frames"][older - prefix :] if "frames" in unroll else unroll["observations"]
        places = np.arange(stream.written, stream.written + prefix + rows + 1) % stream.length
        stream.frames[places] = source
        stream.valid[places] = False
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
        stream.written += prefix + rows

    def _gather(self, stream: _Stream, count: int) -> tuple[Array, ...]:
        """The fields of ``Transitions`` for ``count`` random rows."""
        rows, envs = self._choose(stream, count)
        returns = np.zeros(count, np.float32)
        steps = np.zeros(count, np.int64)
        terminated = np.zeros(count, np.bool_)
        going_on = np.ones(count, np.bool_)
        for k in range(self._n):
            places = (rows + k) % stream.length
            rewards = self._rewards.of(stream.rewards[places, envs].copy())
            returns += np.where(going_on, rewards * self._powers[k], np.float32(0))
            steps += going_on
            terminated |= going_on & stream.terminated[places, envs]
            going_on &= ~(stream.terminated[places, envs] | stream.truncated[places, envs])
        discounts = np.where(terminated, np.float32(0), self._powers[steps])
        following = self._observations(stream, rows + steps, envs)
        if stream.finals is not None:
            last = (rows + steps - 1) % stream.length
            done = stream.terminated[last, envs] | stream.truncated[last, envs]
            following[done] = stream.finals[last[done], envs[done]]
        observations = self._observations(stream, rows, envs)
        return observations, stream.actions[rows % stream.length, envs], returns, discounts, following

    def _choose(self, stream: _Stream, count: int) -> tuple[Indices, Indices]:
        """Rows, counted since the start, and environments, of ``count`` valid transitions."""
        newest = stream.written - self._n
        oldest = max(stream.written - stream.length + 1, 0) + self._spec.frame_stack - 1
        if oldest == self._spec.frame_stack - 1 and stream.written <= stream.length:
            oldest = 0
        found: list[tuple[Indices, Indices]] = []
        missing = count
        for _ in range(_TRIES):
            rows = self._generator.integers(oldest, newest, size=missing + 8)
            envs = self._generator.integers(stream.valid.shape[1], size=missing + 8)
            good = np.flatnonzero(stream.valid[rows % stream.length, envs])[:missing]
            found.append((rows[good], envs[good]))
            missing -= len(good)
            if not missing:
                return np.concatenate([r for r, _ in found]), np.concatenate([e for _, e in found])
        raise EnvError(
            "hardly a row of the replay is a valid transition: environments end after single steps, or their numbers "
            "are not finite (see the messages above)"
        )

    def _observations(self, stream: _Stream, rows: Indices, envs: Indices) -> Array:
        """[N, *obs] of rows counted since the start; frames of before the episode are filled as the layout says."""
        stack = self._spec.frame_stack
        newest: Array = stream.frames[rows % stream.length, envs]
        if stack == 1:
            return newest
        frames = [newest]
        alive = np.ones(len(rows), np.bool_)
        oldest_known = newest
        for k in range(1, stack):
            alive &= ~stream.first[(rows - k + 1) % stream.length, envs] & (rows - k >= 0)
            frame = stream.frames[(rows - k) % stream.length, envs]
            filler = oldest_known if self._spec.frame_fill == "repeat" else np.zeros_like(frame)
            frame = np.where(alive.reshape(-1, *[1] * (frame.ndim - 1)), frame, filler)
            oldest_known = np.where(alive.reshape(-1, *[1] * (frame.ndim - 1)), frame, oldest_known)
            frames.append(frame)
        return np.concatenate(frames[::-1], axis=1)
