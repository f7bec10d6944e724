"""The frozen, validated configuration of a training run; TOML in and out; unknown keys are errors."""

from __future__ import annotations

import ast
import difflib
import math
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from accel.errors import ConfigError

Clip = Annotated[float, Field(gt=0)] | None
Count = Annotated[int, Field(ge=1)]
EnvValue = str | int | float | bool
MAX_BATCH_ENV_STEPS = 100_000_000


def _at_most(limit: int, reason: str) -> AfterValidator:
    """An upper bound whose error says why it is there."""

    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"at most {limit:,}: {reason}")
        return value

    return AfterValidator(check)


class TrainConfig(BaseModel):
    """Everything that decides a training run. Every field is an option, a TOML key and a documented default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    # environment
    env: str = Field("CartPole-v1", min_length=1, description="gymnasium id, or module:id to import the module first")
    env_arg: tuple[str, ...] = Field((), description="k=v passed to the environment's constructor; may be repeated")
    wrapper: tuple[str, ...] = Field((), description="module:function applied to each environment; may be repeated")
    backend: Literal["gymnasium", "envpool"] = Field("gymnasium", description="what steps the environments")
    squash_actions: bool = Field(False, description="tanh-squash Box actions into their bounds instead of clipping")
    normalise_observations: bool = Field(
        False, description="running mean and standard deviation, inside the exported graph; not for images"
    )
    reward_scale: float = Field(1.0, gt=0, description="factor on every reward, after normalising and clipping")
    reward_clip: Clip = Field(None, description="clip rewards to [-x, x] before scaling; none to leave them")
    normalise_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the discounted return"
    )

    # scale
    actors: Annotated[int, _at_most(4096, "each actor is a process of its own")] = Field(
        1, ge=0, description="actor processes; 0 runs learner and actor in one process, deterministically"
    )
    envs_per_actor: Annotated[Count, _at_most(65_536, "one process holds and steps them all")] = Field(
        8, description="environments that one actor steps together"
    )
    unroll_length: Annotated[Count, _at_most(65_536, "an unroll is held in memory whole")] = Field(
        20, description="T, vector steps per unroll sent to the learner"
    )
    hosts: str | None = Field(None, description="node names for mpirun, such as a:1,b:16; the first holds the learner")
    hostfile: Path | None = Field(None, description="an mpirun hostfile; its first slot holds the learner")
    pin_cores: bool = Field(
        True, description="pin each actor to one core and the learner to the rest, where cores suffice"
    )
    unrolls_in_flight: int = Field(1, ge=1, le=64, description="unrolls an actor may have sent but not delivered")

    # policy
    network: str = Field(
        "mlp:64x2",
        description="mlp:WIDTHxDEPTH, nature-cnn[:MULTIPLE] or impala-resnet[:MULTIPLE], each with +lstm:SIZE; "
        "or module:factory",
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of mlp torsos")
    separate_value_torso: bool | None = Field(
        None, description="give the critic its own torso; default: yes for mlp, no for images and lstm"
    )
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="initial log standard deviation of Box actions")

    # compression
    compressor: str = Field(
        "int8",
        description="compression scheme of the actors' policy, such as fp32, int8, prune(0.5)+int8; qat is int8 whose "
        "rounding the learner trains with, prune(0.5)+qat also prunes what it trains; auto or auto(fp32;int8;…) lets "
        "the monitor choose while training runs; anneal(fp32@0;int8@1e5) changes at those steps",
    )
    actor_runtime: Literal["onnxruntime", "torch"] = Field(
        "onnxruntime", description="torch runs the actors on torch eager, uncompressed, for comparison only"
    )
    publish_interval_updates: Count = Field(1, description="learner updates between publications of the policy")
    calibration_interval_updates: Count = Field(
        500, description="learner updates between recalibrations of activation ranges"
    )
    calibration_size: Annotated[Count, _at_most(1_000_000, "the observations are held in memory")] = Field(
        512, description="recent observations used to calibrate activation ranges"
    )
    drift_interval_updates: Count = Field(
        50, description="learner updates between looks for activations that left their range, which recalibrate at once"
    )
    reselect_interval_updates: Count = Field(
        1000,
        description="learner updates between choices of pruned channels and low-rank bases; sooner at the start, and "
        "as much more often as a batch takes optimiser steps",
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

    # correction
    corrector: Literal["vtrace", "retrace", "none"] = Field("vtrace", description="off-policy correction")
    discount: float = Field(0.99, ge=0, le=1, description="γ, per environment step")
    lambda_: float = Field(1.0, ge=0, le=1, description="λ of the trace")
    clip_rho: Clip = Field(1.0, description="ρ̄, clip on the importance weight of V-trace's temporal difference")
    clip_c: Clip = Field(1.0, description="c̄, clip on the trace's importance weight; at most clip-rho")
    clip_pg_rho: Clip = Field(1.0, description="clip on the policy gradient's importance weight")

    # objective and optimiser
    objective: Literal["actor-critic", "clipped-surrogate"] = Field(
        "actor-critic", description="policy gradient (IMPALA), or PPO's clipped surrogate on the corrected advantages"
    )
    batch_unrolls: Count = Field(
        1, description="unrolls per learner batch, joined along the environment axis; unless given, one per actor"
    )
    passes: Count = Field(1, description="passes over each batch; more than one needs clipped-surrogate")
    minibatches: Count = Field(1, description="minibatches per pass; with an lstm they split environments, not time")
    clip_ratio: float = Field(0.2, gt=0, lt=1, description="ε of the clipped surrogate")
    entropy_cost: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    value_cost: float = Field(0.5, ge=0, description="weight of the critic's squared error (halved)")
    normalise_advantages: bool = Field(True, description="zero mean and unit deviation over a batch's valid steps")
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimiser")
    learning_rate: float = Field(1e-3, gt=0, description="initial learning rate")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear decays to zero at total-env-steps"
    )
    optimizer_epsilon: float = Field(1e-5, gt=0, description="ε in the optimiser's denominator")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="second-moment decay of adam")
    rmsprop_decay: float = Field(0.99, gt=0, lt=1, description="decay of rmsprop")
    max_gradient_norm: Clip = Field(0.5, description="global gradient-norm clip; none to leave gradients")
    target_kl: Clip = Field(
        None, description="stop a batch's passes when the mean KL from the batch's policy exceeds this"
    )

    # learner
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the learner computes")
    pinned_transfers: bool = Field(
        True, description="stage batches in page-locked memory, whose copies to a CUDA device overlap; CUDA only"
    )
    mixed_precision: Literal["none", "bf16", "auto"] = Field(
        "none",
        description="autocast of the learner's forward pass: bf16 on CUDA, or on a CPU with AVX512-BF16 or AMX; auto: "
        "bf16 where such a CPU learns a convolutional network without lstm or qat, else none",
    )
    learner_threads: Annotated[int, _at_most(1024, "torch starts every one of them")] = Field(
        0, ge=0, description="torch threads of the learner; 0: the cores that actors leave free"
    )
    max_policy_lag: Count = Field(64, description="drop unrolls whose oldest policy is more versions old than this")

    # run
    total_env_steps: Count = Field(1_000_000, description="stop after this many valid steps consumed by the learner")
    stop_at_return: float | None = Field(
        None, description="stop when the mean return of the last stop-window episodes reaches this"
    )
    stop_window: Count = Field(100, description="finished training episodes that the reported mean return covers")
    max_seconds: float | None = Field(None, gt=0, description="stop, with a checkpoint, after this wall-clock time")
    seed: int = Field(0, ge=0, description="seed of everything random")
    results_dir: Path = Field(Path("results"), description="where run directories are made")
    name: str | None = Field(None, description="the run's directory name; default: environment, time and seed")
    checkpoint_interval_s: float = Field(60.0, gt=0, description="seconds between checkpoints")
    keep_checkpoints: Count = Field(2, description="checkpoints kept")
    log_interval_s: float = Field(
        1.0, gt=0, description="most seconds between metric records; a run's first ones are closer together"
    )
    peer_timeout_s: float = Field(120.0, gt=0, description="how long ranks wait for each other at start and stop")

    @field_validator(
        "reward_clip",
        "max_publish_kl",
        "clip_rho",
        "clip_c",
        "clip_pg_rho",
        "max_gradient_norm",
        "target_kl",
        mode="before",
    )
    @classmethod
    def _none_as_text(cls, value: object) -> object:
        """TOML has no null: the text none stands for it."""
        return None if isinstance(value, str) and value.lower() == "none" else value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or value in {".", ".."} or "/" in value or "\0" in value):
            raise ValueError("must be a plain directory name, without '/'")
        return value

    @model_validator(mode="before")
    @classmethod
    def _a_batch_takes_one_unroll_of_each_actor(cls, values: object) -> object:
        """With fewer, policy lag would grow with the number of actors."""
        if isinstance(values, dict) and "batch_unrolls" not in values and isinstance(values.get("actors"), int):
            return values | {"batch_unrolls": max(values["actors"], 1)}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        clip_c = math.inf if self.clip_c is None else self.clip_c
        if self.corrector == "vtrace" and self.clip_rho is not None and clip_c > self.clip_rho:
            raise ValueError(
                f"clip_c ({self.clip_c}) must not exceed clip_rho ({self.clip_rho}); lower clip_c or raise clip_rho"
            )
        if self.passes > 1 and self.objective == "actor-critic":
            raise ValueError(
                "passes > 1 re-uses a batch, which plain actor-critic cannot: use objective = 'clipped-surrogate'"
            )
        if self.minibatches > 1 and self.objective == "actor-critic":
            raise ValueError(
                "minibatches > 1 takes several steps on a batch, which plain actor-critic cannot: "
                "use objective = 'clipped-surrogate'"
            )
        if self.batch_env_steps > MAX_BATCH_ENV_STEPS:
            raise ValueError(
                f"unroll_length x envs_per_actor x batch_unrolls = {self.batch_env_steps:,} steps in a batch, at most "
                f"{MAX_BATCH_ENV_STEPS:,}: the learner holds a batch in memory whole"
            )
        if self.corrector == "retrace" and self.objective != "actor-critic":
            raise ValueError("retrace works with objective = 'actor-critic' only")
        if self.actor_runtime == "torch" and self.compressor != "fp32":
            raise ValueError("actor_runtime = 'torch' runs the uncompressed policy: set compressor = 'fp32' with it")
        if re.search(r"\bqat\b", self.compressor) and self.mixed_precision == "bf16":
            raise ValueError(
                "qat rounds in single precision: set mixed_precision = 'none' with it, or compressor = 'int8'"
            )
        if self.hosts is not None and self.hostfile is not None:
            raise ValueError("give hosts or hostfile, not both")
        if self.actors == 0 and (self.hosts is not None or self.hostfile is not None):
            raise ValueError("actors = 0 runs in one process: leave out hosts and hostfile, or ask for actors")
        self.env_kwargs  # noqa: B018  (parses, so that a bad k=v is refused here)
        return self

    @property
    def env_kwargs(self) -> dict[str, EnvValue]:
        """The environment's constructor arguments, numbers and booleans recognised."""
        return dict(_parse_pair(pair) for pair in self.env_arg)

    @property
    def batch_env_steps(self) -> int:
        """Rows of one learner batch, junk rows included."""
        return self.unroll_length * self.envs_per_actor * self.batch_unrolls

    def to_json(self) -> dict[str, object]:
        """JSON-ready values; ``from_json`` restores an equal config."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: dict[str, object]) -> Self:
        """Inverse of ``to_json``; raises ConfigError."""
        return cls.create(**value)

    @classmethod
    def create(cls, /, **values: object) -> Self:
        """Validate values; raises ConfigError that names the option, the value and the reason."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(item, cls) for item in error.errors())) from None

    def replace(self, **changes: object) -> Self:
        """A validated copy with some fields changed."""
        return self.create(**{**self.model_dump(), **changes})

    def to_toml_values(self) -> dict[str, object]:
        """Values a TOML file can hold: clips that are off are written as none; other unset options are left out."""
        values: dict[str, object] = {}
        for key, value in self.to_json().items():
            if value is not None:
                values[key] = value
            elif type(self).model_fields[key].default is not None:
                values[key] = "none"
        return values


def _parse_pair(pair: str) -> tuple[str, EnvValue]:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"env_arg '{pair}' must have the form name=value")
    if text.lower() in {"true", "false"}:
        return key, text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return key, text
    return key, value if isinstance(value, str | int | float | bool) else text


def did_you_mean(name: str, choices: tuple[str, ...]) -> str:
    """`` (did you mean 'x'?)`` with the nearest choice, or nothing."""
    close = difflib.get_close_matches(name, choices, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _explain(item: object, model: type[BaseModel]) -> str:
    details = dict(item)  # type: ignore[call-overload]
    name = ".".join(str(part) for part in details["loc"][:1]).rstrip("_")
    message = str(details["msg"]).removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        return f"unknown option '{name}'{did_you_mean(name, tuple(model.model_fields))}"
    if not name:
        return message
    return f"option '{name}' = {details['input']!r}: {message[:1].lower()}{message[1:]}"
