"""The options of each algorithm, and the store and schedule that it takes unless others are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from accel.config.base import Clip, Count, EnvValue, Options, by_name, parse_pair


class OptimiserConfig(Options):
    """The optimiser of every algorithm."""

    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimiser")
    learning_rate: float = Field(1e-3, gt=0, description="initial learning rate")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear decays to zero at total-env-steps"
    )
    optimizer_epsilon: float = Field(1e-5, gt=0, description="ε in the optimiser's denominator")
    max_gradient_norm: Clip = Field(0.5, description="global gradient-norm clip; none to leave gradients")


class Trace(NamedTuple):
    """λ, ρ̄ and c̄ of a correction's trace, by which retention and clipped shares are measured."""

    lambda_: float = 0.0
    clip_rho: float | None = 1.0
    clip_c: float | None = 1.0


class AlgorithmConfig(Options):
    """Options of every algorithm.

    Attributes:
        system: option defaults that go with the algorithm, its store and schedule among them.
        stores: the stores that it can learn from; empty for any.
        many_learners: whether several learners can share its updates.
        asynchronous_gradients: whether they do so without waiting for each other, one's gradients after another's.
        device_system: option defaults that go with environments on the learner's device; empty where it has none.
    """

    system: ClassVar[Mapping[str, object]] = {}
    device_system: ClassVar[Mapping[str, object]] = {}
    stores: ClassVar[tuple[str, ...]] = ()
    many_learners: ClassVar[bool] = False
    asynchronous_gradients: ClassVar[bool] = False

    discount: float = Field(0.99, ge=0, le=1, description="γ, per environment step")

    @property
    def gradient_lag_limit(self) -> int | None:
        """Updates that another learner's gradient may have missed and still be applied; None: any number."""
        return None

    @property
    def trace(self) -> Trace:
        """Of the correction; one step where there is none."""
        return Trace()

    @property
    def bootstrap_steps(self) -> int:
        """Rewards that a transition sums before its bootstrap."""
        return 1

    @property
    def wants_steps(self) -> bool:
        """Whether a replay gives the steps of every n-step transition too."""
        return False

    @property
    def optimiser_steps(self) -> int:
        """Steps of the optimiser in one update."""
        return 1


NSteps = Annotated[int, Field(ge=1, le=64, description="n, rewards summed before the bootstrap")]


class NStepConfig(AlgorithmConfig):
    """Options of algorithms whose targets sum rewards before they bootstrap."""

    n_step: NSteps

    @property
    def bootstrap_steps(self) -> int:
        """n."""
        return self.n_step


class ActorCriticConfig(AlgorithmConfig):
    """Options of the actor-critics.

    Rewards are divided by the deviation of the return: the gradient of a critic of returns in the hundreds leaves a
    policy that shares its torso and the gradient's norm nothing to learn with (results/evidence/reward-scale).
    """

    system: ClassVar[Mapping[str, object]] = {"store": "fifo", "schedule": "asynchronous", "normalise_rewards": True}
    device_system: ClassVar[Mapping[str, object]] = {"actors": 0, "envs_per_actor": 4096, "unroll_length": 16}
    stores: ClassVar[tuple[str, ...]] = ("fifo",)
    many_learners: ClassVar[bool] = True

    lambda_: float = Field(1.0, ge=0, le=1, description="λ of the trace")
    clip_rho: Clip = Field(1.0, description="ρ̄, clip on the importance weight of V-trace's temporal difference")
    clip_c: Clip = Field(1.0, description="c̄, clip on the trace's importance weight; at most clip-rho")
    clip_pg_rho: Clip = Field(1.0, description="clip on the policy gradient's importance weight")
    entropy_cost: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    value_cost: float = Field(0.5, ge=0, description="weight of the critic's squared error (halved)")
    normalise_advantages: bool = Field(True, description="zero mean and unit deviation over a batch's valid steps")

    @property
    def trace(self) -> Trace:
        """Of the correction."""
        return Trace(self.lambda_, self.clip_rho, self.clip_c)

    @model_validator(mode="after")
    def _clips_are_ordered(self) -> Self:
        clip_c = math.inf if self.clip_c is None else self.clip_c
        if self.clip_rho is not None and clip_c > self.clip_rho:
            raise ValueError(
                f"clip_c ({self.clip_c}) must not exceed clip_rho ({self.clip_rho}); lower clip_c or raise clip_rho"
            )
        return self


