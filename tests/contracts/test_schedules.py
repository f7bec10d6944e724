"""What every schedule promises: it goes by counts, keeps its ratio, and never has both sides wait."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accel
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.learning.schedule import Counts, SamplesPerInsert, Schedule, make_schedule
from tests.mpi.training_runs import TrainingRun, resume_here

RATIO, BATCH, STARTS = 4.0, 32, 100

SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "asynchronous": lambda: Schedule(3),
    "synchronous": lambda: make_schedule(TrainConfig.create(algorithm="a2c")),
    "samples per insert": lambda: SamplesPerInsert(3, RATIO, BATCH, STARTS),
    "samples per insert, below one": lambda: SamplesPerInsert(1, 0.25, BATCH, 0),
    "samples per insert, as configured": lambda: make_schedule(TrainConfig.create(algorithm="dqn")),
}


@dataclass
class Simulation:
    """A learner's loop on a schedule; a store that holds batches (``endless`` = 0) or replays from some step on.

    Attributes:
        endless: steps after which a store has samples for ever; 0: each ``batch`` unrolls are one sample.
    """

    schedule: Schedule
    endless: int
    batch: int = 1
    env_steps: int = 0
    updates: int = 0
    unrolls: int = 0

    def counts(self) -> Counts:
        if self.endless:
            return Counts(self.env_steps, self.updates, int(self.env_steps >= self.endless))
        return Counts(self.env_steps, self.updates, self.unrolls // self.batch - self.updates)

    @property
    def accepts(self) -> bool:
        """The store's part of the answer: a queue takes in no more than a batch."""
        return self.endless > 0 or self.counts().available < 1

    def turn(self, waiting: list[int]) -> bool:
        """One turn, with unrolls of these valid steps on their way; False where nothing was done."""
        before = self.env_steps, self.updates
        while waiting and self.accepts and self.schedule.accepts(self.counts()):
            self.env_steps += waiting.pop(0)
            self.unrolls += 1
        if self.schedule.due(self.counts()):
            self.updates += 1
        return before != (self.env_steps, self.updates)


def simulations(name: str) -> Iterator[Simulation]:
    schedule = SCHEDULES[name]
    # A queue and a ratio, or a replay and none, are what a configuration refuses.
    if name in {"asynchronous", "synchronous"}:
        yield Simulation(schedule(), 0, 1)
        yield Simulation(schedule(), 0, 3)
    else:
        yield Simulation(schedule(), 10)
        yield Simulation(schedule(), 1000)


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_due_without_a_sample_and_everything_is_taken_in(name: str) -> None:
    schedule = SCHEDULES[name]()
    for env_steps in (0, 100, 10**9):
        for updates in (0, 1, 10**6):
            counts = Counts(env_steps, updates, 0)
            assert not schedule.due(counts) and schedule.accepts(counts)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=25)
