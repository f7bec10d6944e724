"""The frozen, validated configuration of a training run: one model for each part, options by one flat set of names.

An option's name is unique among the parts, so that a flag, a TOML key and a keyword argument need no prefix.
``algorithm``, ``store`` and ``schedule`` choose between models: their options are those of the chosen model, and an
option that no chosen model reads is an error that says which one would.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from accel.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
MAX_BATCH_ENV_STEPS = 100_000_000
EnvValue = str | int | float | bool


def _at_most(limit: int, reason: str) -> AfterValidator:
    """An upper bound whose error says why it is there."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"at most {limit:,}: {reason}")
        return value

    return AfterValidator(check)


class Options(BaseModel):
    """One part's options: frozen, checked, none unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Clips(Options):
    """A base for parts with limits that may be switched off."""

    @field_validator("*", mode="before")
    @classmethod
    def _none_as_text(cls, value: object, info: ValidationInfo) -> object:
        """TOML has no null: the text none stands for it."""
        if isinstance(value, str) and value.lower() == "none" and takes_none(cls.model_fields[str(info.field_name)]):
            return None
        return value


def takes_none(field: FieldInfo) -> bool:
    """Whether an option may be switched off."""
    return type(None) in get_args(field.annotation)


Clip = Annotated[float, Field(gt=0)] | None


class EnvironmentConfig(Options):
    """The environments."""

    env: str = Field("CartPole-v1", min_length=1, description="gymnasium id, or module:id to import the module first")
    env_arg: tuple[str, ...] = Field((), description="k=v passed to the environment's constructor; may be repeated")
    wrapper: tuple[str, ...] = Field((), description="module:function applied to each environment; may be repeated")
    backend: Literal["gymnasium", "envpool", "pettingzoo"] = Field(
        "gymnasium", description="what steps the environments"
    )
    squash_actions: bool = Field(False, description="tanh-squash Box actions into their bounds instead of clipping")

    @model_validator(mode="after")
    def _arguments_parse(self) -> Self:
        self.kwargs  # noqa: B018  (parses, so that a bad k=v is refused here)
        return self

    @property
    def kwargs(self) -> dict[str, EnvValue]:
        """The environment's constructor arguments, numbers and booleans recognised."""
        return dict(parse_pair(pair, "env_arg") for pair in self.env_arg)


class RewardConfig(Clips):
    """Transforms of rewards before learning."""

    reward_scale: float = Field(1.0, gt=0, description="factor on every reward, after normalising and clipping")
    reward_clip: Clip = Field(None, description="clip rewards to [-x, x] before scaling; none to leave them")
    normalise_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the discounted return"
    )


class ActingConfig(Options):
    """The actors: how many, how they step, where they run."""

    actors: Annotated[int, _at_most(4096, "each actor is a process of its own")] = Field(
        1, ge=0, description="actor processes; 0 runs learner and actor in one process, deterministically"
    )
    envs_per_actor: Annotated[Count, _at_most(65_536, "one process holds and steps them all")] = Field(
        8, description="environments that one actor steps together"
    )
    unroll_length: Annotated[Count, _at_most(65_536, "an unroll is held in memory whole")] = Field(
        20, description="T, vector steps per unroll sent to the learner"
    )
    unrolls_in_flight: int = Field(1, ge=1, le=64, description="unrolls an actor may have sent but not delivered")
    actor_runtime: Literal["onnxruntime", "torch"] = Field(
        "onnxruntime", description="torch runs the actors on torch eager, uncompressed, for comparison only"
    )
    pin_cores: bool = Field(
        True, description="pin each actor to one core and the learner to the rest, where cores suffice"
    )
    actor_timeout_s: float = Field(
        20.0, gt=0, description="most seconds that a step of an actor's environments may take; then it is replaced"
    )
    max_actor_restarts: int = Field(
        10, ge=0, description="failures in a row after which an actor is not replaced again"
    )
    hosts: str | None = Field(None, description="node names for mpirun, such as a:1,b:16; the first holds the learner")
    hostfile: Path | None = Field(None, description="an mpirun hostfile; its first slot holds the learner")

    @model_validator(mode="after")
    def _hosts_make_sense(self) -> Self:
        if self.hosts is not None and self.hostfile is not None:
            raise ValueError("give hosts or hostfile, not both")
        if self.actors == 0 and (self.hosts is not None or self.hostfile is not None):
            raise ValueError("actors = 0 runs in one process: leave out hosts and hostfile, or ask for actors")
        return self


