"""Population-based training: selection and perturbation, the journal whatever interrupts it, runs that take over."""

from __future__ import annotations

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

import accel
from accel.config import TrainConfig
from accel.config.files import load_toml
from accel.errors import ConfigError, SweepError
from accel.sweep.evolution import draw, evolve, perturb
from accel.sweep.population import JOURNAL, Member, Outcome, Population, lineage, sweep_population
from accel.sweep.search import SearchOptions
from accel.sweep.sweep_file import load_sweep_file
from accel.sweep.training_run import TrainingRun
from tests.accel.sweep.sweeping import worker

SPACE: Mapping[str, BaseDistribution] = {
    "learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
    "passes": IntDistribution(1, 10),
    "lambda_": FloatDistribution(0.8, 1.0, step=0.05),
    "compressor": CategoricalDistribution(["fp32", "int8"]),
}
_FILE = """
[train]
env = "CartPole-v1"
algorithm = "impala"
network = "mlp:16x1"
actors = 0
envs_per_actor = 4
unroll_length = 16
total_env_steps = {steps}
stop_window = 5
checkpoint_interval_s = 0.01

[space.learning_rate]
type = "float"
low = 1e-4
high = 1e-2
log = true
{more}
"""


def write(directory: Path, more: str = "", steps: int = 800) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "population.toml"
    path.write_text(_FILE.format(more=more, steps=steps))
    return path


def earn(member: Member) -> Outcome:
    """More the nearer the learning rate is to 3e-3, and one member that fails at first."""
    if member.generation == 0 and member.number == 2:
        return Outcome(None, 0, "diverged")
    distance = abs(math.log(float(member.parameters["learning_rate"]) / 3e-3))
    return Outcome(10.0 * member.generation - distance, 200 * (member.generation + 1))


def population(
    directory: Path,
    train: Callable[[Member], Outcome] = earn,
    *,
    members: int = 6,
    generations: int = 4,
    seed: int = 0,
) -> Population:
    made = Population(load_sweep_file(write(directory)), seed, directory, members=members, generations=generations)
    made.train_member = train  # type: ignore[method-assign]
    return made


