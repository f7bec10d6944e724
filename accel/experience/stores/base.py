"""What every store is, its input and its samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from accel.experience.batch import Batch
from accel.experience.unroll import Unroll

Tensors = Mapping[str, Tensor]
Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, eq=False, slots=True)
class Experience:
    """An unroll that has arrived, with valid steps in it.

    Attributes:
        actor: who sent it. unroll: views into the transport's buffer.
        release: gives the buffer back; the store calls it exactly once, when it no longer reads the unroll.
    """

    actor: int
    unroll: Unroll
    release: Callable[[], None]


@dataclass(frozen=True)
class Transitions:
    """n-step transitions, [N] rows on the learner's device.

    Attributes:
        observations: [N, *obs]. actions: [N, *action].
        returns: [N] Σ_{k<m} γ^k r_{t+k} of the m ≤ n rewards before the bootstrap, transformed.
        discounts: [N] γ^m, zero where the episode terminated.
        next_observations: [N, *obs], the bootstrap's.
    """

    observations: Tensor
    actions: Tensor
    returns: Tensor
    discounts: Tensor
    next_observations: Tensor


@dataclass(frozen=True)
class Steps:
    """The n steps of each n-step transition one by one, for corrections; time-major, on the learner's device.

    Attributes:
        observations: [n+1, N, *obs]; the row behind an episode's last holds its final observation.
        actions: [n, N, *action]. rewards: [n, N] transformed. discounts: [n, N] γ, zero where the episode terminated.
        behaviour_log_prob: [n, N] nats.
        valid: [n, N] bool; False behind the end of the episode.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    behaviour_log_prob: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Sample:
    """What one update learns from: ``batch`` or ``transitions``, whichever the store keeps.

    Attributes:
        batch: whole unrolls, time-major. rewards: [T, B] of it after the run's transform.
        transitions: single steps. steps: what lies between their ends, where the algorithm corrects for it.
        valid_steps: rows that count.
        weights: [N] importance weights of prioritised samples; None: all alike.
        key: the store's own, to be given back with ``feedback``.
    """

    valid_steps: int
    batch: Batch | None = None
    rewards: Tensor | None = None
    transitions: Transitions | None = None
    steps: Steps | None = None
    weights: Tensor | None = None
    key: object = field(default=None, repr=False)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for saving."""
        if self.transitions is not None:
            between = {} if self.steps is None else {f"steps_{name}": v for name, v in vars(self.steps).items()}
            return {k: v for k, v in vars(self.transitions).items() if isinstance(v, torch.Tensor)} | between
        found = {} if self.batch is None else self.batch.tensors()
        return found if self.rewards is None else found | {"transformed_rewards": self.rewards}


class Store(ABC):
    """Keeps experience. What is inserted is released exactly once; what is sampled is given back once."""

    @abstractmethod
    def insert(self, experience: Experience) -> None:
        """Take in one unroll, in its actor's order."""

    @property
    def accepts(self) -> bool:
        """Whether another unroll may be inserted now; otherwise unrolls, and then actors, wait. Always, where what is
        new takes the oldest one's place."""
        return True

    @property
    @abstractmethod
    def available(self) -> int:
        """How many samples could be taken now without anything more being inserted; endless ones count as one."""

    @abstractmethod
    def sample(self) -> Sample | None:
        """The next sample; None while there is not enough."""

    @abstractmethod
    def feedback(self, sample: Sample, priorities: Tensor | None) -> None:
        """The update on a sample is done; ``priorities`` [N] where the algorithm gives some. Ends the sample."""


@dataclass(frozen=True)
class Ring:
    """A store's rows as they lie in memory, for saving.

    Attributes:
        arrays: [length, ...] each; row k, counted since the start, is at k modulo ``length``.
        length: rows that there is space for. end: rows there were since the start.
        unsettled: how many of the newest rows may still change.
    """

    arrays: Arrays
    length: int
    end: int
    unsettled: int = 0


class KeptStore(Store):
    """A store that a resumed run goes on with: what it keeps can be saved and restored."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What it takes when it is full."""

    @abstractmethod
    def rings(self) -> Mapping[str, Ring]:
        """Its rows; the arrays are its own."""

    @abstractmethod
    def state(self) -> tuple[dict[str, object], Arrays]:
        """Everything else: JSON values, and arrays."""

    @abstractmethod
    def restore(self, rings: Mapping[str, Ring], values: Mapping[str, object], arrays: Arrays) -> None:
        """Inverse of ``rings`` and ``state``; what arrives next does not follow what was there.

        Raises: KeyError, TypeError, ValueError: they are of something else; the store is then as it was.
        """


def generator_in(state: object) -> np.random.Generator:
    """One in a saved state. Raises KeyError, TypeError or ValueError: it is none."""
    generator = np.random.default_rng()
    generator.bit_generator.state = cast("Mapping[str, object]", state)
    return generator
