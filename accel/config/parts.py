"""The options of every run: environment, rewards, actors, network, compression, learner, run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from accel.config.base import PLAIN_NAME, Clip, Count, EnvValue, Options, at_most, is_plain_name, parse_pair


class EnvironmentConfig(Options):
    """The environments."""

    env: str = Field(
        "CartPole-v1",
        min_length=1,
        description="gymnasium id, or module:id to import the module first; module:factory with backend device",
    )
    task: tuple[str, ...] = Field(
        (),
        description="another environment of the same spaces, which one policy learns too; actors share out env and "
        "tasks in turn; may be repeated",
    )
    env_arg: tuple[str, ...] = Field((), description="k=v passed to the environment's constructor; may be repeated")
    wrapper: tuple[str, ...] = Field((), description="module:function applied to each environment; may be repeated")
    backend: Literal["gymnasium", "envpool", "pettingzoo", "device"] = Field(
        "gymnasium",
        description="what steps the environments; device: the learner's process, thousands at once as tensors on its "
        "device",
    )
    squash_actions: bool = Field(False, description="tanh-squash Box actions into their bounds instead of clipping")

    @model_validator(mode="after")
    def _arguments_parse(self) -> Self:
        self.kwargs  # noqa: B018  (parses, so that a bad k=v is refused here)
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every environment that the policy learns."""
        return (self.env, *self.task)

    @property
    def kwargs(self) -> dict[str, EnvValue]:
        """The environment's constructor arguments, numbers and booleans recognised."""
        return dict(parse_pair(pair, "env_arg") for pair in self.env_arg)


class RewardConfig(Options):
    """Transforms of rewards before learning."""

    reward_scale: float = Field(1.0, gt=0, description="factor on every reward, after normalising and clipping")
    reward_clip: Clip = Field(None, description="clip rewards to [-x, x] before scaling; none to leave them")
    normalise_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the discounted return"
    )


class ActingConfig(Options):
    """The actors: how many, how they step, where they run."""

    actors: Annotated[int, at_most(4096, "each actor is a process of its own")] = Field(
        1, ge=0, description="actor processes; 0 runs learner and actor in one process, deterministically"
    )
    envs_per_actor: Annotated[Count, at_most(65_536, "one process holds and steps them all")] = Field(
        8, description="environments that one actor steps together"
    )
    env_workers: Annotated[int, at_most(1024, "each worker is a process of its own")] = Field(
        0,
        ge=0,
        description="processes, or EnvPool's threads, that step an actor's environments; the actor acts on those that "
        "are ready; 0: it steps all of them itself, together",
    )
    unroll_length: Annotated[Count, at_most(65_536, "an unroll is held in memory whole")] = Field(
        20, description="T, vector steps per unroll sent to the learner"
    )
    unrolls_in_flight: int = Field(
        1, ge=1, le=64, description="unrolls that an actor may have sent and the learner has not received yet"
    )
    actor_runtime: Literal["native", "onnxruntime", "torch"] = Field(
        "native",
        description="what runs the actors' policy: native: compiled kernels for policies of dense layers, onnxruntime "
        "for others; onnxruntime: always that; torch: torch eager, uncompressed, for comparison, or with central "
        "inference on the learner's device",
    )
    inference: Literal["local", "central"] = Field(
        "local",
        description="where the policy runs: local, in every actor; central, on one more rank for each learner, which "
        "answers the actors' observations in batches; with actors = 0 the two are the same",
    )
    pin_cores: bool = Field(
        True,
        description="pin each actor to one core and the learner to the rest, where cores suffice; give runs that "
        "share a machine cores of their own by taskset, or turn it off",
    )
    actor_timeout_s: float = Field(
        20.0, gt=0, description="most seconds that a step of an actor's environments may take; then it is replaced"
    )
    max_actor_restarts: int = Field(
        10, ge=0, description="failures in a row after which an actor is not replaced again"
    )
    launcher: Literal["auto", "local", "mpirun"] = Field(
        "auto",
        description="what starts the processes of a run: local, the learner itself, on this machine; mpirun, on any; "
        "auto: mpirun where the run needs it",
    )
    hosts: str | None = Field(None, description="node names for mpirun, such as a:1,b:16; the first holds the learner")
    hostfile: Path | None = Field(None, description="an mpirun hostfile; its first slot holds the learner")

    @property
    def session_runtime(self) -> Literal["native", "onnxruntime"]:
        """What runs compressed policies."""
        return "onnxruntime" if self.actor_runtime == "onnxruntime" else "native"

    @model_validator(mode="after")
    def _actors_make_sense(self) -> Self:
        if self.hosts is not None and self.hostfile is not None:
            raise ValueError("give hosts or hostfile, not both")
        if self.env_workers and self.envs_per_actor % self.env_workers:
            raise ValueError(
                f"env_workers = {self.env_workers} cannot share out envs_per_actor = {self.envs_per_actor} equally"
            )
        if self.actors == 0 and (self.hosts is not None or self.hostfile is not None):
            raise ValueError("actors = 0 runs in one process: leave out hosts and hostfile, or ask for actors")
        return self