class NetworkConfig(Options):
    """The network that is trained."""

    network: str = Field(
        "auto:64x2",
        description="mlp:WIDTHxDEPTH, nature-cnn[:MULTIPLE] or impala-resnet[:MULTIPLE], or module:factory; each with "
        "+lstm:SIZE or +gru:SIZE; auto:WIDTHxDEPTH is an mlp for vectors, a nature-cnn for images, an impala-resnet "
        "for small ones",
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of mlp torsos")
    separate_value_torso: bool | None = Field(
        None, description="give the critic its own torso; default: yes for mlp, no for images and recurrent networks"
    )
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="initial log standard deviation of Box actions")
    normalise_observations: bool = Field(
        True,
        description="running mean and deviation, inside the exported graph; images are scaled to [0, 1] instead",
    )


class CompressionConfig(Clips):
    """How the acting policy is compressed and validated."""

    compressor: str = Field(
        "int8",
        description="compression scheme of the actors' policy, such as fp32, int8, prune(0.5)+int8; qat is int8 whose "
        "rounding the learner trains with, prune(0.5)+qat also prunes what it trains; auto or auto(fp32;int8;…) lets "
        "the monitor choose while training runs; anneal(fp32@0;int8@1e5) changes at those steps",
    )
    calibration_interval_updates: Count = Field(
        500, description="learner updates between recalibrations of activation ranges"
    )
    calibration_size: Annotated[Count, _at_most(1_000_000, "the observations are held in memory")] = Field(
        512, description="recent observations used to calibrate activation ranges"
    )
    drift_interval_updates: Count = Field(
        50, description="learner updates between drift checks; an activation outside its range causes a recalibration"
    )
    reselect_interval_updates: Count = Field(
        1000,
        description="learner updates between selections of pruned channels and low-rank bases, divided by an update's "
        "optimiser steps; more frequent at the start",
    )
    distill_interval_updates: Count = Field(
        2, description="learner updates between training steps of a distilled student on recent observations"
    )
    check_interval_updates: Count = Field(
        200,
        description="learner updates between checks of a published policy against the learner's on many observations; "
        "every other one is checked on a few",
    )
    max_publish_kl: Clip = Field(
        0.5,
        description="withhold a policy further than this from the learner's, mean KL in nats, and let fp32 act in its "
        "place; none: only broken ones",
    )


class OptimiserConfig(Clips):
    """The optimiser of every algorithm."""

    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimiser")
    learning_rate: float = Field(1e-3, gt=0, description="initial learning rate")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear decays to zero at total-env-steps"
    )
    optimizer_epsilon: float = Field(1e-5, gt=0, description="ε in the optimiser's denominator")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="second-moment decay of adam")
    rmsprop_decay: float = Field(0.99, gt=0, lt=1, description="decay of rmsprop")
    max_gradient_norm: Clip = Field(0.5, description="global gradient-norm clip; none to leave gradients")


class Trace(NamedTuple):
    """λ, ρ̄ and c̄ of a correction's trace, by which retention and clipped shares are measured."""

    lambda_: float = 0.0
    clip_rho: float | None = 1.0
    clip_c: float | None = 1.0


class AlgorithmConfig(Clips):
    """Options of every algorithm.

    Attributes:
        system: option defaults that go with the algorithm, its store and schedule among them.
        stores: the stores that it can learn from; empty for any.
        many_learners: whether several learners can share its updates.
    """

    system: ClassVar[Mapping[str, object]] = {}
    stores: ClassVar[tuple[str, ...]] = ()
    many_learners: ClassVar[bool] = False

    discount: float = Field(0.99, ge=0, le=1, description="γ, per environment step")

    @property
    def trace(self) -> Trace:
        """Of the correction; one step where there is none."""
        return Trace()

    @property
    def bootstrap_steps(self) -> int:
        """Rewards that a transition sums before its bootstrap."""
        return 1

    @property
    def optimiser_steps(self) -> int:
        """Steps of the optimiser in one update."""
        return 1


class ActorCriticConfig(AlgorithmConfig):
    """Options of the actor-critics."""

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

    system: ClassVar[Mapping[str, object]] = {"store": "fifo", "schedule": "asynchronous"}

    algorithm: Literal["impala"] = "impala"
    corrector: Literal["vtrace", "retrace", "none"] = Field(
        "vtrace", description="off-policy correction; retrace takes a critic of action values"
    )


class A2cConfig(ActorCriticConfig):
    """A2C: policy gradient and critic on n-step targets; one unroll of every actor, all with the newest policy."""

    system: ClassVar[Mapping[str, object]] = {"store": "fifo", "schedule": "synchronous"}

    algorithm: Literal["a2c"] = "a2c"
    corrector: Literal["vtrace", "retrace", "none"] = Field(
        "none", description="correction for the compression of the policy that acted; none believes it to be the same"
    )