class ImpalaConfig(ActorCriticConfig):
    """IMPALA: policy gradient and critic on corrected targets, each batch once."""

    algorithm: Literal["impala"] = "impala"
    corrector: Literal["vtrace", "sequence-rejection", "retrace", "none"] = Field(
        "vtrace",
        description="off-policy correction; sequence-rejection: V-trace, and no policy gradient from unrolls whose "
        "product of ratios is outside [1/2, 2]; retrace takes a critic of action values",
    )


class SeedConfig(ImpalaConfig):
    """SEED RL: IMPALA whose actors only step environments; one process runs the newest policy for all of them."""

    system: ClassVar[Mapping[str, object]] = {**ImpalaConfig.system, "inference": "central"}

    algorithm: Literal["seed"] = "seed"  # type: ignore[assignment]


class Ga3cConfig(ImpalaConfig):
    """GA3C: central inference as in SEED RL, and no correction for the time between acting and learning."""

    system: ClassVar[Mapping[str, object]] = {**ImpalaConfig.system, "inference": "central"}

    algorithm: Literal["ga3c"] = "ga3c"  # type: ignore[assignment]
    corrector: Literal["vtrace", "retrace", "none"] = Field(
        "none", description="off-policy correction; none: every step counts as on-policy"
    )


class A2cConfig(ActorCriticConfig):
    """A2C: policy gradient and critic on n-step targets; one unroll of every actor, all with the newest policy."""

    system: ClassVar[Mapping[str, object]] = {**ActorCriticConfig.system, "schedule": "synchronous"}

    algorithm: Literal["a2c"] = "a2c"
    corrector: Literal["vtrace", "retrace", "none"] = Field(
        "none", description="correction for the compression of the policy that acted; none: no correction"
    )


class A3cConfig(ActorCriticConfig):
    """A3C: policy gradient and critic on n-step targets; learners apply their gradients as they come."""

    asynchronous_gradients: ClassVar[bool] = True

    algorithm: Literal["a3c"] = "a3c"
    corrector: Literal["vtrace", "retrace", "none"] = Field(
        "none", description="off-policy correction; none: every step counts as on-policy"
    )


class SurrogateConfig(ActorCriticConfig):
    """PPO's clipped surrogate, whatever the schedule: batches of 2048 steps with eight environments."""

    system: ClassVar[Mapping[str, object]] = {**ActorCriticConfig.system, "unroll_length": 256, "learning_rate": 5e-4}
    device_system: ClassVar[Mapping[str, object]] = {
        **ActorCriticConfig.device_system,
        "passes": 2,
        "minibatches": 8,
        "learning_rate": 1e-3,
    }

    corrector: Literal["vtrace", "none"] = Field("vtrace", description="off-policy correction")
    lambda_: float = Field(0.95, ge=0, le=1, description="λ of the trace")
    entropy_cost: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    passes: Count = Field(8, description="passes over each batch")
    minibatches: Count = Field(
        8, description="minibatches per pass; with lstm or gru they split environments, not time"
    )
    clip_ratio: float = Field(0.2, gt=0, lt=1, description="ε of the clipped surrogate")
    target_kl: Clip = Field(
        None, description="stop a batch's passes when the mean KL from the batch's policy exceeds this"
    )

    @property
    def optimiser_steps(self) -> int:
        """Passes times minibatches."""
        return self.passes * self.minibatches


class PpoConfig(SurrogateConfig):
    """PPO's clipped surrogate on corrected advantages: several passes over each batch."""

    algorithm: Literal["ppo"] = "ppo"


class DppoConfig(SurrogateConfig):
    """DPPO: PPO's clipped surrogate on one unroll of every actor, all with the newest policy.

    Without lag it can take Stable-Baselines3's 320 optimiser steps a batch, which an older policy's experience spoils
    (results/evidence/hopper-options).
    """

    system: ClassVar[Mapping[str, object]] = {
        **SurrogateConfig.system,
        "schedule": "synchronous",
        "passes": 10,
        "minibatches": 32,
        "learning_rate": 3e-4,
    }

    algorithm: Literal["dppo"] = "dppo"


class PtrPpoConfig(SurrogateConfig):
    """PTR-PPO: PPO on new batches and on old trajectories, drawn by priority."""

    system: ClassVar[Mapping[str, object]] = {**SurrogateConfig.system, "store": "trajectories", "passes": 4}
    device_system: ClassVar[Mapping[str, object]] = {}
    stores: ClassVar[tuple[str, ...]] = ("trajectories",)
    many_learners: ClassVar[bool] = False

    algorithm: Literal["ptr-ppo"] = "ptr-ppo"
    trajectory_priority: Literal["max", "mean", "return"] = Field(
        "max", description="of a trajectory: the greatest or the mean size of its steps' advantages, or its return"
    )


