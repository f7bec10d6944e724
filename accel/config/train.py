"""The frozen, validated configuration of a training run: one model for each part, options by one flat set of names.

An option's name is unique among the parts, so that a flag, a TOML key and a keyword argument need no prefix.
``algorithm``, ``store`` and ``schedule`` choose between models: their options are those of the chosen model, and an
option that no chosen model reads is an error that says which one would.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from accel.config.algorithms import (
    ALGORITHMS,
    ActorCriticConfig,
    AlgorithmConfig,
    AnyAlgorithm,
    CustomAlgorithmConfig,
    OptimiserConfig,
)
from accel.config.base import Options
from accel.config.experience import (
    SCHEDULES,
    STORES,
    AnySchedule,
    AnyStore,
    AsynchronousConfig,
    BatchesConfig,
    CircularConfig,
    FifoConfig,
    ReplayingConfig,
    SamplesPerInsertConfig,
    SynchronousConfig,
)
from accel.config.parts import (
    ActingConfig,
    CompressionConfig,
    EnvironmentConfig,
    LearnerConfig,
    NetworkConfig,
    RewardConfig,
    RunConfig,
)
from accel.errors import ConfigError

MAX_BATCH_ENV_STEPS = 100_000_000
SYNONYMS: Mapping[str, str] = {
    "clip_range": "clip_ratio",
    "ent_coef": "entropy_cost",
    "gae_lambda": "lambda_",
    "gamma": "discount",
    "lr": "learning_rate",
    "max_grad_norm": "max_gradient_norm",
    "n_envs": "envs_per_actor",
    "n_epochs": "passes",
    "n_steps": "unroll_length",
    "num_envs": "envs_per_actor",
    "num_minibatches": "minibatches",
    "num_steps": "unroll_length",
    "timesteps": "total_env_steps",
    "total_timesteps": "total_env_steps",
    "update_epochs": "passes",
    "vf_coef": "value_cost",
}
"""Options as Stable-Baselines3 and CleanRL name them: flags of these names are taken, other places suggest ours."""
CHOICES: Mapping[str, Mapping[str, type[Options]]] = {
    "algorithm": ALGORITHMS,
    "store": STORES,
    "schedule": SCHEDULES,
}
DEFAULT_ALGORITHM = "dppo"  # learns untuned: results/evidence/defaults
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
        if self.environment.backend == "device":
            self._check_device()
        if self.acting.actor_runtime == "torch" and self.compression.compressor != "fp32":
            raise ConfigError("actor_runtime = 'torch' runs the uncompressed policy: set compressor = 'fp32' with it")
        if re.search(r"\bqat\b", self.compression.compressor) and self.learner.mixed_precision == "bf16":
            raise ConfigError(
                "qat rounds in single precision: set mixed_precision = 'none' with it, or compressor = 'int8'"
            )
        if self.learner.learner_graphs == "on" and self.learner.device == "cpu":
            raise ConfigError(
                "learner_graphs = 'on' with device = 'cpu': they are CUDA graphs; use --device cuda, or "
                "--learner-graphs auto"
            )
        if self.acting.launcher == "local" and self.needs_mpirun:
            raise ConfigError(
                "launcher = 'local' starts one learner and its actors on this machine: leave it out where a run has "
                "hosts, a hostfile, several learners or inference = 'central'"
            )
        self._check_learners()
        self._check_tasks()
        steps = self.acting.unroll_length * self.acting.envs_per_actor * self.store.held_unrolls
        if steps > MAX_BATCH_ENV_STEPS:
            raise ConfigError(
                f"unroll_length x envs_per_actor x batch_unrolls = {steps:,} steps in a batch, at most "
                f"{MAX_BATCH_ENV_STEPS:,}: the learner holds a batch in memory whole"
            )
        centres = isinstance(self.algorithm, ActorCriticConfig) and self.algorithm.normalise_advantages
        if steps == 1 and centres and self.environment.backend != "pettingzoo":  # whose agents are steps each
            raise ConfigError(
                "unroll_length x envs_per_actor x batch_unrolls = 1 step in a batch, whose advantage less its mean is "
                "zero, so that the policy would never change: use more, or set normalise_advantages = false"
            )
        allowed = self.algorithm.stores
        if allowed and self.store.store not in allowed:
            raise ConfigError(
                f"algorithm '{self.algorithm.algorithm}' cannot learn from store '{self.store.store}': "
                f"use {' or '.join(allowed)}"
            )
        self._check_inference()
        self._check_env_workers()
        if isinstance(self.schedule, SynchronousConfig):
            self._check_rounds()
        if isinstance(self.schedule, SamplesPerInsertConfig) and not isinstance(self.store, ReplayingConfig):
            raise ConfigError(
                f"schedule 'samples-per-insert' counts what a replay gives out, and store '{self.store.store}' gives "
                "whole batches: use --schedule asynchronous, or --store replay"
            )
        if isinstance(self.store, ReplayingConfig) and isinstance(self.schedule, AsynchronousConfig):
            raise ConfigError(
                f"store '{self.store.store}' always has another sample, so that schedule 'asynchronous' would update "
                "without end on few steps, and without any new one in a single process: use --schedule "
                "samples-per-insert"
            )

    def _check_device(self) -> None:
        """Whether the rest of the run goes with environments of tensors, on which the learner's own network acts."""
        environment, acting, algorithm = self.environment, self.acting, self.algorithm.algorithm
        first = "backend = 'device' steps environments of tensors in the learner's process: "
        if ":" not in environment.env:
            raise ConfigError(
                f"{first}env = {environment.env!r} is no module:factory that makes such; give one, such as --env "
                "accel.envs.torch_classic:CartPole, or leave --backend out"
            )
        if not self.algorithm.device_system or not isinstance(self.store, FifoConfig | CircularConfig):
            able = ", ".join(name for name, model in ALGORITHMS.items() if model.device_system)
            raise ConfigError(
                f"{first}algorithm '{algorithm}' with store '{self.store.store}' keeps experience on the host; use "
                f"--algorithm {DEFAULT_ALGORITHM}, or another of {able}"
            )
        unread = {
            "actors": (acting.actors, 0), "task": (environment.task, ()), "wrapper": (environment.wrapper, ()),
            "env_workers": (acting.env_workers, 0), "learners": (self.learner.learners, 1),
            "actor_runtime": (acting.actor_runtime, "native"), "compressor": (self.compression.compressor, "fp32"),
        }  # fmt: skip
        for name, (given, only) in unread.items():
            if given != only:
                raise ConfigError(
                    f"{first}{name} = {given!r} has nothing to act on there; leave it out"
                    + (", and compress the policy afterwards (accel compress)" if name == "compressor" else "")
                    + (": its factory wraps an environment" if name == "wrapper" else "")
                )
        if re.search(r"\+(lstm|gru|transformer)\b", self.policy.network):
            raise ConfigError(
                f"{first}network = {self.policy.network!r} is recurrent, and they reset within a step, where the value "
                "of an episode's last observation would need a state that is gone; use a network without it"
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
                f"of every actor, {actors} in all: leave it out, or use an algorithm that does not wait, such as ppo"
            )

    def _check_inference(self) -> None:
        if self.acting.inference == "local":
            return
        if isinstance(self.schedule, SynchronousConfig):
            raise ConfigError(
                "inference = 'central' answers with the newest policy at every step, schedule 'synchronous' acts with "
                "one policy for a whole round: use --inference local, or an algorithm that does not wait, such as ppo"
            )

    def _check_env_workers(self) -> None:
        if not self.acting.env_workers:
            return
        name = f"env_workers = {self.acting.env_workers}"
        if self.acting.actor_runtime == "torch" or self.inference_ranks:
            raise ConfigError(
                f"{name}: the actor itself runs a compressed policy: leave actor_runtime = 'torch' and "
                "inference = 'central' out"
            )
        if self.environment.backend == "envpool" and "num_threads" in self.environment.kwargs:
            raise ConfigError(f"{name} are EnvPool's threads: leave env_arg = 'num_threads' out")

    def _check_learners(self) -> None:
        learners, acting, scheme = self.learner.learners, self.acting, self.compression.compressor
        name = f"learners = {learners}"
        if learners == 1:
            return
        if not self.algorithm.many_learners:
            raise ConfigError(f"{name}: algorithm '{self.algorithm.algorithm}' runs on one learner")
        if self.algorithm.asynchronous_gradients and isinstance(self.schedule, SynchronousConfig):
            raise ConfigError(
                f"{name}: those of algorithm '{self.algorithm.algorithm}' do not wait for each other, schedule "
                f"'{self.schedule.schedule}' does: leave it out, or use --algorithm a2c"
            )
        if acting.actors < learners:
            raise ConfigError(f"{name} with actors = {acting.actors}: every learner needs an actor at least")
        if isinstance(self.store, BatchesConfig) and self.store.batch_unrolls < learners:
            raise ConfigError(
                f"{name} share out every batch: batch_unrolls must be at least {learners}, "
                f"not {self.store.batch_unrolls}"
            )
        if re.search(r"\bqat\b", scheme):
            raise ConfigError(
                f"{name}: compressor '{scheme}' works with one learner; choose a fixed scheme, such as fp32 or int8"
            )

    def _check_tasks(self) -> None:
        tasks, actors = self.environment.tasks, self.acting.actors
        if len(tasks) > 1 and actors < len(tasks):
            raise ConfigError(
                f"{len(tasks)} environments ({', '.join(tasks)}) with actors = {actors}: an actor steps one of them; "
                f"give --actors {len(tasks)} or more"
            )
        if len(tasks) > 1 and self.learner.learners > 1:
            raise ConfigError(f"task = {self.environment.task} works with one learner, not {self.learner.learners}")
        if len(set(tasks)) < len(tasks):
            raise ConfigError(f"env and task name an environment twice: {', '.join(tasks)}")

    def share(self, learner: int) -> Self:
        """The part of one of several learners: its actors, its unrolls of a batch, itself alone."""
        learners = self.learner.learners
        if learners == 1:
            return self
        changes: dict[str, object] = {
            "actors": _part(self.acting.actors, learner, learners),
            "learners": 1,
            "compressor": self.compression.compressor,
        }
        if isinstance(self.store, BatchesConfig):
            changes["batch_unrolls"] = _part(self.store.batch_unrolls, learner, learners)
        if isinstance(self.store, ReplayingConfig):
            changes["replay_capacity"] = _part(self.store.replay_capacity, learner, learners)
        if isinstance(self.schedule, SamplesPerInsertConfig):
            changes["learning_starts"] = _part(self.schedule.learning_starts, learner, learners)
        return self.replace(**changes)

    @property
    def inference_ranks(self) -> int:
        """Ranks that run the policy for actors: one for each learner, or none."""
        return self.learner.learners if self.acting.inference == "central" and self.acting.actors > 0 else 0

    @property
    def needs_mpirun(self) -> bool:
        """Whether a run has processes that only ranks of MPI can be: on other machines, learners, inference ranks."""
        elsewhere = self.acting.hosts is not None or self.acting.hostfile is not None
        return elsewhere or self.learner.learners > 1 or self.inference_ranks > 0

    @property
    def default_compressor(self) -> str:
        """What ``compressor`` is unless it is given; see ``CompressionConfig``."""
        return _default_compressor(self.options())

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
        return {name: _DESCRIPTIONS.get(name, field.description or "") for name, field in self.fields().items()}

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
        if kept["compressor"] == self.default_compressor:
            del kept["compressor"]
        if changed := [kind for kind in CHOICES if kind in changes and changes[kind] != kept[kind]]:
            if "algorithm" in changed:
                kept = {k: v for k, v in kept.items() if k not in {"store", "schedule", "inference"}}
            kept = options_read(kept, changes)
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