class SurrogateConfig(ActorCriticConfig):
    """PPO's clipped surrogate, whatever the schedule.

    The defaults learn most environments untuned (results/defaults): batches of 2048 steps with eight environments, and
    rewards divided by the deviation of the return, without which large or small rewards need another learning rate.
    """

    learns_untuned: ClassVar[Mapping[str, object]] = {
        "store": "fifo",
        "unroll_length": 256,
        "learning_rate": 5e-4,
        "normalise_rewards": True,
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

    system: ClassVar[Mapping[str, object]] = {**SurrogateConfig.learns_untuned, "schedule": "asynchronous"}

    algorithm: Literal["ppo"] = "ppo"


class DppoConfig(SurrogateConfig):
    """DPPO: PPO's clipped surrogate on one unroll of every actor, all with the newest policy."""

    system: ClassVar[Mapping[str, object]] = {
        **SurrogateConfig.learns_untuned,
        "schedule": "synchronous",
        "corrector": "none",
    }

    algorithm: Literal["dppo"] = "dppo"


class ImpactConfig(ActorCriticConfig):
    """IMPACT: a clipped surrogate around a slowly refreshed target network, batches used several times."""

    system: ClassVar[Mapping[str, object]] = {"store": "circular", "schedule": "asynchronous"}
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
    "network": "auto:128x2",
    "activation": "relu",
    "learning_rate": 1e-3,
    "max_gradient_norm": 10.0,
    "unroll_length": 8,
}


class QLearningConfig(AlgorithmConfig):
    """What Q-learning is, however its actors explore and its experience is kept."""

    n_step: int = Field(3, ge=1, le=64, description="n, rewards summed before the bootstrap")
    double: bool = Field(True, description="the online network chooses the bootstrap's action, the target rates it")
    duelling: bool = Field(True, description="Q = V + A − mean A, from two streams on one torso")
    value_rescaling: bool = Field(
        True, description="learn h(Q) = sign(Q) (√(|Q| + 1) − 1) + Q/1000, whatever the size of returns"
    )
    target_interval_updates: Count = Field(100, description="updates between copies to the target network")

    @property
    def bootstrap_steps(self) -> int:
        """n."""
        return self.n_step


class DqnConfig(QLearningConfig):
    """DQN: double, duelling, n-step Q-learning from replay, with ε-greedy actors."""

    system: ClassVar[Mapping[str, object]] = {**Q_LEARNING_SYSTEM, "store": "replay"}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["dqn"] = "dqn"
    initial_epsilon: float = Field(1.0, ge=0, le=1, description="ε of the first steps")
    final_epsilon: float = Field(0.02, ge=0, le=1, description="ε from exploration-env-steps on")
    exploration_env_steps: Count = Field(
        10_000, description="environment steps of the whole run over which ε falls linearly"
    )


class LadderConfig(QLearningConfig):
    """Q-learning whose environments explore each with an ε of its own."""

    base_epsilon: float = Field(0.4, gt=0, le=1, description="ε of the environment that explores most")
    epsilon_exponent: float = Field(
        7.0, ge=0, description="α: environment i of M has ε^(1 + α i / (M − 1)), those of all actors counted"
    )


class ApexConfig(LadderConfig):
    """Ape-X: DQN from prioritised replay, an ε for each environment, priorities computed by the actors."""

    system: ClassVar[Mapping[str, object]] = {**Q_LEARNING_SYSTEM, "store": "prioritised"}
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


class D4pgConfig(AlgorithmConfig):
    """D4PG: a deterministic policy and a distributional critic, n-step, from replay."""

    system: ClassVar[Mapping[str, object]] = {**CONTINUOUS_SYSTEM, "normalise_rewards": True}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["d4pg"] = "d4pg"
    n_step: int = Field(5, ge=1, le=64, description="n, rewards summed before the bootstrap")
    noise: float = Field(0.3, gt=0, le=2, description="σ of the actors' Gaussian noise, in halves of the action range")
    atoms: int = Field(51, ge=2, le=1001, description="values that the critic's distribution is over")
    least_value: float = Field(-20.0, description="the least atom, in units of transformed rewards")
    greatest_value: float = Field(20.0, description="the greatest atom; edge_probability says how much lies outside")
    target_interval_updates: Count = Field(100, description="updates between copies to the target networks")

    @property
    def bootstrap_steps(self) -> int:
        """n."""
        return self.n_step

    @model_validator(mode="after")
    def _atoms_are_ordered(self) -> Self:
        if self.least_value >= self.greatest_value:
            raise ValueError(f"least_value ({self.least_value}) must be below greatest_value ({self.greatest_value})")
        return self