class ImpactConfig(ActorCriticConfig):
    """IMPACT: a clipped surrogate around a slowly refreshed target network, batches used several times."""

    system: ClassVar[Mapping[str, object]] = {**ActorCriticConfig.system, "store": "circular"}
    stores: ClassVar[tuple[str, ...]] = ("fifo", "circular")

    algorithm: Literal["impact"] = "impact"
    clip_ratio: float = Field(0.3, gt=0, lt=1, description="ε of the clipped surrogate")
    clip_target_worker: float = Field(
        2.0, ge=1, description="ρ = 1/β, clip on the ratio of the worker's to the target's probability"
    )
    target_interval_updates: Count = Field(
        8, description="updates between refreshes of the target network; about buffer-batches times batch-uses"
    )


Q_LEARNING_SYSTEM: Mapping[str, object] = {
    "schedule": "samples-per-insert",
    "normalise_rewards": True,
    "network": "auto:128x2",
    "activation": "relu",
    "learning_rate": 1e-3,
    "max_gradient_norm": 10.0,
    "unroll_length": 8,
}


class QLearningConfig(NStepConfig):
    """What Q-learning is, however its actors explore and its experience is kept."""

    n_step: NSteps = 3
    double: bool = Field(True, description="the online network chooses the bootstrap's action, the target rates it")
    duelling: bool = Field(True, description="Q = V + A − mean A, from two streams on one torso")
    target_interval_updates: Count = Field(100, description="updates between copies to the target network")


_NEEDS_STEPS = {"retrace": True, "none": False}


class RetraceableConfig(AlgorithmConfig):
    """Options of algorithms whose n-step targets from replay can be corrected for the policy that acted."""

    corrector: Literal["retrace", "none"] = Field(
        "none",
        description="correction of n-step targets: retrace cuts a return where the policy would hardly have acted so; "
        "its n forward passes for each transition take time",
    )
    lambda_: float = Field(1.0, ge=0, le=1, description="λ of Retrace's trace")

    @property
    def trace(self) -> Trace:
        """Retrace's, or one step."""
        return Trace(self.lambda_) if self.wants_steps else Trace()

    @property
    def wants_steps(self) -> bool:
        """With a correction."""
        return _NEEDS_STEPS[self.corrector]


class DqnConfig(RetraceableConfig, QLearningConfig):
    """DQN: double, duelling, n-step Q-learning from replay, with ε-greedy actors."""

    system: ClassVar[Mapping[str, object]] = {**Q_LEARNING_SYSTEM, "store": "replay"}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["dqn"] = "dqn"
    initial_epsilon: float = Field(1.0, ge=0, le=1, description="ε of the first steps")
    final_epsilon: float = Field(0.02, ge=0, le=1, description="ε from exploration-env-steps on")
    exploration_env_steps: Count = Field(
        10_000, description="environment steps of the whole run over which ε falls linearly"
    )


class GorilaConfig(DqnConfig):
    """GORILA: DQN with learners that have a replay and actors each, and apply their gradients as they come."""

    many_learners: ClassVar[bool] = True
    asynchronous_gradients: ClassVar[bool] = True

    algorithm: Literal["gorila"] = "gorila"  # type: ignore[assignment]
    max_gradient_lag: Count = Field(
        64, description="drop another learner's gradient that missed more updates of the parameters than this"
    )

    @property
    def gradient_lag_limit(self) -> int | None:
        """An option."""
        return self.max_gradient_lag


class LadderConfig(QLearningConfig):
    """Q-learning whose environments explore each with an ε of its own."""

    base_epsilon: float = Field(0.4, gt=0, le=1, description="ε of the environment that explores most")
    epsilon_exponent: float = Field(
        7.0, ge=0, description="α: environment i of M has ε^(1 + α i / (M − 1)), those of all actors counted"
    )


class ApexConfig(RetraceableConfig, LadderConfig):
    """Ape-X: DQN from prioritised replay, an ε for each environment, priorities computed by the actors."""

    # Samples by priority have the larger errors: a quarter of the rate, as in Schaul et al. 2016, arXiv:1511.05952.
    system: ClassVar[Mapping[str, object]] = {**Q_LEARNING_SYSTEM, "store": "prioritised", "learning_rate": 2.5e-4}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["apex"] = "apex"


class R2d2Config(LadderConfig):
    """R2D2: recurrent Q-learning from sequences with stored state and burn-in, otherwise as Ape-X."""

    system: ClassVar[Mapping[str, object]] = {
        **Q_LEARNING_SYSTEM,
        "store": "sequences",
        "network": "auto:128x1+lstm:128",
        "unroll_length": 20,
        "batch_size": 32,
        "samples_per_insert": 8.0,
    }
    stores: ClassVar[tuple[str, ...]] = ("sequences",)

    algorithm: Literal["r2d2"] = "r2d2"


