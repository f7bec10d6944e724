"""What an actor is told: its configuration first, and the agreement once the learner knows its environment."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from accel.config.models import EnvironmentConfig, TrainConfig
from accel.errors import TransportError
from accel.json_object import Json


class _Message(BaseModel):
    """A frozen message that travels as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> Json:
        """JSON-ready values; ``from_json`` restores an equal message."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``. Raises TransportError: it is another version's."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise TransportError(
                f"the learner's {cls.__name__} is of another version ({error.errors()[0]['msg']}): install the same "
                "version on every node"
            ) from None


class ActorConfig(_Message):
    """What every actor is told first; it makes its environments from it.

    Attributes:
        environment: what to step.
        actors: how many actors there are. envs_per_actor: B. unroll_length: T.
        unrolls_in_flight: how many unrolls may be on their way. pin_cores: whether to bind this process to a core.
        peer_timeout_s: how long to wait for the learner. seed: the run's. restart: earlier starts.
        schemes: every scheme that may act; unrolls name them by place. shares_levels: whether several act at once.
        env_steps: of the whole run, where it goes on.
        torch_options: the run's options where actors run torch eager, which builds the learner's network.
    """

    environment: EnvironmentConfig
    actors: int
    envs_per_actor: int
    unroll_length: int
    unrolls_in_flight: int
    pin_cores: bool
    peer_timeout_s: float
    seed: int
    restart: int = 0
    schemes: tuple[str, ...] = ("fp32",)
    shares_levels: bool = False
    env_steps: int = 0
    torch_options: dict[str, object] | None = None

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        schemes: tuple[str, ...] = ("fp32",),
        shares_levels: bool = False,
        restart: int = 0,
        env_steps: int = 0,
    ) -> Self:
        """What the actors of a run are told."""
        acting = config.acting
        return cls(
            environment=config.environment,
            actors=max(acting.actors, 1),
            envs_per_actor=acting.envs_per_actor,
            unroll_length=acting.unroll_length,
            unrolls_in_flight=acting.unrolls_in_flight,
            pin_cores=acting.pin_cores,
            peer_timeout_s=config.run.peer_timeout_s,
            seed=config.run.seed,
            restart=restart,
            schemes=schemes,
            shares_levels=shares_levels,
            env_steps=env_steps,
            torch_options=config.to_json() if acting.actor_runtime == "torch" else None,
        )


class Agreement(_Message):
    """What the learner answers to an actor's environment: how unrolls are laid out and how actions are chosen.

    Attributes:
        state_shapes: of one environment's recurrent state. output_size: P, the policy's outputs.
        explores: whether unrolls record ε. rule, rule_options: of a ``RuleSpec``.
        digest: of the unroll layout that the learner has made of it.
    """

    state_shapes: tuple[tuple[int, ...], ...]
    output_size: int
    explores: bool
    rule: str
    rule_options: dict[str, object]
    digest: str