Activation = Literal[
    "tanh", "relu", "elu", "silu", "gelu", "gelu_tanh", "leaky_relu", "sigmoid", "hardtanh", "softplus"
]


class NetworkConfig(Options):
    """The network that is trained."""

    network: str = Field(
        "auto:64x2",
        description="mlp:WIDTHxDEPTH, mlp:512-256-128, nature-cnn[:MULTIPLE] or impala-resnet[:MULTIPLE], or "
        "module:factory; each with +lstm:SIZE, +gru:SIZE or +transformer:WIDTHxLAYERS; auto:WIDTHxDEPTH is an mlp for "
        "vectors, a nature-cnn for images, an impala-resnet for small ones",
    )
    activation: Activation = Field("tanh", description="activation of mlp torsos")
    separate_value_torso: bool | None = Field(
        None, description="give the critic its own torso; default: yes for mlp, no for images and recurrent networks"
    )
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="initial log standard deviation of Box actions")
    normalise_observations: bool = Field(
        True,
        description="running mean and deviation, inside the exported graph; images are scaled to [0, 1] instead",
    )
    init_from: Path | None = Field(
        None,
        description="start from the policy of this run directory, or in this file of others, with its layers and "
        "normaliser; it says what the network is",
    )
    init_module: str | None = Field(None, description="package:factory that the weights of --init-from belong to")
    init_normaliser: Path | None = Field(
        None, description="file of the statistics that the policy of --init-from was normalised with, as --normaliser"
    )


class CompressionConfig(Options):
    """How the acting policy is compressed and validated."""

    compressor: str = Field(
        "auto",
        description="compression scheme of the actors' policy, such as fp32, int8, prune(0.5)+int8; qat is int8 whose "
        "rounding the learner trains with, prune(0.5)+qat also prunes what it trains; auto(fp32;int8;…) lets the "
        "monitor choose among them while training runs, auto between fp32 and int8; default: auto, and fp32 with "
        "actors = 0, several learners, torch actors or central inference",
    )
    calibration_size: Annotated[Count, at_most(1_000_000, "the observations are held in memory")] = Field(
        512, description="recent observations used to calibrate activation ranges; of images, 64 among them"
    )
    max_publish_kl: Clip = Field(
        0.5,
        description="withhold a policy further than this from the learner's, mean KL in nats, and let fp32 act in its "
        "place; none: only broken ones",
    )


class LearnerConfig(Options):
    """Where and how the learner computes."""

    learners: Annotated[int, at_most(256, "each learner is a process of its own")] = Field(
        1,
        ge=1,
        description="learner processes, which share out actors and batches and train one policy; actors and "
        "batch-unrolls stay the totals",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the learner computes")
    mixed_precision: Literal["none", "bf16", "auto"] = Field(
        "none",
        description="autocast of the learner's forward pass: bf16 on CUDA, or on a CPU with AVX512-BF16 or AMX; auto: "
        "bf16 where such a CPU learns a convolutional network without lstm, gru or qat, else none",
    )
    learner_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="record the learner's optimiser steps as CUDA graphs, each of which is launched as one; auto: on "
        "CUDA, where steps have few shapes: with one learner, without lstm, gru or qat; on: an error where they cannot "
        "be recorded",
    )
    learner_threads: Annotated[int, at_most(1024, "torch starts every one of them")] = Field(
        0, ge=0, description="torch threads of the learner; 0: the cores that actors leave free"
    )


class RunConfig(Options):
    """When the run ends, where it is kept, how often it is recorded."""

    total_env_steps: Count = Field(1_000_000, description="stop after this many valid environment steps")
    stop_at_env_steps: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="stop, with a checkpoint, after this many steps of total-env-steps, by which all schedules go; "
        "--resume with a greater one trains the next part",
    )
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
    evaluation_episodes: Annotated[int, at_most(100_000, "their returns are kept in memory")] = Field(
        10, ge=1, description="episodes of each evaluation, on seeds of their own"
    )
    wandb: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="project on Weights & Biases that gets the metrics too; needs accel-rl[wandb]"
    )
    checkpoint_interval_s: float = Field(60.0, gt=0, description="seconds between checkpoints")
    keep_checkpoints: Count = Field(2, description="checkpoints kept")
    log_interval_s: float = Field(
        1.0, gt=0, description="most seconds between metric records; a run's first ones are closer together"
    )
    peer_timeout_s: float = Field(
        120.0, gt=0, description="seconds that ranks wait for each other at most, and that a rank may be silent"
    )

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str | None) -> str | None:
        if value is not None and not is_plain_name(value):
            raise ValueError(f"must be {PLAIN_NAME}")
        return value
