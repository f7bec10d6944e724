"""How a run stands: what the progress display is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class ProgressSnapshot:
    """How a run stands.

    Attributes:
        elapsed_s: seconds of training so far.
        env_steps: valid steps consumed by the learner. total_env_steps: how many it will be at most.
        env_steps_per_s: their rate since the last snapshot.
        episodes: finished training episodes. return_mean: mean return of the last ones, None before the first.
        return_target: the mean return at which the run stops, if it does.
        lag_min, lag_mean, lag_max: policy lag in versions since the last snapshot, None without an unroll.
        learner_shares: each phase's share of the learner's time since the last snapshot, in [0, 1], in order.
        actor_shares: the same over all actors.
        scheme: compression scheme of the actors' policy. policy_version: the newest.
        actors_alive: of ``actors``. dropped_unrolls: too old to learn from, so far.
    """

    elapsed_s: float
    env_steps: int
    total_env_steps: int
    env_steps_per_s: float
    episodes: int
    return_mean: float | None
    return_target: float | None
    lag_min: float | None
    lag_mean: float | None
    lag_max: float | None
    learner_shares: Mapping[str, float]
    actor_shares: Mapping[str, float]
    scheme: str
    policy_version: int
    actors_alive: int
    actors: int
    dropped_unrolls: int = 0

    @classmethod
    def from_record(
        cls, record: Mapping[str, object], *, total_env_steps: int, return_target: float | None, actors: int
    ) -> Self:
        """What a flat metrics record of the trainer says; shares are named ``learner_PHASE_share``.

        Raises: KeyError for a record without ``elapsed_s``, ``env_steps``, ``env_steps_per_s``, ``episodes``,
        ``updates``, ``scheme`` or ``actors_alive``.
        """
        return cls(
            elapsed_s=_number(record["elapsed_s"]),
            env_steps=int(_number(record["env_steps"])),
            total_env_steps=total_env_steps,
            env_steps_per_s=_number(record["env_steps_per_s"]),
            episodes=int(_number(record["episodes"])),
            return_mean=_optional(record.get("return_mean")),
            return_target=return_target,
            lag_min=_optional(record.get("lag_min")),
            lag_mean=_optional(record.get("lag_mean")),
            lag_max=_optional(record.get("lag_max")),
            learner_shares=_shares(record, "learner_"),
            actor_shares=_shares(record, "actor_"),
            scheme=str(record["scheme"]),
            policy_version=int(_number(record["updates"])),
            actors_alive=int(_number(record["actors_alive"])),
            actors=actors,
            dropped_unrolls=int(_number(record.get("dropped_unrolls", 0))),
        )

    @property
    def remaining_s(self) -> float | None:
        """Seconds until ``total_env_steps`` at the present rate; None while nothing moves."""
        left = max(self.total_env_steps - self.env_steps, 0)
        return left / self.env_steps_per_s if self.env_steps_per_s > 0 else None


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _optional(value: object) -> float | None:
    return None if value is None else _number(value)


def _shares(record: Mapping[str, object], prefix: str) -> dict[str, float]:
    suffix = "_share"
    return {
        name.removeprefix(prefix).removesuffix(suffix): _number(value)
        for name, value in record.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }
