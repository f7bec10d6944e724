"""The configuration: every option validated, explained and carried through TOML and JSON unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from accel.config import TrainConfig
from accel.config.algorithms import ALGORITHMS
from accel.config.files import load_preset, load_toml, preset_names
from accel.errors import ConfigError
from accel.runs.job import Job, check_config, error_of_kind, process_started_at

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "env_arg": st.lists(st.sampled_from(["a=1", "b=true", "c=x y", "d='1'", "e=0.5", "f="]), max_size=3),
        "clip_rho": st.one_of(st.none(), st.floats(1, 10)),
        "clip_pg_rho": st.one_of(st.none(), st.floats(1e-6, 10)),
        "discount": st.floats(0, 1),
        "reward_clip": st.one_of(st.none(), st.floats(1e-9, 1e9)),
        "max_gradient_norm": st.one_of(st.none(), st.floats(1e-9, 1e9)),
        "separate_value_torso": st.one_of(st.none(), st.booleans()),
        "hosts": st.one_of(st.none(), st.just("a:1,b:16")),
        "stop_at_return": st.one_of(st.none(), st.floats(-1e9, 1e9)),
        "seed": st.integers(0, 2**62),
        "name": st.one_of(st.none(), st.sampled_from(["run", "a b", 'quo"te', "ünï"])),
    },
)


@given(CHANGES)
def test_toml_and_json_restore_an_equal_config(changes: dict[str, object]) -> None:
    config = TrainConfig.create(**changes)
    assert TrainConfig.create(**tomllib.loads(tomlkit.dumps(config.to_toml_values()))) == config
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    job = Job(config, Path("results/x"), 12.5, 80, ("accel", "train", "--name", "ü"), compressor_chosen=True)
    assert Job.from_text(job.to_text()) == job


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_has_a_description_and_a_default(algorithm: str) -> None:
    config = TrainConfig.create(algorithm=algorithm)
    for name, description in config.descriptions().items():
        assert len(description) > 3, name
    assert config.options() == TrainConfig.create(**config.options()).options()
    with pytest.raises(Exception, match="frozen"):
        config.run.seed = 3
    with pytest.raises(Exception, match="frozen"):
        config.run = config.run


def test_an_algorithm_brings_its_store_its_schedule_and_its_defaults() -> None:
    config = TrainConfig.create(algorithm="dqn", samples_per_insert=2.0)
    assert (config.store.store, config.schedule.schedule) == ("replay", "samples-per-insert")
    assert config.policy.activation == "relu" != TrainConfig.create().policy.activation
    assert TrainConfig.create(algorithm="dqn", learning_rate=1e-2).optimiser.learning_rate == 1e-2
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert TrainConfig.create(algorithm="impact", store="fifo").store.store == "fifo"
    assert TrainConfig.create(algorithm="package.module:factory", algorithm_arg=("a=1",)).algorithm.kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "auto"),
        ({"actors": 3}, "auto"),
        ({"actors": 0}, "fp32"),
        ({"actors": 2, "learners": 2}, "fp32"),
        ({"actor_runtime": "torch"}, "fp32"),
        ({"algorithm": "ppo", "inference": "central"}, "fp32"),
        ({"algorithm": "seed"}, "fp32"),
        ({"actors": 0, "compressor": "int8"}, "int8"),
        ({"compressor": "fp32"}, "fp32"),
    ],
)
def test_the_default_compressor_is_measured_where_it_can_be(options: dict[str, object], expected: str) -> None:
    config = TrainConfig.create(**options)
    assert config.compression.compressor == expected
    assert TrainConfig.from_json(config.to_json()) == config
    assert all(config.share(i).compression.compressor == expected for i in range(config.learner.learners))
    assert config.replace(seed=1).compression.compressor == expected


def test_a_default_compressor_follows_the_actors_and_a_chosen_one_does_not() -> None:
    assert TrainConfig.create().replace(actors=0).compression.compressor == "fp32"
    assert TrainConfig.create(actors=0).replace(actors=2).compression.compressor == "auto"
    assert TrainConfig.create(actors=0, compressor="int8").replace(actors=2).compression.compressor == "int8"


def test_another_algorithm_keeps_what_it_reads() -> None:
    config = TrainConfig.create(algorithm="ppo", passes=4, learning_rate=3e-4, lambda_=0.9)
    changed = config.replace(algorithm="impact")
    assert (changed.store.store, changed.optimiser.learning_rate, changed.algorithm.lambda_) == ("circular", 3e-4, 0.9)
    assert "passes" not in changed.options()


def test_central_inference_takes_a_rank_for_each_learner_and_leaves_with_its_algorithm() -> None:
    config = TrainConfig.create(algorithm="seed", actors=4, learners=2)
    assert config.inference_ranks == 2 and config.share(0).inference_ranks == 1
    assert config.replace(actors=0, learners=1).inference_ranks == 0
    assert config.replace(algorithm="ppo").acting.inference == "local"


def test_presets_are_valid() -> None:
    assert {"quickstart"} <= set(preset_names())
    for name in preset_names():
        check_config(TrainConfig.create(**load_preset(name)))
    with pytest.raises(ConfigError, match=r"unknown preset 'quikstart' \(did you mean 'quickstart'\?\).*halfcheetah"):
        load_preset("quikstart")


TASKS: dict[str, object] = {"task": ("a:A-v0", "b:B-v0"), "algorithm": "impala"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discount": 1.5}, "'discount' = 1.5"),
        ({"learning_rate": 0}, "'learning_rate' = 0"),
        ({"learning_rate": float("inf")}, "finite"),
        ({"reward_scale": float("nan")}, "finite"),
        ({"actors": -1}, "'actors' = -1"),
        ({"envs_per_actor": 0}, "'envs_per_actor' = 0"),
        ({"actors": 100_000}, "'actors' = 100000: at most 4,096: each actor is a process"),
        ({"envs_per_actor": 2_000_000_000}, "'envs_per_actor' = 2000000000: at most 65,536: one process holds"),
        ({"unroll_length": 100_000}, "'unroll_length' = 100000: at most 65,536: .* in memory"),
        ({"learner_threads": 100_000}, "'learner_threads' = 100000: at most 1,024: torch"),
        ({"batch_unrolls": 10**9}, "steps in a batch, at most 100,000,000: .* in memory"),
        ({"unroll_length": 1, "envs_per_actor": 1, "actors": 0}, "1 step in a batch.*normalise_advantages = false"),
        ({"algorithm": "impala", "corrector": "wat"}, "'vtrace', 'sequence-rejection', 'retrace' or 'none'"),
        ({"clip_rho": 0.5}, "clip_c.*must not exceed clip_rho"),
        ({"clip_c": None}, "clip_c.*must not exceed clip_rho"),
        ({"algorithm": "impact", "schedule": "samples-per-insert"}, "store 'circular' gives whole batches"),
        ({"algorithm": "my:factory", "entropy_cost": 0.1}, "algorithm module:factory does not read it"),
        ({"algorithm": "impala", "passes": 2}, "'passes' = 2: algorithm impala does not read it.*algorithm ppo"),
        ({"algorithm": "dqn", "batch_unrolls": 2}, "store replay does not read it.*store fifo or store circular"),
        ({"algorithm": "dqn", "store": "fifo"}, "algorithm 'dqn' cannot learn from store 'fifo': use replay"),
        ({"algorithm": "dqnn"}, r"unknown algorithm 'dqnn' \(did you mean 'dqn'\?\).*module:factory"),
        ({"store": "stack"}, "unknown store 'stack'; there are fifo"),
        ({"algorithm": "a:b", "algorithm_arg": ("c",)}, "must have the form name=value"),
        ({"corrector": "retrace", "algorithm": "ppo"}, "retrace"),
        ({"actor_runtime": "torch", "compressor": "int8"}, "compressor = 'fp32'"),
        ({"inference": "central", "algorithm": "a2c"}, "'synchronous' acts with one policy for a whole round"),
        (
            {"algorithm": "a3c", "schedule": "synchronous", "learners": 2, "actors": 2},
            "learners = 2: those of algorithm 'a3c' do not wait for each other, schedule 'synchronous' does",
        ),
        ({"compressor": "qat", "mixed_precision": "bf16", "device": "cuda"}, "mixed_precision = 'none'"),
        ({"hosts": "a", "hostfile": "b"}, "not both"),
        ({"actors": 0, "hosts": "a"}, "one process"),
        ({"env_arg": ("novalue",)}, "'novalue' must have the form name=value"),
        ({"name": "a/b"}, "plain directory name"),
        ({"learning_rat": 1e-3}, r"unknown option 'learning_rat' \(did you mean 'learning_rate'\?\)"),
        ({"env": ""}, "env"),
        ({"learners": 2, "algorithm": "dqn", "actors": 2}, "'dqn' runs on one learner"),
        ({"learners": 2, "actors": 1}, "every learner needs an actor"),
        ({"learners": 2, "actors": 0}, "every learner needs an actor"),
        ({"learners": 2, "actors": 2, "batch_unrolls": 1}, "batch_unrolls must be at least 2, not 1"),
        ({"learners": 2, "actors": 2, "compressor": "prune(0.5)+qat"}, "works with one learner"),
        (TASKS | {"actors": 2}, r"3 environments \(CartPole-v1, a:A-v0, b:B-v0\) with actors = 2.*--actors 3"),
        (TASKS | {"actors": 4, "learners": 2}, "works with one learner, not 2"),
        (TASKS | {"actors": 4, "env": "a:A-v0"}, "name an environment twice: a:A-v0, a:A-v0, b:B-v0"),
    ],
)
def test_a_wrong_option_is_named_with_its_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TrainConfig.create(**changes)
    assert caught.value.exit_code == 2
    assert "validation error" not in str(caught.value) and "pydantic" not in str(caught.value)


def test_each_wrong_option_has_a_line_of_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.create(discount=2, seed=-1, colour="red")
    assert len(str(caught.value).splitlines()) == 3


def test_arguments_of_the_environment_are_read_as_python_values() -> None:
    config = TrainConfig.create(env_arg=("a=1", "b=-0.5", "c=TRUE", "d=text", "e='7'", "f=[1]", "g="))
    assert config.environment.kwargs == {"a": 1, "b": -0.5, "c": True, "d": "text", "e": "7", "f": "[1]", "g": ""}


def test_a_batch_takes_one_unroll_of_each_actor_unless_told() -> None:
    assert [TrainConfig.create(actors=n).store.batch_unrolls for n in (0, 1, 5)] == [1, 1, 5]
    assert TrainConfig.create(algorithm="ppo", actors=5, batch_unrolls=2).store.batch_unrolls == 2
    assert TrainConfig.create(algorithm="impact", actors=3).store.batch_unrolls == 3


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=r"cannot read configuration .*run\.toml: No such file"):
        load_toml(path)
    path.write_text("seed = = 3")
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML.*line 1"):
        load_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_toml(path)


def test_texts_are_made_canonical_and_a_name_is_given() -> None:
    config = check_config(TrainConfig.create(compressor=" prune(0.5) + int8", env="CartPole-v1", seed=7))
    assert config.compression.compressor == "prune(0.5)+int8"
    assert config.run.name and config.run.name.startswith("CartPole-v1-") and config.run.name.endswith("-s7")
    assert check_config(config) == config
    for scheme in ("prune(1.5)", "auto(fp32;lowrank(2))"):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            check_config(TrainConfig.create(compressor=scheme))
    with pytest.raises(ConfigError, match="choose from fp32"):
        check_config(TrainConfig.create(compressor="wat"))
    with pytest.raises(ConfigError, match="mlp"):
        check_config(TrainConfig.create(network="wat:3"))


def test_an_actors_error_is_raised_by_its_name() -> None:
    assert type(error_of_kind("EnvError", "x")).__name__ == "EnvError"
    for foreign in ("OSError", "annotations", "None", "AccelErrorX"):
        assert type(error_of_kind(foreign, "x")).__name__ == "AccelError"


def test_a_process_knows_when_it_started() -> None:
    before = time.time()
    assert before <= process_started_at(1e-9) <= time.time(), "what came before the command does not count"
    program = "from accel.runs.job import process_started_at; print(process_started_at(1e9))"
    before = time.time()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kernels_tick_s = 0.1  # and more: a hundredth of a second, as a rule
    assert before - kernels_tick_s < float(done.stdout) < time.time()


def test_learners_share_out_actors_and_batches() -> None:
    config = TrainConfig.create(algorithm="ppo", learners=2, actors=5, batch_unrolls=3)
    one, two = config.share(0), config.share(1)
    assert (one.acting.actors, two.acting.actors) == (3, 2)
    assert (one.store.held_unrolls, two.store.held_unrolls) == (2, 1)
    assert one.learner.learners == 1 and one.share(0) is one