CONTINUOUS_SYSTEM: Mapping[str, object] = {
    "store": "replay",
    "schedule": "samples-per-insert",
    "replay_capacity": 1_000_000,
    "batch_size": 256,
    "samples_per_insert": 256.0,
    "squash_actions": True,
    "network": "auto:256x2",
    "activation": "relu",
    "max_gradient_norm": None,
    "unroll_length": 8,
}


class D4pgConfig(NStepConfig):
    """D4PG: a deterministic policy and a distributional critic, n-step, from replay."""

    system: ClassVar[Mapping[str, object]] = {**CONTINUOUS_SYSTEM, "normalise_rewards": True}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["d4pg"] = "d4pg"
    n_step: NSteps = 5
    noise: float = Field(0.3, gt=0, le=2, description="σ of the actors' Gaussian noise, in halves of the action range")
    atoms: int = Field(51, ge=2, le=1001, description="values that the critic's distribution is over")
    least_value: float = Field(-20.0, description="the least atom, in units of transformed rewards")
    greatest_value: float = Field(
        20.0, description="the greatest atom; edge_probability says how much lies at the least and the greatest"
    )
    target_interval_updates: Count = Field(100, description="updates between copies to the target networks")

    @model_validator(mode="after")
    def _atoms_are_ordered(self) -> Self:
        if self.least_value >= self.greatest_value:
            raise ValueError(f"least_value ({self.least_value}) must be below greatest_value ({self.greatest_value})")
        return self


class SacConfig(RetraceableConfig, NStepConfig):
    """SAC: twin critics, a squashed Gaussian policy, a learnt temperature, from replay."""

    system: ClassVar[Mapping[str, object]] = {**CONTINUOUS_SYSTEM, "learning_rate": 5e-4}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["sac"] = "sac"
    n_step: NSteps = 1
    initial_temperature: float = Field(1.0, gt=0, description="α before anything is learned")
    target_entropy: float = Field(
        1.0, description="entropy that α is learned towards, as −target_entropy nats for each of the k actions"
    )
    target_rate: float = Field(0.005, gt=0, le=1, description="τ, Polyak averaging coefficient of the target critics")


class Td3Config(NStepConfig):
    """TD3: a deterministic policy, twin critics, smoothed target actions, a delayed policy, from replay."""

    system: ClassVar[Mapping[str, object]] = CONTINUOUS_SYSTEM
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["td3"] = "td3"
    n_step: NSteps = 1
    noise: float = Field(0.1, gt=0, le=2, description="σ of the actors' Gaussian noise, in halves of the action range")
    target_noise: float = Field(0.2, ge=0, le=2, description="deviation of the noise on the targets' actions")
    target_noise_clip: float = Field(0.5, ge=0, le=2, description="that noise is clipped to [-c, c]")
    policy_interval_updates: Count = Field(2, description="d, updates of the critics for one of policy and targets")
    target_rate: float = Field(0.005, gt=0, le=1, description="τ, Polyak averaging coefficient of the targets")


class CustomAlgorithmConfig(AlgorithmConfig):
    """An algorithm of the user's own, as module:factory."""

    system: ClassVar[Mapping[str, object]] = {"store": "fifo", "schedule": "asynchronous"}

    algorithm: str = Field(pattern=r"^[\w.]+:\w+$")
    algorithm_arg: tuple[str, ...] = Field((), description="k=v for the factory of module:factory; may be repeated")

    @model_validator(mode="after")
    def _arguments_parse(self) -> Self:
        self.kwargs  # noqa: B018  (parses, so that a bad k=v is refused here)
        return self

    @property
    def kwargs(self) -> dict[str, EnvValue]:
        """The factory's options, numbers and booleans recognised."""
        return dict(parse_pair(pair, "algorithm_arg") for pair in self.algorithm_arg)


AnyAlgorithm = (
    ImpalaConfig
    | SeedConfig
    | Ga3cConfig
    | A2cConfig
    | A3cConfig
    | PpoConfig
    | DppoConfig
    | PtrPpoConfig
    | ImpactConfig
    | DqnConfig
    | GorilaConfig
    | ApexConfig
    | R2d2Config
    | D4pgConfig
    | SacConfig
    | Td3Config
    | CustomAlgorithmConfig
)

ALGORITHMS: Mapping[str, type[AnyAlgorithm]] = by_name("algorithm", get_args(AnyAlgorithm)[:-1])
"""Those of the package."""