class SacConfig(AlgorithmConfig):
    """SAC: twin critics, a squashed Gaussian policy, a learnt temperature, from replay."""

    system: ClassVar[Mapping[str, object]] = {**CONTINUOUS_SYSTEM, "learning_rate": 5e-4}
    stores: ClassVar[tuple[str, ...]] = ("replay", "prioritised")

    algorithm: Literal["sac"] = "sac"
    n_step: int = Field(1, ge=1, le=64, description="n, rewards summed before the bootstrap")
    initial_temperature: float = Field(1.0, gt=0, description="α before anything is learned")
    target_entropy: float = Field(
        1.0, description="entropy that α is learned towards, as −target_entropy nats for each of the k actions"
    )
    target_rate: float = Field(0.005, gt=0, le=1, description="share of the critics that their targets take over")

    @property
    def bootstrap_steps(self) -> int:
        """n."""
        return self.n_step


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


class FifoConfig(Options):
    """Each unroll is learned from once, in the order of arrival."""

    store: Literal["fifo"] = "fifo"
    batch_unrolls: Count = Field(
        1, description="unrolls per learner batch, joined along the environment axis; unless given, one per actor"
    )

    @property
    def held_unrolls(self) -> int:
        """Unrolls whose buffers the store keeps until an update is done."""
        return self.batch_unrolls


class CircularConfig(Options):
    """A circular buffer of batches, each used several times."""

    store: Literal["circular"] = "circular"
    batch_unrolls: Count = Field(
        1, description="unrolls per learner batch, joined along the environment axis; unless given, one per actor"
    )
    buffer_batches: Count = Field(4, description="N, batches kept; a new one takes the place of the oldest")
    batch_uses: Count = Field(2, description="K, updates that a batch serves at most")

    @property
    def held_unrolls(self) -> int:
        """Unrolls whose buffers the store keeps until a batch is whole."""
        return self.batch_unrolls


class ReplayingConfig(Options):
    """What every replay has."""

    replay_capacity: int = Field(
        100_000, ge=1, description="environment steps kept; a new one takes the oldest one's place"
    )

    @property
    def held_unrolls(self) -> int:
        """Unrolls are copied at insertion."""
        return 1

    def sampled_steps(self, unroll_length: int) -> int:
        """Environment steps that an update learns from."""
        raise NotImplementedError


class TransitionsConfig(ReplayingConfig):
    """What every replay of transitions has."""

    batch_size: Count = Field(64, description="transitions per learner batch")

    def sampled_steps(self, unroll_length: int) -> int:
        """One each."""
        return self.batch_size


class ReplayConfig(TransitionsConfig):
    """Replay of transitions, sampled uniformly."""

    store: Literal["replay"] = "replay"


class PrioritisedConfig(TransitionsConfig):
    """Replay of transitions, sampled by priority."""

    store: Literal["prioritised"] = "prioritised"
    priority_exponent: float = Field(0.6, ge=0, le=1, description="α, on priorities; 0 samples uniformly")
    weight_exponent: float = Field(0.4, ge=0, le=1, description="β, on the importance weights of the samples")


class SequencesConfig(ReplayingConfig):
    """Replay of sequences with the recurrent state at their start, sampled by priority."""

    store: Literal["sequences"] = "sequences"
    batch_size: Count = Field(32, description="sequences per learner batch")
    sequence_unrolls: int = Field(
        2, ge=1, le=64, description="unrolls of one sequence; all but the last only warm up the recurrent state"
    )
    priority_exponent: float = Field(0.9, ge=0, le=1, description="α, on priorities; 0 samples uniformly")
    weight_exponent: float = Field(0.6, ge=0, le=1, description="β, on the importance weights of the samples")
    priority_mix: float = Field(0.9, ge=0, le=1, description="η, share of the greatest error in a priority; else mean")

    def sampled_steps(self, unroll_length: int) -> int:
        """Those of the last unroll."""
        return self.batch_size * unroll_length


class ScheduleConfig(Options):
    """What every schedule has.

    Attributes:
        waits_for_policy: whether an actor that sent an unroll waits for the policy that was learned from it.
    """

    waits_for_policy: ClassVar[bool] = False

    @property
    def least_env_steps(self) -> int:
        """Environment steps that a store must hold before the first update."""
        return 0