@given(unrolls=st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_never_do_both_sides_wait(name: str, unrolls: list[int]) -> None:
    """With an unroll on its way, whatever its size, every turn takes it in or updates."""
    for simulation in simulations(name):
        waiting = list(unrolls)
        for _ in range(300_000):
            if not waiting:
                break
            assert simulation.turn(waiting), simulation.counts()
        assert not waiting


@given(
    steps=st.integers(0, 10**6), updates=st.integers(0, 10**6), ratio=st.floats(0.01, 100), batch=st.integers(1, 1000),
    starts=st.integers(0, 10_000),
)  # fmt: skip
def test_one_side_may_always_go_on(steps: int, updates: int, ratio: float, batch: int, starts: int) -> None:
    schedule, counts = SamplesPerInsert(1, ratio, batch, starts), Counts(steps, updates, 1)
    assert schedule.due(counts) or schedule.accepts(counts)


@pytest.mark.parametrize(("ratio", "batch"), [("25", 48), ("25", 96), ("6.4", 100), ("16", 64)])
def test_no_update_is_owed_for_a_rounding(ratio: str, batch: int) -> None:
    schedule = SamplesPerInsert(1, float(ratio), batch, 0)
    for steps in range(3000):
        assert schedule.owed(Counts(steps, 0, 1)) == math.ceil(Fraction(ratio) * steps / batch), steps


@pytest.mark.parametrize("steps", [1, 16, 50])
@pytest.mark.parametrize("slow", ["learner", "actors"])
def test_the_ratio_is_kept_whoever_is_slow(steps: int, slow: str) -> None:
    """Sampled items per inserted one, counted from the start of learning; a slow learner makes actors wait."""
    simulation, waiting = Simulation(SamplesPerInsert(3, RATIO, BATCH, STARTS), 10), list[int]()
    for turn in range(4000):
        if slow == "learner":
            waiting = [steps] * 1000
        elif turn % 10 == 0:
            waiting.append(steps)
        simulation.turn(waiting)
        deserved = RATIO * max(simulation.env_steps - STARTS, 0)
        sampled = simulation.updates * BATCH
        assert sampled < deserved + BATCH
        if slow == "learner":
            assert sampled > deserved - RATIO * (1 + steps) - BATCH
    assert simulation.env_steps > 3 * STARTS
    assert simulation.updates * BATCH > 0.8 * RATIO * (simulation.env_steps - STARTS - 1 - steps)


def test_nothing_is_learned_before_the_start() -> None:
    schedule = SamplesPerInsert(1, RATIO, BATCH, STARTS)
    assert not schedule.due(Counts(STARTS, 0, 1)) and schedule.accepts(Counts(STARTS, 0, 1))
    assert schedule.due(Counts(STARTS + 1, 0, 1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"algorithm": "a2c", "actors": 3, "batch_unrolls": 2}, "one unroll of every actor, 3 in all"),
        ({"algorithm": "impact", "schedule": "synchronous"}, "use --store fifo"),
        ({"algorithm": "a2c", "publish_interval_updates": 2}, "schedule synchronous does not read it"),
        # A replay's samples do not run out: a single process, which steps where nothing is due, would never step.
        ({"algorithm": "dqn", "schedule": "asynchronous"}, "samples-per-insert"),
        ({"algorithm": "module:factory", "store": "replay"}, "samples-per-insert"),
        # A queue takes in no more than a batch, while the schedule waits for more steps before it updates.
        ({"algorithm": "impala", "schedule": "samples-per-insert"}, "asynchronous"),
        ({"algorithm": "ptr-ppo", "schedule": "samples-per-insert"}, r"trajectories.*asynchronous"),
    ],
)
def test_a_schedule_that_does_not_suit_its_store_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainConfig.create(**options)


RATIOS: dict[str, dict[str, object]] = {
    "dqn, replay": {"env": "CartPole-v1", "algorithm": "dqn"},
    "gorila, replay": {"env": "CartPole-v1", "algorithm": "gorila"},
    "r2d2, sequences": {
        "env": "CartPole-v1",
        "algorithm": "r2d2",
        "network": "mlp:8x1+lstm:8",
        "samples_per_insert": 4,
    },
    "td3, replay": {"env": "Pendulum-v1", "algorithm": "td3"},
    "apex": {"env": "CartPole-v1", "algorithm": "apex"},
    "dqn, prioritised": {"env": "CartPole-v1", "algorithm": "dqn", "store": "prioritised"},
    "sac, replay": {"env": "Pendulum-v1", "algorithm": "sac"},
    "d4pg, prioritised": {"env": "Pendulum-v1", "algorithm": "d4pg", "store": "prioritised"},
}


def short_run(path: Path, name: str, **options: object) -> TrainConfig:
    """One that owes an update for every environment step from the 200th on."""
    plain = {"network": "mlp:8x1", "batch_size": 8, "samples_per_insert": 8, "unroll_length": 16} | RATIOS[name]
    ends = {"actors": 0, "envs_per_actor": 2, "total_env_steps": 400, "learning_starts": 200}
    return TrainConfig.create(**(plain | ends | {"results_dir": path, "name": "run"} | options))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", RATIOS)
