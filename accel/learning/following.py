"""A learner that follows: it trains with the others, while learner 0 publishes, records and keeps the run's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from accel.experience.unroll import Unroll, UnrollLayout


class Publishing(Protocol):
    """What the loop needs of a publisher. ``scheme``: of what is published."""

    scheme: str

    def payloads(self) -> Mapping[str, bytes]:
        """The levels in use; empty where nothing is published."""
        ...

    def observe(self, unroll: Unroll, layout: UnrollLayout) -> None:
        """Take in new observations."""
        ...

    def after_update(self) -> None:
        """Do what is due after an update."""
        ...

    def metrics(self) -> Mapping[str, float | int | str | None]:
        """For a record."""
        ...


class Sampling(Protocol):
    """What the loop needs of a mismatch sampler."""

    def observe(self, unroll: Unroll) -> None:
        """Take in an unroll."""
        ...

    def published(self, version: int) -> None:
        """The learner's policy has a new version."""
        ...

    def metrics(self) -> Mapping[str, float | int | str | None]:
        """For a record."""
        ...


class NoPublisher:
    """The identity of publishing: nothing."""

    scheme = ""

    def payloads(self) -> Mapping[str, bytes]:
        """None."""
        return {}

    def observe(self, unroll: Unroll, layout: UnrollLayout) -> None:
        """Nothing is calibrated."""

    def after_update(self) -> None:
        """Nothing is due."""

    def metrics(self) -> Mapping[str, float | int | str | None]:
        """None."""
        return {}


class NoSampler:
    """The identity of sampling: nothing is measured."""

    def observe(self, unroll: Unroll) -> None:
        """Nothing is measured."""

    def published(self, version: int) -> None:
        """Nothing is kept."""

    def metrics(self) -> Mapping[str, float | int | str | None]:
        """None."""
        return {}