class AsynchronousConfig(ScheduleConfig):
    """The learner updates whenever the store has a batch; actors never wait for a policy."""

    schedule: Literal["asynchronous"] = "asynchronous"
    publish_interval_updates: Count = Field(1, description="learner updates between publications of the policy")
    max_policy_lag: Count = Field(64, description="drop unrolls whose oldest policy is more versions old than this")


class SynchronousConfig(ScheduleConfig):
    """An update for one unroll of every actor; each then waits for the policy that was learned from it."""

    waits_for_policy: ClassVar[bool] = True
    publish_interval_updates: ClassVar[int] = 1
    max_policy_lag: ClassVar[int] = 1

    schedule: Literal["synchronous"] = "synchronous"


class SamplesPerInsertConfig(ScheduleConfig):
    """The learner takes so many samples for each environment step, within a tolerance; whoever is ahead waits."""

    schedule: Literal["samples-per-insert"] = "samples-per-insert"
    publish_interval_updates: Count = Field(16, description="learner updates between publications of the policy")
    max_policy_lag: Count = Field(1_000_000, description="drop unrolls whose oldest policy is older than this")
    samples_per_insert: float = Field(16.0, gt=0, description="sampled transitions for each environment step")
    learning_starts: int = Field(1000, ge=0, description="environment steps before the first update")
    insert_tolerance: int = Field(
        2048, ge=1, description="environment steps that actors may be ahead of the ratio before they wait"
    )

    @property
    def least_env_steps(self) -> int:
        """As many as before the first update: a resumed run fills its replay anew before it learns on."""
        return self.learning_starts


class LearnerConfig(Options):
    """Where and how the learner computes."""

    learners: Annotated[int, _at_most(256, "each learner is a process of its own")] = Field(
        1,
        ge=1,
        description="learner processes, which share out actors and batches and train one policy; actors and "
        "batch-unrolls stay the totals",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the learner computes")
    pinned_transfers: bool = Field(
        True, description="stage batches in page-locked memory, whose copies to a CUDA device overlap; CUDA only"
    )
    mixed_precision: Literal["none", "bf16", "auto"] = Field(
        "none",
        description="autocast of the learner's forward pass: bf16 on CUDA, or on a CPU with AVX512-BF16 or AMX; auto: "
        "bf16 where such a CPU learns a convolutional network without lstm, gru or qat, else none",
    )
    learner_threads: Annotated[int, _at_most(1024, "torch starts every one of them")] = Field(
        0, ge=0, description="torch threads of the learner; 0: the cores that actors leave free"
    )


class RunConfig(Options):
    """When the run ends, where it is kept, how often it is recorded."""

    total_env_steps: Count = Field(1_000_000, description="stop after this many valid environment steps")
    stop_at_return: float | None = Field(
        None, description="stop when the mean return of the last stop-window episodes reaches this"
    )
    stop_window: Count = Field(100, description="finished training episodes that the reported mean return covers")
    max_seconds: float | None = Field(None, gt=0, description="stop, with a checkpoint, after this wall-clock time")
    seed: int = Field(0, ge=0, description="seed of everything random")
    results_dir: Path = Field(Path("results"), description="where run directories are made")
    name: str | None = Field(None, description="the run's directory name; default: environment, time and seed")
    evaluate_every: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="play the newest published policy greedily about every this many environment steps, beside "
        "training, and keep the best one for --which best",
    )
    evaluation_episodes: Annotated[int, _at_most(100_000, "their returns are kept in memory")] = Field(
        10, ge=1, description="episodes of each evaluation, on seeds of their own"
    )
    wandb: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="project on Weights & Biases that gets the metrics too; needs accel-rl[wandb]"
    )
    checkpoint_interval_s: float = Field(60.0, gt=0, description="seconds between checkpoints")
    keep_checkpoints: Count = Field(2, description="checkpoints kept")
    watts_per_core: float | None = Field(
        None,
        gt=0,
        description="watts of one busy core, for the energy of a run where the machine has no readable counters",
    )
    log_interval_s: float = Field(
        1.0, gt=0, description="most seconds between metric records; a run's first ones are closer together"
    )
    peer_timeout_s: float = Field(120.0, gt=0, description="how long ranks wait for each other, and may be silent")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value in {".", ".."} or "/" in value or "\0" in value):
            raise ValueError("must be a plain directory name, without '/'")
        return value