def test_a_finished_run_has_made_every_update_that_it_owes(name: str, tmp_path: Path) -> None:
    config = short_run(tmp_path, name)
    summary = accel.train(config)
    schedule = make_schedule(config)
    assert summary.updates > 0 == summary.updates_owed
    assert schedule.owed(Counts(summary.env_steps, summary.updates - 1, 1)) == 1
    record = json.loads((Path(summary.path) / "metrics.jsonl").read_text().splitlines()[-1])
    assert (record["updates"], record["updates_owed"]) == (summary.updates, 0)


@pytest.mark.parametrize("goal", [{"stop_at_env_steps": 300}, {"stop_at_return": 5.0, "stop_window": 1}])
def test_so_has_one_that_ends_before_its_steps(goal: dict[str, object], tmp_path: Path) -> None:
    summary = accel.train(short_run(tmp_path, "dqn, replay", total_env_steps=10_000, learning_starts=20, **goal))
    assert "reached" in summary.reason and summary.env_steps < 10_000
    assert summary.updates > 0 == summary.updates_owed


def test_what_time_does_not_allow_is_told_and_made_by_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("accel.learning.loop.OWED_S", 0.0)
        first = accel.train(short_run(tmp_path, "dqn, replay", save_replay=True))
        without = accel.train(short_run(tmp_path / "without", "dqn, replay"))
    with pytest.raises(ConfigError, match=f"{without.updates_owed} updates are owed, and no replay is there"):
        resume_here(Path(without.path), more_env_steps=0)
    assert first.updates_owed > 0
    then = resume_here(Path(first.path), more_env_steps=0)
    assert then.updates_owed == 0 and then.updates == first.updates + first.updates_owed
    assert then.env_steps == first.env_steps


@pytest.mark.mpi
def test_with_actors_every_update_is_made_too(tmp_path: Path) -> None:
    words = ("--algorithm", "sac", "--env", "Pendulum-v1", "--network", "mlp:8x1", "--batch-size", "32")
    ratio = ("--samples-per-insert", "32", "--learning-starts", "100", "--total-env-steps", "2000")
    with TrainingRun(tmp_path, *words, *ratio, "--actors", "2") as job:
        assert job.finish() == 0, job.output
        summary = job.summary()
    assert summary.updates_owed == 0 and summary.updates >= summary.env_steps - 101 > 1800


@pytest.mark.parametrize("algorithm", ["dqn", "apex", "r2d2", "sac", "d4pg", "td3"])
def test_by_default_actors_are_ahead_by_an_unroll_at_most(algorithm: str) -> None:
    """Of those that are taken in: what waits in the transport is bounded by its buffers."""
    config = TrainConfig.create(algorithm=algorithm)
    schedule, unroll = make_schedule(config), 64
    steps_per_update = config.store.sampled_steps(config.acting.unroll_length) / config.schedule.samples_per_insert
    simulation = Simulation(schedule, 10)
    while simulation.env_steps < 3000:
        assert simulation.turn([unroll] * 1000)
        assert schedule.owed(simulation.counts()) * steps_per_update <= unroll + steps_per_update


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("make", [Schedule, lambda interval: SamplesPerInsert(interval, RATIO, BATCH, 0)])
def test_policies_are_published_at_their_interval(make: Callable[[int], Schedule], interval: int) -> None:
    schedule = make(interval)
    assert [u for u in range(1, 10) if schedule.publishes(Counts(0, u, 0))] == list(range(interval, 10, interval))


@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_counts_have_equal_answers(name: str) -> None:
    """Whatever was asked before, so that a resumed run goes on as it would have."""
    asked, fresh = SCHEDULES[name](), SCHEDULES[name]()
    for k in range(50):
        counts = Counts(37 * k, k, 1)
        asked.due(Counts(k, 50 - k, 1)), asked.accepts(Counts(k, k, 0))
        assert asked.due(counts) == fresh.due(counts) and asked.accepts(counts) == fresh.accepts(counts)
        assert asked.publishes(counts) == fresh.publishes(counts)
