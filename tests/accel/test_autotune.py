"""Steering on real parts: schedules, assignments and what the tuner is told; and runs with a ruinous level."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from accel.actor import Actor
from accel.autotune import TunedSteering, make_steering
from accel.batch import Batcher
from accel.compression_choice import parse_choice
from accel.config import TrainConfig
from accel.errors import ConfigError
from accel.job import Job, check_config
from accel.launch import train
from accel.learner import Learner
from accel.loading import load_run
from accel.mismatch_sampling import MismatchSampler
from accel.publisher import Publisher
from accel.session import welcome
from accel.trajectory import UnrollLayout
from accel.transport.local import LocalTransport
from monitor.decisions import Decision, read_decisions
from monitor.timers import PhaseTimes
from tests.contracts.ranks import Job as RankJob


class Rig:
    """One learner and real actors, taken in turns, without a training loop."""

    def __init__(self, path: Path, compressor: str, actors: int = 1, envs: int = 8, **changes: object) -> None:
        torch.set_num_threads(1)
        values = {"network": "mlp:32x2", "unroll_length": 8, "calibration_size": 64, **changes}
        self.config = check_config(
            TrainConfig.create(compressor=compressor, actors=actors, envs_per_actor=envs, **values)
        )
        choice = parse_choice(self.config.compressor, self.config.network)
        transport = LocalTransport(actors)
        self.transport = transport.learner
        self.transport.welcome(welcome(self.config, 0))
        self.ends = [transport.actor(index) for index in range(actors)]
        self.actors = [Actor(end.welcome(0.0), end) for end in self.ends]
        spec = self.actors[0].spec
        self.learner = Learner(self.config, spec, torch.device("cpu"))
        self.layout = UnrollLayout(spec, 8, envs, self.learner.network.state_shapes)
        self.publisher = Publisher(self.config, self.learner.network, levels=choice.levels)
        self.sampler = MismatchSampler(self.config, self.learner.network, self.publisher.schemes, time_share=1e6)
        self.steering = make_steering(choice, self.config, self.publisher, self.transport, self.sampler, path)
        self.batcher = Batcher(spec, self.learner.device)
        self.version = 0
        self.schemes: list[set[str]] = []
        self.transport.configure(self.layout.nbytes)
        self.publish()
        for actor in self.actors:
            actor.start()

    def publish(self) -> None:
        policies = self.steering.policies(self.publisher.payloads())
        if policies:
            self.transport.publish(self.version, policies)
            self.sampler.published(self.version)

    def turn(self, *, looks: bool = True) -> None:
        """Every actor sends one unroll, the steering has a look unless told not to, the next version is published."""
        acted = set()
        for actor in self.actors:
            actor.step()
            arrival = self.transport.receive()
            assert arrival is not None
            unroll = self.layout.view(arrival.buffer)
            acted |= {self.publisher.schemes[i] for i in np.unique(unroll["scheme_id"])}
            self.steering.admit(arrival.actor, unroll)
            batch = self.batcher.build([unroll])
            self.sampler.sample([unroll], batch)
            self.publisher.observe(batch)
            self.transport.release(arrival)
        self.schemes.append(acted)
        for index, message in self.transport.messages():
            self.steering.hear(index, message)
        self.version += 1
        if looks:
            times = PhaseTimes.from_seconds(("wait", "work"), np.array([1e-3, 1e-3]) * self.version)
            self.steering.step(self.version * 1000, times)
        self.publish()

    def step_until(self, stage: str) -> None:
        """Turns until the tuner is there."""
        assert isinstance(self.steering, TunedSteering)
        for _ in range(2000):
            if self.steering.tuner.stage == stage:
                return
            self.turn()
        pytest.fail(f"the tuner never came to {stage}, but is at {self.steering.tuner.stage}")


def _exaggerate(module: torch.nn.Module, factor: float) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "weight" in name:
                parameter.mul_(factor)


def test_annealing_follows_its_schedule_and_logs_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "anneal(fp32@0;int8@3000;fp32@8000)")
    for _ in range(12):
        rig.turn()
    flat = [next(iter(schemes)) for schemes in rig.schemes]
    assert flat == ["fp32"] * 3 + ["int8"] * 5 + ["fp32"] * 4
    decisions, _ = read_decisions(tmp_path)
    assert [(d.kind, d.before, d.after, d.env_steps, d.actor) for d in decisions] == [
        ("anneal", "fp32", "int8", 3000, None),
        ("anneal", "int8", "fp32", 8000, None),
    ]
    assert [d.reason.rpartition(" step ")[2] for d in decisions] == ["3000 on", "8000 on"]


def test_annealing_goes_on_at_the_level_of_the_steps_learned_from(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "anneal(fp32@0;int8@3000;fp32@8000)")
    choice = parse_choice(rig.config.compressor, rig.config.network)
    steering = make_steering(choice, rig.config, rig.publisher, rig.transport, rig.sampler, tmp_path, 5000)
    rig.publisher.payloads()
    assert rig.publisher.replaced == {"int8"}, "it is to be published, and fp32 stands in until it is calibrated"
    times = PhaseTimes.from_seconds(("wait", "work"), np.zeros(2))
    for env_steps, level, lines in ((5000, "int8", 0), (7999, "int8", 0), (8000, "fp32", 1), (9000, "fp32", 1)):
        steering.step(env_steps, times)
        assert steering.metrics() == {"level": level}
        assert len(read_decisions(tmp_path)[0]) == lines


@pytest.mark.parametrize(("actors", "envs"), [(1, 8), (2, 4)])
def test_tuner_surveys_and_tries_on_real_actors(tmp_path: Path, actors: int, envs: int) -> None:
    rig = Rig(tmp_path, "auto(fp32;int8)", actors=actors, envs=envs, calibration_size=200)
    steering = rig.steering
    assert isinstance(steering, TunedSteering)
    seen = []
    for _ in range(200):
        rig.turn()
        seen.append(steering.tuner.stage)
        if steering.tuner.stage == "hold":
            break
    assert seen[0] == "wait" and "survey" in seen
    # The levels were timed where they act, on every environment, before any acted.
    assert all(schemes == {"fp32"} for schemes in rig.schemes[: seen.index("survey") + 1])
    decisions, _ = read_decisions(tmp_path)
    assert decisions[0].kind == "survey"
    assert decisions[0].after == f"fp32:{envs};int8:0"
    figures = decisions[1].figures
    assert isinstance(figures["rate/int8"], float) and isinstance(figures["rate/fp32"], float)


def test_both_sides_of_a_trial_act_at_once_and_are_measured(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "auto(fp32;int8)", actors=2, envs=4)
    steering = rig.steering
    assert isinstance(steering, TunedSteering)
    while steering.tuner.stage in {"wait", "survey"}:
        rig.turn()
    steering.tuner.candidate, steering.tuner.stage = "int8", "trial"
    steering.tuner.window += 1
    for _ in range(30):
        rig.turn()
        if steering.tuner.stage != "trial":
            break
        assert steering._last is not None
        if all(steering._last.levels[level].samples for level in ("fp32", "int8")):
            break
    assert {"fp32", "int8"} in rig.schemes
    assert steering._last is not None
    measured = steering._last.levels["int8"]
    assert measured.ess is not None and measured.ess > 0.9
    assert measured.compression_quality is not None and measured.alarms == ()


def test_a_level_that_fails_its_first_checks_is_surveyed_again_later(tmp_path: Path) -> None:
    pruned = "prune(0.95)"
    rig = Rig(tmp_path, f"auto(fp32;int8;{pruned})", max_publish_kl=2e-3, check_interval_updates=4, seed=0)
    steering, generator = rig.steering, torch.Generator().manual_seed(0)
    assert isinstance(steering, TunedSteering)
    head = rig.learner.network.policy_head
    with torch.no_grad():  # a policy so bent and decided that no pruned one comes near
        for name, parameter in rig.learner.network.torso.named_parameters():
            if "weight" in name:
                parameter.mul_(5.0)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        _exaggerate(head, 300.0)
    for _ in range(500):
        rig.turn(looks=False)
        if rig.publisher.offers("int8") and rig.publisher._bound[pruned].figures.kept_back:
            break
    assert steering.tuner.stage == "wait" and not rig.publisher.offers(pruned)
    steering.tuner._options = dataclasses.replace(steering.tuner._options, patience=0.0)
    rig.step_until("survey")
    steering.tuner._options = dataclasses.replace(steering.tuner._options, patience=float("inf"), gain=1e9)
    assert {level for level, _ in steering.tuner.assignments([0])[0]} == {"fp32", "int8"}
    assert rig.publisher.offers(pruned), "it may be tried again"
    rig.step_until("hold")  # a survey does not wait for what it did not ask for
    assert steering.metrics().get(f"unblocked_rate/{pruned}") is None
    _exaggerate(head, 1e-2)
    steering.tuner._survey_at = steering.tuner._hold_until = 0.0
    rig.step_until("survey")
    assert {level for level, _ in steering.tuner.assignments([0])[0]} == {"fp32", "int8", pruned}
    rig.step_until("hold")  # fp32 stands in at first, while channels are chosen anew, and is not timed in its stead
    assert isinstance(steering.metrics()[f"unblocked_rate/{pruned}"], float)


def test_an_actor_left_with_one_environment_goes_back_to_full_precision(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "auto(fp32;int8)", actors=2, envs=1)
    steering = rig.steering
    assert isinstance(steering, TunedSteering)
    while steering.tuner.stage in {"wait", "survey"}:
        rig.turn()
    steering.tuner.incumbent, steering.tuner.stage = "int8", "hold"
    steering.tuner._hold_until = float("inf")
    steering.tuner.window += 1
    rig.turn()
    rig.turn()
    assert rig.schemes[-1] == {"int8"}
    rig.ends[1].close()
    del rig.actors[1]
    steering.lose(1)
    for _ in range(3):
        rig.turn()
    assert rig.schemes[-1] == {"fp32"}


def test_a_level_that_does_not_suit_the_network_fails_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not suit network"):
        Rig(tmp_path, "auto(fp32;distill(16x1))", network="mlp:32x1+lstm:8")
    with pytest.raises(ConfigError, match="does not suit network"):
        Rig(tmp_path, "anneal(fp32@0;distill(16x1)@1000000)", network="mlp:32x1+lstm:8")


def test_auto_needs_two_environments() -> None:
    with pytest.raises(ConfigError, match="two environments"):
        check_config(TrainConfig.create(compressor="auto", actors=1, envs_per_actor=1))
    checked = check_config(TrainConfig.create(compressor="auto", actors=2, envs_per_actor=1))
    assert checked.compressor == "auto(fp32;int8)"


def _quick(path: Path, name: str, compressor: str, **changes: object) -> TrainConfig:
    """CartPole, small enough to be learned in seconds on one core."""
    values: dict[str, object] = {
        "envs_per_actor": 16,
        "unroll_length": 32,
        "unrolls_in_flight": 1,
        "network": "mlp:256x2",
        "separate_value_torso": False,
        "lambda_": 0.95,
        "reward_scale": 0.05,
        "learning_rate": 1.5e-3,
        "stop_at_return": 300.0,
        "max_seconds": 60.0,
        "total_env_steps": 5_000_000,
        "learner_threads": 1,
        "max_publish_kl": None,
        "log_interval_s": 0.25,
    }
    return check_config(
        TrainConfig.create(results_dir=path, name=name, compressor=compressor, seed=0, **{**values, **changes})
    )


def _left(decisions: list[Decision], level: str) -> Decision:
    """The decision by which a level was left after it was tried."""
    tried = next(i for i, d in enumerate(decisions) if d.kind == "trial" and level in d.after)
    return next(d for d in decisions[tried:] if d.kind in {"reject", "fallback"})


@pytest.mark.learning
def test_one_process_learns_with_whatever_level_the_tuner_takes(tmp_path: Path) -> None:
    """The tuner goes by the clock: the run may end before the level is tried, while it is, or on it."""
    level = "prune(0.95)"
    summary = train(_quick(tmp_path, "run", f"auto(fp32;{level})", actors=0, learning_rate=5e-4))
    assert summary.return_mean is not None and summary.return_mean >= 300.0
    decisions, damaged = read_decisions(tmp_path / "run")
    assert damaged == 0
    acted = "fp32"
    for decision in decisions:
        if decision.kind == "accept":
            assert "effective experience" in decision.reason and float(str(decision.figures["return_z"])) > -3.0
            acted = level
        elif decision.kind == "fallback":
            acted = "fp32"
    assert summary.scheme == load_run(tmp_path / "run").scheme == acted
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("compression_ess/fp32" in record for record in records)
    # Its time adds to the actor's, so that it counts here as well.
    assert isinstance(records[-1]["learner_rate"], float)
    assert records[-1]["level"] == acted


def _actor_bound(path: Path, name: str, compressor: str, **changes: object) -> TrainConfig:
    """Actors that spend most of their time on a policy which costs the learner little; at most, a return of 10."""
    values: dict[str, object] = {
        "env": "tests.environments.learnable:Targets-v0",
        "actors": 2,
        "envs_per_actor": 1,
        "unroll_length": 128,
        "batch_unrolls": 2,
        "network": "tests.accel.frozen_encoders:frozen",
        "calibration_size": 128,
        "stop_at_return": None,
        "total_env_steps": 25_000,
        "max_seconds": 90.0,
        "learning_rate": 3e-4,
        "entropy_cost": 0.03,
        **changes,
    }
    return _quick(path, name, compressor, **values)


def _run_job(config: TrainConfig) -> None:
    with RankJob(config.actors + 1, ["-m", "tests.accel.train_rank", Job(config).to_text()], limit_s=110.0) as job:
        outcome = job.outcome()
    assert outcome.code == 0, outcome.errors


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.mpi
@pytest.mark.learning
@pytest.mark.timeout(240)
def test_a_ruinous_level_is_tried_found_and_left_where_actors_are_the_bottleneck(tmp_path: Path) -> None:
    """Nothing forces the trial: 8 bits promise more steps, default thresholds apply, and outliers make them useless."""
    network = "tests.accel.frozen_encoders:frozen_with_outliers"
    for name, compressor in (("tuned", "auto(fp32;int8)"), ("plain", "fp32")):
        _run_job(_actor_bound(tmp_path, name, compressor, network=network))
    decisions, _ = read_decisions(tmp_path / "tuned")
    tried = next(d for d in decisions if d.kind == "trial")
    assert tried.figures["bottleneck"] == "policy" and "promises +" in tried.reason
    left = _left(decisions, "int8")
    assert "ruins returns" in left.reason or "out of bounds" in left.reason or "loses return" in left.reason
    # Whole actors were compared: one on the level, one beside it.
    assert any(d.actor is not None and d.after == "int8" for d in decisions)
    tuned, plain = (_records(tmp_path / name)[-1] for name in ("tuned", "plain"))
    assert tuned["level"] == "fp32"
    assert tuned["return_mean"] > plain["return_mean"] - 1.0 > 7.0


@pytest.mark.mpi
@pytest.mark.learning
@pytest.mark.timeout(240)
def test_int8_is_taken_and_kept_where_actors_are_the_bottleneck(tmp_path: Path) -> None:
    _run_job(_actor_bound(tmp_path, "run", "auto(fp32;int8)", total_env_steps=45_000))
    decisions, _ = read_decisions(tmp_path / "run")
    taken = next(d for d in decisions if d.kind == "accept")
    assert (taken.before, taken.after) == ("fp32", "int8")
    assert "effective experience" in taken.reason and "concurrent" in taken.reason
    records = _records(tmp_path / "run")
    assert records[-1]["level"] == "int8"
    assert records[-1]["return_mean"] > 9.0
    # What is consumed since, against the most that actors in full precision could have sent.
    since = [r["env_steps_per_s"] for r in records if r["level"] == "int8" and r["tuner_stage"] == "hold"]
    assert median(since) > taken.figures["rate/fp32"]


@pytest.mark.mpi
def test_nothing_is_compressed_where_the_environment_is_the_bottleneck(tmp_path: Path) -> None:
    laborious = "tests.environments.troubled:Laborious"
    _run_job(
        _actor_bound(
            tmp_path, "run", "auto(fp32;int8)", network="mlp:256x2", wrapper=(laborious,), total_env_steps=3000
        )
    )
    decisions, _ = read_decisions(tmp_path / "run")
    held = next(d for d in decisions if d.kind == "hold")
    assert held.after == "fp32" and held.figures["bottleneck"] == "environment"
    assert "the environment is the bottleneck" in held.reason
    assert all(d.kind in {"survey", "hold"} for d in decisions)
    assert _records(tmp_path / "run")[-1]["level"] == "fp32"