AnyAlgorithm = (
    ImpalaConfig
    | A2cConfig
    | PpoConfig
    | DppoConfig
    | ImpactConfig
    | DqnConfig
    | ApexConfig
    | R2d2Config
    | D4pgConfig
    | SacConfig
    | CustomAlgorithmConfig
)
AnyStore = FifoConfig | CircularConfig | ReplayConfig | PrioritisedConfig | SequencesConfig
AnySchedule = AsynchronousConfig | SynchronousConfig | SamplesPerInsertConfig

ALGORITHMS: Mapping[str, type[AnyAlgorithm]] = {
    "impala": ImpalaConfig,
    "a2c": A2cConfig,
    "ppo": PpoConfig,
    "dppo": DppoConfig,
    "impact": ImpactConfig,
    "dqn": DqnConfig,
    "apex": ApexConfig,
    "r2d2": R2d2Config,
    "d4pg": D4pgConfig,
    "sac": SacConfig,
}
STORES: Mapping[str, type[AnyStore]] = {
    "fifo": FifoConfig,
    "circular": CircularConfig,
    "replay": ReplayConfig,
    "prioritised": PrioritisedConfig,
    "sequences": SequencesConfig,
}
SCHEDULES: Mapping[str, type[AnySchedule]] = {
    "asynchronous": AsynchronousConfig,
    "synchronous": SynchronousConfig,
    "samples-per-insert": SamplesPerInsertConfig,
}
CHOICES: Mapping[str, Mapping[str, type[Options]]] = {
    "algorithm": ALGORITHMS,
    "store": STORES,
    "schedule": SCHEDULES,
}
DEFAULT_ALGORITHM = "ppo"
_DESCRIPTIONS = {
    "algorithm": f"what is trained and how: {', '.join(ALGORITHMS)}, or module:factory; sets the defaults of the rest",
    "store": f"when experience is used, and used again: {', '.join(STORES)}; default: the algorithm's",
    "schedule": f"when the learner updates and publishes: {', '.join(SCHEDULES)}; default: the algorithm's",
}