def options_read(options: Mapping[str, object], choices: Mapping[str, object]) -> dict[str, object]:
    """Those options that a run with these choices of algorithm, store and schedule reads.

    An option of the same name whose choices are others, as ``corrector`` has them, is another option.
    """
    values = {**options, **choices}
    models = _choose_models({**system_of(values), **values})
    fields = {name: field for model in models.values() for name, field in model.model_fields.items()}
    kinds = {name: fields[name].annotation for name in options if name in fields}
    return {
        name: options[name]
        for name, kind in kinds.items()
        if get_origin(kind) is not Literal or options[name] in get_args(kind)
    }


def all_options() -> dict[str, FieldInfo]:
    """Every option of every model by name; the first model that has it describes it."""
    found: dict[str, FieldInfo] = {}
    for model in _every_model():
        for name, field in model.model_fields.items():
            found.setdefault(name, field)
    return found


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
    known = list(choices)
    synonym = SYNONYMS.get(name)
    close = [synonym] if synonym in known else difflib.get_close_matches(name.lower(), known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _part(total: int, index: int, parts: int) -> int:
    """One of nearly equal parts, the first ones the larger."""
    return total // parts + (index < total % parts)


def _build_parts(options: Mapping[str, object]) -> dict[str, Options]:
    """Sort options into the parts that read them. Raises ConfigError."""
    values = {**system_of(options), **options}
    models = _choose_models(values)
    if isinstance(actors := values.get("actors"), int) and "batch_unrolls" in models["store"].model_fields:
        # With fewer unrolls than actors in a batch, policy lag would grow with the number of actors.
        values.setdefault("batch_unrolls", max(int(actors), 1))
    values.setdefault("compressor", _default_compressor(values))
    given: dict[str, dict[str, object]] = {part: {} for part in models}
    problems: list[str] = []
    for name, value in values.items():
        part = next((part for part, model in models.items() if name in model.model_fields), None)
        if part is None:
            if readers(name):
                problems.append(f"option '{name.rstrip('_')}' = {value!r}: {why_unread(name, models)}")
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


def _default_compressor(values: Mapping[str, object]) -> str:
    """``auto``; full precision in one process, which stays deterministic, with several learners, central inference or
    actors on torch."""
    apart = values.get("actors", 1) != 0 and values.get("learners", 1) == 1
    here = values.get("actor_runtime") != "torch" and values.get("inference", "local") == "local"
    return "auto" if apart and here else "fp32"


def system_of(options: Mapping[str, object]) -> Mapping[str, object]:
    """The defaults that go with the algorithm and the backend of these options. Raises ConfigError: there is no such
    algorithm."""
    chosen = cast(type[AlgorithmConfig], _choose("algorithm", options.get("algorithm", DEFAULT_ALGORITHM)))
    return {**chosen.system, **chosen.device_system} if options.get("backend") == "device" else chosen.system


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
    if not isinstance(name, str) or name not in models:
        hint = did_you_mean(str(name), models)
        own = ", or module:factory" if kind == "algorithm" else ""
        raise ConfigError(f"unknown {kind} '{name}'{hint}; there are {', '.join(models)}{own}")
    return models[name]


def _every_model() -> Iterator[type[Options]]:
    for name, field in TrainConfig.model_fields.items():
        if name in CHOICES:
            yield from CHOICES[name].values()
            if name == "algorithm":
                yield CustomAlgorithmConfig
        else:
            yield field.annotation  # type: ignore[misc]


def why_unread(name: str, models: Mapping[str, type[Options]]) -> str:
    """Why an option of another algorithm, store or schedule is refused by a run of these parts, and who would read
    it."""
    who = readers(name)
    chosen = next(kind for kind in CHOICES if any(text.startswith(kind) for text in who))
    mine = next(iter(get_args(models[chosen].model_fields[chosen].annotation)), "module:factory")
    return f"{chosen} {mine} does not read it: leave it out, or choose {' or '.join(who)}"


def _explain(item: object) -> str:
    details = dict(item)  # type: ignore[call-overload]
    name = ".".join(str(part) for part in details["loc"][:1]).rstrip("_")
    message = str(details["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    return f"option '{name}' = {details['input']!r}: {message[:1].lower()}{message[1:]}"
