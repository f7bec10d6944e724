"""What an actor is told: its configuration first, and the agreement once the learner knows its environment.

Plain dataclasses, not pydantic's models: actors are many, and the learner has checked every value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

from accel.errors import TransportError
from accel.json_object import Json

if TYPE_CHECKING:
    from accel.config.train import TrainConfig

EnvValue = str | int | float | bool


@dataclass(frozen=True)
class _Message:
    """A frozen message that travels as JSON."""

    def to_json(self) -> Json:
        """JSON-ready values; ``from_json`` restores an equal message."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``. Raises TransportError: it is another version's."""
        names = {item.name for item in fields(cls)}
        if set(value) != names:
            raise TransportError(
                f"the learner's {cls.__name__} has other fields than this actor's "
                f"({', '.join(sorted(set(value) ^ names))}): install the same version on every node"
            )
        return cls(**value)


@dataclass(frozen=True)
class ActorConfig(_Message):
    """What every actor is told first; it makes its environments from it. What has an option's name is that option.

    Attributes:
        tasks: the environments to learn, by turns of the actors' numbers.
        env_args, wrappers: as ``accel.envs.make_vector_env`` takes them.
        restart: earlier starts of the run. incarnation: earlier processes of this actor in this start.
        waits_for_policy: whether to wait, after each unroll, for a newer policy than made it.
        schemes: every scheme that may act; unrolls name them by place.
        env_steps: of the whole run, where it goes on.
        learner, learners: whose actor this is, and of how many; learners have actors in turns.
        central: whether another rank runs the policy for all actors.
        torch_options: the run's options where actors run torch eager, which builds the learner's network.
    """

    tasks: tuple[str, ...]
    env_args: Mapping[str, EnvValue]
    wrappers: tuple[str, ...]
    backend: Literal["gymnasium", "envpool", "pettingzoo", "device"]
    squash_actions: bool
    actors: int
    envs_per_actor: int
    unroll_length: int
    unrolls_in_flight: int
    pin_cores: bool
    peer_timeout_s: float
    seed: int
    actor_timeout_s: float = 20.0
    max_actor_restarts: int = 10
    restart: int = 0
    incarnation: int = 0
    env_workers: int = 0
    waits_for_policy: bool = False
    schemes: tuple[str, ...] = ("fp32",)
    env_steps: int = 0
    learner: int = 0
    learners: int = 1
    central: bool = False
    runtime: Literal["native", "onnxruntime"] = "native"
    torch_options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "wrappers", "schemes"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def task(self, actor: int) -> str:
        """The environment of the actor of this number among the run's."""
        return self.tasks[actor % len(self.tasks)]

    def number(self, actor: int) -> int:
        """Among the run's actors, of the learner's actor of this number."""
        return actor * self.learners + self.learner

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        schemes: tuple[str, ...] = ("fp32",),
        restart: int = 0,
        env_steps: int = 0,
        learner: int = 0,
    ) -> Self:
        """What the actors of a run are told."""
        options = config.options()
        same = {item.name: options[item.name] for item in fields(cls) if item.name in options}
        told: dict[str, Any] = same | {
            "tasks": config.environment.tasks,
            "env_args": config.environment.kwargs,
            "wrappers": config.environment.wrapper,
            "actors": max(config.acting.actors, 1),
            "waits_for_policy": config.schedule.waits_for_policy,
            "central": config.inference_ranks > 0,
            "runtime": config.acting.session_runtime,
            "torch_options": config.to_json() if config.acting.actor_runtime == "torch" else None,
        }
        return cls(**told, schemes=schemes, restart=restart, env_steps=env_steps, learner=learner)


@dataclass(frozen=True)
class PriorityOptions(_Message):
    """How actors compute the priorities of their own transitions; see ``accel.acting.priorities``.

    Attributes:
        n_step: n. discount: γ. duelling: outputs are advantages and the state's value.
        reward_scale, reward_clip, normalise_rewards: as the learner transforms rewards.
    """

    n_step: int
    discount: float
    duelling: bool
    reward_scale: float = 1.0
    reward_clip: float | None = None
    normalise_rewards: bool = False


@dataclass(frozen=True)
class ActorAgreement(_Message):
    """What the learner answers to an actor's environment: how unrolls are laid out and how actions are chosen.

    Attributes:
        state_shapes: of one environment's recurrent state. output_size: P, the policy's outputs.
        explores: whether unrolls record ε. rule, rule_options: of a ``RuleSpec``.
        digest: of the unroll layout that the learner has made of it.
        priorities: how they are computed, where unrolls carry priorities.
    """

    state_shapes: tuple[tuple[int, ...], ...]
    output_size: int
    explores: bool
    rule: str
    digest: str
    rule_options: Mapping[str, object] = field(default_factory=dict)
    priorities: PriorityOptions | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_shapes", tuple(tuple(shape) for shape in self.state_shapes))

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Inverse of ``to_json``. Raises TransportError: it is another version's."""
        priorities = value.get("priorities")
        if isinstance(priorities, dict):
            value = value | {"priorities": PriorityOptions.from_json(priorities)}
        return super().from_json(value)