@given(
    returns=st.lists(st.none() | st.integers(0, 5).map(float), min_size=2, max_size=12).filter(
        lambda r: any(x is not None for x in r)
    ),
    seed=st.integers(0, 1000),
)
def test_the_last_quarter_takes_over_from_the_first(returns: list[float | None], seed: int) -> None:
    parameters = draw(SPACE, len(returns), seed)
    found = evolve(returns, parameters, SPACE, np.random.default_rng(seed))
    selected = max(len(returns) // 4, 1)
    sound = sorted((value for value in returns if value is not None), reverse=True)
    for member, (value, (parent, changed)) in enumerate(zip(returns, found, strict=True)):
        if parent == member:
            assert value is not None and changed == parameters[member]
            continue
        theirs = returns[parent]
        assert theirs is not None and theirs >= sound[min(selected, len(sound)) - 1]
        assert value is None or (theirs > value and sum(v is not None and v < value for v in returns) < selected)
        assert_near(changed, parameters[parent])
    replaced = sum(parent != member for member, (parent, _) in enumerate(found))
    assert replaced <= max(selected, returns.count(None))
    if len(set(sound)) == len(returns):
        assert replaced == selected


def assert_near(after: Mapping[str, object], before: Mapping[str, object]) -> None:
    rate, old = float(str(after["learning_rate"])), float(str(before["learning_rate"]))
    assert any(rate == pytest.approx(min(max(old * factor, 1e-4), 1e-2)) for factor in (0.8, 1.25))
    passes, old_passes = int(str(after["passes"])), int(str(before["passes"]))
    assert 1 <= passes <= 10 and abs(passes - old_passes) <= max(1, round(0.25 * old_passes))
    assert passes != old_passes or old_passes in (1, 10)
    assert float(str(after["lambda_"])) in [pytest.approx(0.8 + 0.05 * i) for i in range(5)]
    assert after["compressor"] in ("fp32", "int8")


def test_values_are_drawn_and_perturbed_within_their_bounds_and_reach_both() -> None:
    generator = np.random.default_rng(0)
    drawn = draw(SPACE, 400, seed=0)
    assert {row["passes"] for row in drawn} == set(range(1, 11))
    assert {round(float(row["lambda_"]), 2) for row in drawn} == {0.8, 0.85, 0.9, 0.95, 1.0}
    assert sum(float(row["learning_rate"]) < 1e-3 for row in drawn) == pytest.approx(200, abs=40)  # of the logarithm
    moved = [perturb({"learning_rate": 1e-3, "passes": 2, "lambda_": 0.9, "compressor": "int8"}, SPACE, generator)
             for _ in range(200)]  # fmt: skip
    assert {row["passes"] for row in moved} == {1, 3}
    assert {round(float(row["learning_rate"]), 6) for row in moved} == {0.0008, 0.00125}
    assert sum(row["compressor"] == "fp32" for row in moved) == pytest.approx(25, abs=15)


def test_members_find_better_parameters_than_any_began_with(tmp_path: Path) -> None:
    found = population(tmp_path, generations=10, seed=2).train()
    assert len(found) == 10 and found[0][0][0].parameters["learning_rate"] == 1e-3, "the base comes first"
    assert found[1][2][0].parent != 2, "a failed member is replaced"

    def best(generation: int) -> float:
        rates = [float(m.parameters["learning_rate"]) for m, o in found[generation] if o.error is None]
        return min(abs(math.log(rate / 3e-3)) for rate in rates)

    assert best(9) < best(0)
    ancestors = lineage(found)
    for generation, (number, parent) in enumerate(zip(ancestors[1:], ancestors, strict=False), 1):
        assert found[generation][number][0].parent == parent


def test_whenever_it_is_interrupted_the_journal_is_the_same(tmp_path: Path) -> None:
    population(tmp_path / "whole", members=3).train()
    expected = (tmp_path / "whole" / JOURNAL).read_bytes()
    for at in range(12):
        left = iter(range(at))

        def interrupted(member: Member, left: Iterator[int] = left) -> Outcome:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return earn(member)

        directory = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            population(directory, interrupted, members=3).train()
        population(directory, members=3).train()
        assert (directory / JOURNAL).read_bytes() == expected, at
    population(tmp_path / "another", members=3, seed=1).train()
    assert (tmp_path / "another" / JOURNAL).read_bytes() != expected


def test_several_commands_share_the_members(tmp_path: Path) -> None:
    trained: list[tuple[str, int]] = []

    begun = threading.Barrier(2)

    def train(member: Member) -> Outcome:
        if threading.get_ident() not in {ident for _, ident in trained}:
            begun.wait()  # One alone could be done before the other starts.
        trained.append((member.name, threading.get_ident()))
        return earn(member)

    both = [threading.Thread(target=population(tmp_path / "both", train).train) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len({name for name, _ in trained}) == len(trained) == 24
    assert len({ident for _, ident in trained}) == 2
    population(tmp_path / "one").train()
    assert (tmp_path / "both" / JOURNAL).read_bytes() == (tmp_path / "one" / JOURNAL).read_bytes()


def test_a_member_that_reaches_the_return_ends_the_population(tmp_path: Path) -> None:
    def train(member: Member) -> Outcome:
        stops = member.generation == 1 and member.number == 3
        return Outcome(500.0, 230) if stops else earn(member)

    found = population(tmp_path, train).train()
    assert len(found) == 2 and lineage(found)[-1] == 3
    assert population(tmp_path, train).train() == found


def test_a_generation_in_which_all_fail_is_told(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="every member of generation 0 failed, the last one with: broken"):
        population(tmp_path, lambda _: Outcome(None, 0, "broken")).train()


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (
            '[space.network]\ntype = "categorical"\nchoices = ["mlp:8x1", "mlp:16x1"]\n',
            {},
            r"\[space.network\].*go with",
        ),
        ('[space.corrector]\ntype = "categorical"\nchoices = ["vtrace", "retrace"]\n', {}, r"space.corrector"),
        ("", {"generations": 20}, "40 environment steps, and a batch 64"),
        ("", {"population": 1}, "nobody to copy from"),
        ("", {"search": SearchOptions(trials=3)}, "--trials: a population has members"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    more: str, options: Mapping[str, object], message: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"population": 4, "search": SearchOptions(), **options}
    values["search"] = SearchOptions(out=tmp_path / "out").over(values["search"])
    with pytest.raises(ConfigError, match=message):
        sweep_population(write(tmp_path, more), **values)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_goes_on_with_another_s_weights_and_its_own_options(tmp_path: Path) -> None:
    config = load_sweep_file(write(tmp_path)).base
    origin = accel.train(config.replace(name="origin", results_dir=tmp_path, stop_at_env_steps=300))
    own = config.replace(learning_rate=0.125, stop_at_env_steps=500)
    run = TrainingRun(own, tmp_path, "heir", origin=tmp_path / "origin", whole=True)
    (tmp_path / "heir" / "checkpoints").mkdir(parents=True)
    (tmp_path / "heir" / "checkpoints" / "step-000000000400.safetensors").write_bytes(b"of an interrupted attempt")
    summary = run.train()
    assert summary.reason == "stop_at_env_steps = 500 reached" and summary.updates > origin.updates
    found = TrainConfig.create(**load_toml(tmp_path / "heir" / "config.toml"))
    assert found.optimiser.learning_rate == 0.125
    records = [json.loads(line) for line in (tmp_path / "heir" / "metrics.jsonl").read_text().splitlines()]
    assert records and all(record["env_steps"] > origin.env_steps for record in records)


@pytest.mark.long
def test_a_killed_population_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    file = write(tmp_path, steps=24_000)
    whole = sweep_population(file, 2, 2, SearchOptions(out=tmp_path / "whole"))
    assert (whole.directory / "population.png").stat().st_size > 10_000
    assert "| 1 | " in (whole.directory / "population.md").read_text()
    assert not list((whole.directory / "runs").glob("generation-000-member-*/checkpoints"))
    assert list(whole.best.glob("checkpoints/*.safetensors"))
    out = tmp_path / "killed"
    arguments = ("--config", file, "--population", 2, "--generations", 2, "--out", out)
    with worker(*arguments) as killed:
        while not list((out / "runs" / "generation-001-member-00" / "checkpoints").glob("step-*012[1-9]*")):
            assert killed.poll() is None, killed.communicate()
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert not (out / "runs" / "generation-001-member-00.json").exists()
    again = sweep_population(file, 2, 2, SearchOptions(out=out))
    assert (out / JOURNAL).read_bytes() == (whole.directory / JOURNAL).read_bytes()
    assert again.best.name == whole.best.name
    shutil.rmtree(out)