class TrainConfig(BaseModel):
    """Everything that decides a training run, part by part.

        TrainConfig(env="CartPole-v1", algorithm="ppo", passes=4)

    Raises:
        ConfigError: names the option, the value and the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: EnvironmentConfig
    rewards: RewardConfig
    acting: ActingConfig
    policy: NetworkConfig
    compression: CompressionConfig
    algorithm: AnyAlgorithm
    optimiser: OptimiserConfig
    store: AnyStore
    schedule: AnySchedule
    learner: LearnerConfig
    run: RunConfig

    def __init__(self, /, **options: object) -> None:
        super().__init__(**_build_parts(options))
        self._check()

    def _check(self) -> None:
        """What concerns several parts."""
        if self.acting.actor_runtime == "torch" and self.compression.compressor != "fp32":
            raise ConfigError("actor_runtime = 'torch' runs the uncompressed policy: set compressor = 'fp32' with it")
        if re.search(r"\bqat\b", self.compression.compressor) and self.learner.mixed_precision == "bf16":
            raise ConfigError(
                "qat rounds in single precision: set mixed_precision = 'none' with it, or compressor = 'int8'"
            )
        self._check_learners()
        steps = self.acting.unroll_length * self.acting.envs_per_actor * self.store.held_unrolls
        if steps > MAX_BATCH_ENV_STEPS:
            raise ConfigError(
                f"unroll_length x envs_per_actor x batch_unrolls = {steps:,} steps in a batch, at most "
                f"{MAX_BATCH_ENV_STEPS:,}: the learner holds a batch in memory whole"
            )
        allowed = self.algorithm.stores
        if allowed and self.store.store not in allowed:
            raise ConfigError(
                f"algorithm '{self.algorithm.algorithm}' cannot learn from store '{self.store.store}': "
                f"use {' or '.join(allowed)}"
            )
        if isinstance(self.schedule, SynchronousConfig):
            self._check_rounds()
        if isinstance(self.store, FifoConfig) and isinstance(self.schedule, SamplesPerInsertConfig):
            raise ConfigError(
                "store 'fifo' takes in no more than one batch, so schedule 'samples-per-insert' would wait for ever: "
                "use --schedule asynchronous, or --store replay"
            )
        if isinstance(self.store, ReplayingConfig) and isinstance(self.schedule, AsynchronousConfig):
            raise ConfigError(
                f"store '{self.store.store}' always has another sample, so that schedule 'asynchronous' would update "
                "without end on few steps, and without any new one in a single process: use --schedule "
                "samples-per-insert"
            )

    def _check_rounds(self) -> None:
        """Whether every batch has one unroll of each actor, which else would wait for ever, or for another's."""
        actors = max(self.acting.actors, 1)
        if not isinstance(self.store, FifoConfig):
            raise ConfigError(
                f"schedule 'synchronous' learns once from one unroll of every actor, store '{self.store.store}' "
                "keeps them longer: use --store fifo"
            )
        if self.store.batch_unrolls != actors:
            raise ConfigError(
                f"option 'batch_unrolls' = {self.store.batch_unrolls}: schedule 'synchronous' learns from one unroll "
                f"of every actor, {actors} in all: leave it out"
            )

    def _check_learners(self) -> None:
        learners, acting, scheme = self.learner.learners, self.acting, self.compression.compressor
        name = f"learners = {learners}"
        if learners == 1:
            return
        if not self.algorithm.many_learners:
            raise ConfigError(f"{name}: algorithm '{self.algorithm.algorithm}' runs on one learner")
        if acting.actors < learners:
            raise ConfigError(f"{name} with actors = {acting.actors}: every learner needs an actor at least")
        if getattr(self.store, "batch_unrolls", learners) < learners:
            raise ConfigError(
                f"{name} share out every batch: batch_unrolls must be at least {learners}, "
                f"not {getattr(self.store, 'batch_unrolls', None)}"
            )
        if scheme.startswith("auto") or re.search(r"\bqat\b", scheme):
            raise ConfigError(
                f"{name}: compressor '{scheme}' works with one learner; choose a fixed scheme, such as int8"
            )

    def share(self, learner: int) -> Self:
        """The part of one of several learners: its actors, its unrolls of a batch, itself alone."""
        learners = self.learner.learners
        if learners == 1:
            return self
        changes: dict[str, object] = {"actors": _part(self.acting.actors, learner, learners), "learners": 1}
        if isinstance(self.store, FifoConfig | CircularConfig):
            changes["batch_unrolls"] = _part(self.store.batch_unrolls, learner, learners)
        return self.replace(**changes)

    @property
    def parts(self) -> dict[str, Options]:
        """The parts by name, in order."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def options(self) -> dict[str, object]:
        """Every option that is read, by its flat name."""
        return {name: getattr(part, name) for part in self.parts.values() for name in type(part).model_fields}

    def fields(self) -> dict[str, FieldInfo]:
        """The fields of ``options``."""
        return {name: field for part in self.parts.values() for name, field in type(part).model_fields.items()}

    def descriptions(self) -> dict[str, str]:
        """What each option that is read means."""
        return {name: describe_choice(name) or field.description or "" for name, field in self.fields().items()}

    def why_unread(self, name: str) -> str:
        """Why an option of another algorithm, store or schedule is refused here."""
        return _why_unread(name, {part: type(model) for part, model in self.parts.items()})

    def to_json(self) -> dict[str, object]:
        """JSON-ready values by flat option name; ``from_json`` restores an equal config."""
        return {name: value for part in self.parts.values() for name, value in part.model_dump(mode="json").items()}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Self:
        """Inverse of ``to_json``; raises ConfigError."""
        return cls(**value)

    @classmethod
    def create(cls, /, **options: object) -> Self:
        """The same as the constructor; raises ConfigError."""
        return cls(**options)

    def replace(self, **changes: object) -> Self:
        """A checked copy with some options changed, without what a new algorithm, store or schedule does not read."""
        kept = self.options()
        if "actors" in changes and kept.get("batch_unrolls") == max(self.acting.actors, 1):
            del kept["batch_unrolls"]  # One per actor, however many there are.
        if changed := [kind for kind in CHOICES if kind in changes and changes[kind] != kept[kind]]:
            if "algorithm" in changed:
                kept = {k: v for k, v in kept.items() if k not in {"store", "schedule"}}
            read = readable_options({**kept, **changes})
            kept = {name: value for name, value in kept.items() if name in read}
        return type(self)(**{**kept, **changes})

    def to_toml_values(self) -> dict[str, object]:
        """Values a TOML file can hold: limits that are off are written as none; other unset options are left out."""
        values: dict[str, object] = {}
        fields = self.fields()
        for key, value in self.to_json().items():
            if value is not None:
                values[key] = value
            elif fields[key].default is not None:
                values[key] = "none"
        return values


def readable_options(options: Mapping[str, object]) -> frozenset[str]:
    """The names of all options that a run with these choices of algorithm, store and schedule reads."""
    models = _choose_models({**_system_of(options), **options})
    return frozenset(name for model in models.values() for name in model.model_fields)


def all_options() -> dict[str, FieldInfo]:
    """Every option of every model by name; the first model that has it describes it."""
    found: dict[str, FieldInfo] = {}
    for model in _every_model():
        for name, field in model.model_fields.items():
            found.setdefault(name, field)
    return found


def describe_choice(name: str) -> str | None:
    """What ``--algorithm``, ``--store`` and ``--schedule`` are for; None for any other option."""
    return _DESCRIPTIONS.get(name)


def readers(option: str) -> tuple[str, ...]:
    """Which choices read an option, as ``algorithm ppo``; empty where it is unknown or always read."""
    return tuple(
        f"{kind} {name}"
        for kind, models in CHOICES.items()
        for name, model in models.items()
        if option in model.model_fields
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` with the nearest choice, or nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def parse_pair(pair: str, option: str) -> tuple[str, EnvValue]:
    """``name=value`` with numbers and booleans recognised. Raises ValueError."""
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"{option} '{pair}' must have the form name=value")
    if text.lower() in {"true", "false"}:
        return key, text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return key, text
    return key, value if isinstance(value, str | int | float | bool) else text


def _part(total: int, index: int, parts: int) -> int:
    """One of nearly equal parts, the first ones the larger."""
    return total // parts + (index < total % parts)


def _build_parts(options: Mapping[str, object]) -> dict[str, Options]:
    """Sort options into the parts that read them. Raises ConfigError."""
    values = {**_system_of(options), **options}
    models = _choose_models(values)
    if "batch_unrolls" not in values and isinstance(values.get("actors"), int):
        # With fewer unrolls than actors in a batch, policy lag would grow with the number of actors.
        if "batch_unrolls" in models["store"].model_fields:
            values["batch_unrolls"] = max(int(str(values["actors"])), 1)
    given: dict[str, dict[str, object]] = {part: {} for part in models}
    problems: list[str] = []
    for name, value in values.items():
        part = next((part for part, model in models.items() if name in model.model_fields), None)
        if part is None:
            if readers(name):
                problems.append(f"option '{name.rstrip('_')}' = {value!r}: {_why_unread(name, models)}")
            else:
                problems.append(f"unknown option '{name}'{did_you_mean(name, all_options())}")
            continue
        given[part][name] = value
    parts: dict[str, Options] = {}
    for part, model in models.items():
        try:
            parts[part] = model(**given[part])
        except ValidationError as error:
            problems += [_explain(item) for item in error.errors()]
    if problems:
        raise ConfigError("\n".join(problems))
    return parts


def _system_of(options: Mapping[str, object]) -> Mapping[str, object]:
    return _choose("algorithm", options.get("algorithm", DEFAULT_ALGORITHM)).system  # type: ignore[attr-defined,no-any-return]


def _choose_models(values: Mapping[str, object]) -> dict[str, type[Options]]:
    """The model of each part."""
    models: dict[str, type[Options]] = {}
    for name, field in TrainConfig.model_fields.items():
        if name in CHOICES:
            models[name] = _choose(name, values.get(name, DEFAULT_ALGORITHM))
        else:
            models[name] = field.annotation  # type: ignore[assignment]
    return models


def _choose(kind: str, name: object) -> type[Options]:
    """The model that an option value names. Raises ConfigError with what there is."""
    models = CHOICES[kind]
    if kind == "algorithm" and isinstance(name, str) and ":" in name:
        return CustomAlgorithmConfig
    if name not in models:
        hint = did_you_mean(str(name), models)
        own = ", or module:factory" if kind == "algorithm" else ""
        raise ConfigError(f"unknown {kind} '{name}'{hint}; there are {', '.join(models)}{own}")
    return models[str(name)]


def _every_model() -> Iterator[type[Options]]:
    for name, field in TrainConfig.model_fields.items():
        if name in CHOICES:
            yield from CHOICES[name].values()
            if name == "algorithm":
                yield CustomAlgorithmConfig
        else:
            yield field.annotation  # type: ignore[misc]


def _why_unread(name: str, models: Mapping[str, type[Options]]) -> str:
    """Why an option is refused, and who would read it."""
    who = readers(name)
    chosen = next(kind for kind in CHOICES if any(text.startswith(kind) for text in who))
    mine = models[chosen].model_fields[chosen].default
    return f"{chosen} {mine} does not read it: leave it out, or choose {' or '.join(who)}"


def _explain(item: object) -> str:
    details = dict(item)  # type: ignore[call-overload]
    name = ".".join(str(part) for part in details["loc"][:1]).rstrip("_")
    message = str(details["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    return f"option '{name}' = {details['input']!r}: {message[:1].lower()}{message[1:]}"
