"""Episodes whose every step tells where it is from, cut into unrolls; and what a transition is, by definition.

Step k of a stream's episode e has an observation that no other step has, so that a sample says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from accel.envs.spaces import ActionSpec, EnvSpec
from accel.experience.unroll import Unroll, UnrollLayout

VECTOR = EnvSpec((2,), "float32", ActionSpec("categorical", (3,)))
SAME_STEP = EnvSpec((2,), "float32", ActionSpec("categorical", (3,)), "same_step")
FRAMES = EnvSpec((3, 2, 2), "uint8", ActionSpec("categorical", (3,)), frame_stack=3)
REPEATED = EnvSpec((3, 2, 2), "uint8", ActionSpec("categorical", (3,)), frame_stack=3, frame_fill="repeat")
STACKED_SAME_STEP = EnvSpec((3, 2, 2), "uint8", ActionSpec("categorical", (3,)), "same_step", 3)
LAYOUTS = {
    "vectors": VECTOR,
    "resets within a step": SAME_STEP,
    "stacked frames": FRAMES,
    "repeated frames": REPEATED,
    "stacked frames, resets within a step": STACKED_SAME_STEP,
}

Where = tuple[int, int, int]
"""Environment number, counted over all actors; episode; step in it."""


@dataclass
class Episode:
    """Observations o_0 … o_L as single frames, actions and rewards of L steps, and how it ends."""

    frames: list[Any]
    actions: list[int]
    rewards: list[float]
    ending: str

    @property
    def length(self) -> int:
        """L."""
        return len(self.rewards)


@dataclass
class Row:
    """One row of an unroll."""

    where: Where
    valid: bool
    first: bool


class Actor:
    """A simulated actor of B environments: makes its unrolls one after another, and remembers what it did.

    Args:
        spec: of its environments. rows: T. envs: B. number: which actor; its environments count from number · B.
    """

    def __init__(self, spec: EnvSpec, rows: int, envs: int, number: int = 0, seed: int = 0, longest: int = 9) -> None:
        self.spec, self.number, self.longest = spec, number, longest
        self.layout = UnrollLayout(spec, rows, envs)
        self.episodes: dict[tuple[int, int], Episode] = {}
        self._rng = np.random.default_rng([seed, number])
        self._rows = [self._stream(number * envs + i) for i in range(envs)]
        self._next = [next(stream) for stream in self._rows]
        self._sequence = 0

    def unroll(self) -> tuple[Unroll, list[list[Row]]]:
        """The next unroll in a buffer of its own, and its rows [B][T]; row T is the next one's row 0."""
        layout, spec = self.layout, self.spec
        made = layout.view(np.full(layout.nbytes, 0, np.uint8))
        rows: list[list[Row]] = []
        for env, stream in enumerate(self._rows):
            mine = []
            for t in range(layout.unroll_length):
                mine.append(self._next[env])
                self._write(made, t, env, mine[-1])
                self._next[env] = next(stream)
            self._write(made, layout.unroll_length, env, self._next[env])
            if spec.frame_stack > 1:
                older = self.observation(mine[0].where).reshape(spec.frame_stack, 1, 2, 2)[:-1]
                made["frames"][: spec.frame_stack - 1, env] = older
            rows.append(mine)
        made["header"][0] = self._sequence
        made["header"][2] = np.count_nonzero(made["valid"][:-1])
        self._sequence += 1
        return made, rows

    def observation(self, where: Where) -> Any:
        """What an environment shows at a step: its newest frames, those of before the episode filled."""
        env, number, step = where
        stack, episode = self.spec.frame_stack, self.episodes[env, number]
        if stack == 1:
            return episode.frames[step]
        empty = episode.frames[0] if self.spec.frame_fill == "repeat" else np.zeros_like(episode.frames[0])
        return np.concatenate([episode.frames[k] if k >= 0 else empty for k in range(step - stack + 1, step + 1)])

    def transition(self, where: Where, n: int, discount: float) -> tuple[Any, int, float, float, Any]:
        """Observation, action, return, discount and next observation of an n-step transition, by definition."""
        env, number, step = where
        episode = self.episodes[env, number]
        m = min(n, episode.length - step)
        total = sum(discount**k * episode.rewards[step + k] for k in range(m))
        ended = step + m == episode.length and episode.ending == "terminated"
        following = self.observation((env, number, step + m))
        return self.observation(where), episode.actions[step], total, 0.0 if ended else discount**m, following

    def _write(self, made: Unroll, t: int, env: int, row: Row) -> None:
        number, episode_number, step = row.where
        episode = self.episodes[number, episode_number]
        if self.spec.frame_stack > 1:
            made["frames"][t + self.spec.frame_stack - 1, env] = episode.frames[step]
        else:
            made["observations"][t, env] = episode.frames[step]
        made["valid"][t, env], made["first"][t, env] = row.valid, row.first
        if t == self.layout.unroll_length:
            return
        if not row.valid:
            made["actions"][t, env], made["rewards"][t, env] = 2, 1e6  # Junk.
            return
        made["actions"][t, env], made["rewards"][t, env] = episode.actions[step], episode.rewards[step]
        if step + 1 == episode.length:
            made[episode.ending][t, env] = True
            if self.spec.autoreset == "same_step":
                made["final_observations"][t, env] = self.observation((number, episode_number, step + 1))

    def _stream(self, env: int) -> Iterator[Row]:
        number = 0
        while True:
            episode = self.episodes[env, number] = self._episode(env, number)
            for step in range(episode.length):
                yield Row((env, number, step), valid=True, first=step == 0)
            if self.spec.autoreset == "next_step":
                yield Row((env, number, episode.length), valid=False, first=False)
            number += 1

    def _episode(self, env: int, number: int) -> Episode:
        length = int(self._rng.integers(1, self.longest + 1))
        frames: list[Any] = [
            self._rng.integers(1, 256, (1, 2, 2), np.uint8)
            if self.spec.frame_stack > 1
            else np.array([env + number / 1024, step], np.float32)
            for step in range(length + 1)
        ]
        ending = "terminated" if self._rng.random() < 0.5 else "truncated"
        actions, rewards = self._rng.integers(3, size=length).tolist(), self._rng.normal(size=length).tolist()
        return Episode(frames, actions, rewards, ending)
