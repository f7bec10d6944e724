"""Steering on real parts: schedules, assignments and what the tuner is told; and runs with a ruinous level."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel.acting.joining import join
from accel.algorithms.catalogue import agree, make_algorithm
from accel.config import TrainConfig
from accel.config.actor import ActorConfig
from accel.experience.batch import Batcher
from accel.experience.unroll import ACTOR_PHASES, Unroll
from accel.monitor.decisions import Decision, read_decisions
from accel.publishing.level import INTERVALS, Intervals
from accel.publishing.publisher import Publisher
from accel.runs.job import check_config
from accel.transport.local import LocalActor, LocalLearner
from accel.tuning.autotune import AGAIN_S, KEEP_PAIRS, LEAST_GAIN, PREPARE_S, TRIAL_PAIRS, TunedSteering, make_steering
from accel.tuning.choice import parse_choice
from accel.tuning.mismatch_sampling import MismatchSampler
from tests.accel.publishing.live_policies import payload_of, published
from tests.mpi.training_runs import TrainingRun

TURN_S = 0.1
WORK_S = 0.001


class Rig:
    """One learner and real actors, taken in turns, without a training loop; every turn lasts ``turn_s`` for the tuner.

    Attributes:
        speeds: steps of a turn at each level, of 1,000. policy_share: of an actor's time; None: as it is.
    """

    def __init__(
        self,
        path: Path,
        compressor: str,
        actors: int = 1,
        envs: int = 8,
        intervals: Intervals = INTERVALS,
        **changes: object,
    ) -> None:
        torch.set_num_threads(1)
        values = {"network": "mlp:32x2", "unroll_length": 8, "calibration_size": 64, **changes}
        self.config = check_config(
            TrainConfig.create(compressor=compressor, actors=actors, envs_per_actor=envs, **values)
        )
        choice = parse_choice(self.config.compression.compressor)
        self.transport = LocalLearner(actors)
        schemes = tuple(dict.fromkeys(("fp32", *choice.levels)))
        told = ActorConfig.of(self.config, schemes=schemes)
        self.transport.welcome(told.to_json())
        self.actors = [join(LocalActor(self.transport, index), 0.0) for index in range(actors)]
        spec = self.actors[0].spec
        self.algorithm = make_algorithm(self.config, spec, torch.device("cpu"))
        agreement, self.layout = agree(self.config, self.algorithm)
        self.transport.welcome(agreement.to_json())
        self.publisher = Publisher(self.config, self.algorithm.network, levels=choice.levels, intervals=intervals)
        self.now_s, self.turn_s, self.worked_s, self.env_steps = 0.0, TURN_S, 0.0, 0
        self.speeds: dict[str, float] = {}
        self.policy_share: float | None = None
        self.learned, self.teaches, self.episodes_end = 0.0, {}, True
        batcher, clock = Batcher(spec, torch.device("cpu")), self.clock
        self.sampler = MismatchSampler(self.config, self.algorithm, self.publisher.schemes, batcher, clock=clock)
        parts = (self.publisher, self.transport, self.sampler)
        self.steering = make_steering(choice, self.config, *parts, path, clock=clock)
        self.version = 0
        self.schemes: list[set[str]] = []
        self.transport.configure(self.layout.nbytes)
        self.publish()
        for actor in self.actors:
            actor.start()

    def clock(self) -> float:
        """The tuner's and the sampler's time, seconds."""
        return self.now_s

    def close(self) -> None:
        """End the publisher's worker and the environments."""
        self.publisher.close()
        for actor in self.actors:
            actor.close()

    def rest(self) -> None:
        """Until the publisher's worker is done, so that what it did is taken over in the same turn at any speed."""
        while self.publisher.busy:
            time.sleep(0.001)

    def publish(self) -> None:
        self.transport.publish(self.version, payload_of(self.publisher))
        self.sampler.published(self.version)

    def turn(self) -> None:
        """Every actor sends one unroll, the steering has a look, the next version is published."""
        acted = set()
        for actor in self.actors:
            actor.step()
            arrival = self.transport.receive()
            assert arrival is not None
            unroll = self.layout.view(arrival.buffer)
            acted |= {self.publisher.schemes[i] for i in np.unique(unroll["scheme_id"])}
            self._pay(unroll, max(acted))
            self.steering.admit(arrival.actor, unroll)
            self.sampler.observe(unroll)
            self.publisher.observe(unroll, self.layout)
            self.publisher.after_update()
            self.rest()
            self.transport.release(arrival)
        self.schemes.append(acted)
        self.transport.messages()
        self.version += 1
        self.now_s += self.turn_s
        self.env_steps += round(1000 * self.speeds.get(max(acted), 1.0))
        self.worked_s += WORK_S
        waited_s = max(self.now_s - self.worked_s, 0.0)
        self.steering.step(self.env_steps, {"wait": waited_s, "work": self.worked_s})
        self.rest()
        self.publish()

    def _pay(self, unroll: Unroll, level: str) -> None:
        """Every environment ends an episode in every unroll, with the return that was learned until now."""
        if self.policy_share is not None:
            unroll["timings_s"][...] = 0.0
            unroll["timings_s"][ACTOR_PHASES.index("policy")] = self.policy_share
            unroll["timings_s"][ACTOR_PHASES.index("env")] = 1.0 - self.policy_share
        if not self.episodes_end:
            unroll["episode_length"][...] = 0
        elif self.teaches:
            self.learned += self.teaches[level] / len(self.actors)
            unroll["episode_length"][...] = 0
            unroll["episode_length"][-1], unroll["episode_return"][-1] = 8, self.learned

    def turn_until(self, reached: Callable[[], object], what: str, turns: int = 500) -> None:
        """Turns until something is so."""
        for _ in range(turns):
            if reached():
                return
            self.turn()
        pytest.fail(f"never: {what}")


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes rigs that log into ``tmp_path`` and are closed at the end."""
    with ExitStack() as stack:

        def make(compressor: str, **changes: Any) -> Rig:
            rig = Rig(tmp_path, compressor, **changes)
            stack.callback(rig.close)
            return rig

        yield make


def _exaggerate(module: torch.nn.Module, factor: float) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "weight" in name:
                parameter.mul_(factor)


def _decided(path: Path, kind: str) -> list[Decision]:
    return [decision for decision in read_decisions(path)[0] if decision.kind == kind]


@pytest.mark.parametrize(("actors", "envs"), [(1, 1), (1, 8), (2, 4)])
def test_a_level_is_tried_in_a_pair_of_blocks_and_then_all_actors_have_it(
    make_rig: Callable[..., Rig], tmp_path: Path, actors: int, envs: int
) -> None:
    rig = make_rig("auto(fp32;int8)", actors=actors, envs=envs)
    taken = _take(rig, tmp_path, 2.0)
    assert taken.reason.startswith("int8: 2.00 times as many steps a second as fp32") and taken.figures["pairs"] == 1
    assert isinstance(taken.figures["kl"], float)
    rig.turn_until(lambda: rig.schemes[-1] == {"int8"}, "every actor acts with int8")
    assert rig.steering.metrics()["level"] == "int8"


def _take(rig: Rig, path: Path, speed: float = 2.0) -> Decision:
    """Have int8 taken, as it brings so many times the steps."""
    rig.speeds = {"fp32": 1.0, "int8": speed}
    rig.turn_until(lambda: _decided(path, "take"), "int8 is taken")
    return _decided(path, "take")[0]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("speed", "pairs"), [(0.5, 1), (1.0, TRIAL_PAIRS)], ids=["slower", "as fast"])
def test_a_level_that_brings_nothing_is_tried_again_later(
    make_rig: Callable[..., Rig], tmp_path: Path, speed: float, pairs: int
) -> None:
    rig = make_rig("auto(fp32;int8)")
    rig.speeds = {"fp32": 1.0, "int8": speed}
    rig.turn_until(lambda: _decided(tmp_path, "hold"), "int8 is tried", turns=1_000)
    (held,) = _decided(tmp_path, "hold")
    assert held.reason.startswith(f"int8: {speed:.2f} times as many steps") and held.reason.endswith(": fp32 kept")
    assert held.figures["pairs"] == pairs
    begun, began_s = len(rig.schemes), rig.now_s
    rig.turn_until(lambda: rig.schemes[-1] == {"int8"} and rig.now_s > began_s + 1.0, "again", turns=1_000)
    assert rig.now_s >= began_s + AGAIN_S
    assert rig.steering.metrics()["level"] == "fp32" and begun < len(rig.schemes)


@pytest.mark.slow
def test_levels_are_tried_in_turn_and_a_coarser_one_must_bring_more(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig("auto(fp32;int8;prune(0.5);prune(0.9))")
    rig.policy_share = 0.5
    rig.speeds = {"fp32": 1.0, "int8": 1.5, "prune(0.5)": 1.5, "prune(0.9)": 2.0}
    rig.turn_until(lambda: len(read_decisions(tmp_path)[0]) >= 3, "all three are tried", turns=2_000)
    decisions = [(d.kind, d.after) for d in read_decisions(tmp_path)[0] if d.kind != "keep"]
    assert decisions[:3] == [("take", "int8"), ("hold", "int8"), ("take", "prune(0.9)")]
    (held, *_) = _decided(tmp_path, "hold")
    assert held.reason.endswith(", int8 1.50 times: int8 kept"), "what is kept has a number too"


def test_a_run_that_takes_a_second_is_left_alone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("auto(fp32;int8)", calibration_size=16)
    prepared_s: float | None = None
    for _ in range(int(3.0 / TURN_S)):
        rig.turn()
        if prepared_s is None and rig.publisher.offers("int8"):
            prepared_s = rig.now_s
    assert prepared_s is not None and prepared_s > PREPARE_S


@pytest.mark.slow
def test_a_level_is_prepared_only_where_a_faster_policy_could_pay(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    """Pruning takes seconds of the learner's cores; int8, which does not, is prepared anyway."""
    rig = make_rig("auto(fp32;int8;prune(0.5)+int8)")
    rig.policy_share = 0.2
    rig.turn_until(lambda: read_decisions(tmp_path)[0], "int8 is tried", turns=1_000)
    for _ in range(20):
        rig.turn()
    assert rig.publisher.offers("int8") and not rig.publisher.offers("prune(0.5)+int8")
    rig.policy_share = 0.5
    rig.turn_until(lambda: rig.publisher.offers("prune(0.5)+int8"), "the pruned level is prepared")


@pytest.mark.slow
def test_a_level_is_compared_with_full_precision_in_blocks(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig("auto(fp32;int8)", actors=2, envs=2)
    _take(rig, tmp_path)
    rig.turn_s = 1.0
    begun = len(rig.schemes)
    rig.turn_until(lambda: _decided(tmp_path, "keep"), "three pairs are compared", turns=1_000)
    (kept,) = _decided(tmp_path, "keep")
    assert kept.reason.startswith("int8: 2.0") and "times as many steps a second as fp32" in kept.reason
    assert kept.figures["pairs"] == 1 + KEEP_PAIRS
    for name in ("steps_per_s/int8", "steps_per_s/fp32", "effective_share/int8", "kl", "gain_evidence_worse"):
        assert isinstance(kept.figures[name], float)
    assert rig.steering.metrics()["tuning/speed"] == kept.figures["speed"]
    acted = rig.schemes[begun:]
    share = sum(schemes == {"fp32"} for schemes in acted) / len(acted)
    assert 0.0 < share < 0.3 and sum(len(schemes) > 1 for schemes in acted) == 0, "all act with one level"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("speeds", "teaches", "reason"),
    [
        ({"fp32": 1.0, "int8": 0.8}, {}, "int8: 0.8"),
        (
            {"fp32": 1.0, "int8": 3.0},
            {"fp32": 1.0, "int8": 0.75},
            "int8: returns rise by ",
        ),
    ],
    ids=["slower", "teaches less"],
)
def test_a_level_that_loses_is_left(
    make_rig: Callable[..., Rig], tmp_path: Path, speeds: dict[str, float], teaches: dict[str, float], reason: str
) -> None:
    rig = make_rig("auto(fp32;int8)", actors=1, envs=2)
    rig.teaches = teaches
    _take(rig, tmp_path, 3.0)
    rig.speeds, rig.turn_s = speeds, 1.0
    rig.turn_until(lambda: _decided(tmp_path, "leave"), "int8 is left", turns=2_000)
    (left,) = _decided(tmp_path, "leave")
    assert left.reason.startswith(reason) and left.reason.endswith(": left")
    rig.turn_until(lambda: rig.schemes[-1] == {"fp32"}, "every actor acts with fp32")


def test_learning_is_watched_no_longer_where_no_episodes_end(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig("auto(fp32;int8)", actors=1, envs=1)
    rig.episodes_end = False
    _take(rig, tmp_path, 3.0)
    rig.turn_s = 5.0
    for _ in range(100):
        rig.turn()
    shares = [sum(s == {"fp32"} for s in acted) / len(acted) for acted in (rig.schemes[-76:-44], rig.schemes[-32:])]
    assert shares[0] > 0.2 and shares[1] < 0.1, "three pairs, and then what costs few steps"


def test_a_level_that_fails_its_checks_never_acts(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig("auto(fp32;int8)", max_publish_kl=1e-7)
    _exaggerate(rig.algorithm.network.policy_head, 20.0)
    rig.turn_until(lambda: rig.publisher.metrics().get("withheld/int8"), "int8 is tried")
    for _ in range(20):
        rig.turn()
    assert all(schemes == {"fp32"} for schemes in rig.schemes)
    assert not _decided(tmp_path, "take")


def test_an_alarm_has_ranges_widened_before_the_level_is_left(
    make_rig: Callable[..., Rig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights that grow between two checks leave the ranges that int8 was calibrated with."""
    rare = Intervals(drift=100_000, calibration=100_000)
    rig = make_rig("auto(fp32;int8)", intervals=rare, max_publish_kl=1e9, network="mlp:64x2", activation="relu")
    rig.turn_s = TURN_S / 2
    _exaggerate(rig.algorithm.network.policy_head, 20.0)
    _take(rig, tmp_path)
    rig.turn_until(lambda: rig.schemes[-1] == {"int8"}, "int8 acts")
    for _ in range(40):  # past the look for drift after 128 updates; the next is after 256
        rig.turn()
    before = rig.publisher.metrics()["drifted_activations/int8"]
    with caplog.at_level(logging.INFO, "accel"):
        _exaggerate(rig.algorithm.network.torso, 20.0)

        def alarmed() -> bool:
            return "its ranges are checked" in caplog.text

        rig.turn_until(alarmed, "the alarm is raised")
    for _ in range(60):
        rig.turn()
    assert rig.publisher.metrics()["drifted_activations/int8"] > before
    assert not _decided(tmp_path, "leave")


def test_an_alarm_that_wider_ranges_do_not_end_is_final_however_rare_samples_are(
    make_rig: Callable[..., Rig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One unit's activations are so large that beside them int8 has no steps left for those that decide."""
    rig = make_rig("auto(fp32;int8)", max_publish_kl=1e9, network="mlp:64x2", activation="relu")
    _take(rig, tmp_path)
    rig.turn_until(lambda: rig.schemes[-1] == {"int8"}, "int8 acts")
    with caplog.at_level(logging.INFO, "accel"):
        _exaggerate(rig.algorithm.network.policy_head, 5e4)
        with torch.no_grad():
            *_, last = (m for m in rig.algorithm.network.torso.modules() if isinstance(m, torch.nn.Linear))
            last.bias[0] = 1e4
            rig.algorithm.network.policy_head.weight[:, 0] = 0.0

        def left() -> bool:
            rig.now_s += 40.0
            return bool(_decided(tmp_path, "leave"))

        rig.turn_until(left, "the level is left")
    (decision,) = _decided(tmp_path, "leave")
    assert decision.reason.startswith("int8: mismatch alarm") and "its ranges are checked" in caplog.text
    rig.turn_until(lambda: rig.schemes[-1] == {"fp32"}, "full precision acts")


def test_auto_drops_a_level_that_does_not_suit_the_network(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig("auto(fp32;distill(16x1);int8)", network="mlp:32x1+lstm:8")
    assert isinstance(rig.steering, TunedSteering) and rig.steering.levels == ("fp32", "int8")
    (line,) = [record.message for record in caplog.records if "is not used" in record.message]
    assert line.startswith("distill(16x1) is not used: compressor 'distill(16x1)' does not suit network")


def test_auto_without_a_second_level_stays_at_full_precision(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("auto(fp32;distill(16x1))", network="mlp:32x1+lstm:8")
    assert not isinstance(rig.steering, TunedSteering)
    assert published(rig.publisher) == "fp32"


def _level_after(decisions: list[Decision], env_steps: float = math.inf) -> str:
    """The level in use once all is decided that was until so many steps."""
    changes = [d.after for d in decisions if d.kind in {"take", "leave"} and d.env_steps <= env_steps]
    return changes[-1] if changes else "fp32"


def _read_run(path: Path) -> list[Decision]:
    """The decisions of a run that has ended: whole, in order, and of one mind with its records about the level."""
    decisions, damaged = read_decisions(path)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert damaged == 0
    for log in ([d.env_steps for d in decisions], [record["env_steps"] for record in records]):
        assert log == sorted(log)
    for record in records:
        # One of as many steps as a decision was written before or after it.
        steps = record["env_steps"]
        assert record["level"] in {_level_after(decisions, steps - 1), _level_after(decisions, steps)}
    return decisions


ACTOR_BOUND = (
    "--env", "tests.environments.learnable:Targets-v0", "--wrapper", "tests.environments.troubled:Leisurely",
    "--actors", "2", "--envs-per-actor", "1", "--unroll-length", "32", "--batch-unrolls", "8",
    "--unrolls-in-flight", "1", "--publish-interval-updates", "4",
    "--network", "tests.accel.exporting.frozen_encoders:frozen",
    "--separate-value-torso", "False", "--calibration-size", "128", "--max-publish-kl", "none", "--lambda", "0.95",
    "--reward-scale", "0.05", "--learning-rate", "3e-4", "--entropy-cost", "0.03", "--learner-threads", "1",
    "--total-env-steps", "1000000000", "--max-seconds", "3600", "--log-interval-s", "0.5",
)  # fmt: skip
"""Actors that spend much of their time on a policy which costs the learner little; at most, a return of 10. The test
ends the run; an hour is for one whose test was killed."""
LEARNED = 7.5
"""Far above the return of random actions, 10/3; 10 at most."""

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux, whose /proc tells ranks apart")


@linux
@pytest.mark.mpi
@pytest.mark.learning
def test_int8_is_taken_and_kept_where_actors_are_the_bottleneck(tmp_path: Path) -> None:
    with TrainingRun(tmp_path, *ACTOR_BOUND, "--compressor", "auto(fp32;int8)") as run:
        run.wait_for(lambda: _decided(run.path, "take"), "int8 is taken")
        (taken, *_) = _decided(run.path, "take")

        def learned() -> bool:
            time.sleep(0.5)  # the ranks need the cores
            record = run.records()[-1]
            settled = record["level"] == "int8" and record["env_steps"] > taken.env_steps
            return settled and (record["return_mean"] or 0.0) > LEARNED

        run.wait_for(learned, "int8 learns")
        run.stop()
    decisions = _read_run(run.path)
    assert (taken.before, taken.after) == ("fp32", "int8")
    assert "times as many steps a second as fp32" in taken.reason and taken.reason.endswith(": taken")
    speed, share = (float(str(taken.figures[name])) for name in ("speed", "share"))
    assert speed * share >= 0.99 * LEAST_GAIN  # the log has six digits
    assert {d.kind for d in decisions[: decisions.index(taken)]} <= {"hold"}


@linux
@pytest.mark.mpi
@pytest.mark.parametrize(
    "words",
    [("--learners", "2"), pytest.param(("--inference", "central"), marks=pytest.mark.long)],
    ids=["learners", "central"],
)
def test_levels_are_chosen_wherever_policies_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    with TrainingRun(tmp_path, *ACTOR_BOUND, "--network", "mlp:16x1", *words, "--compressor", "auto") as run:
        run.wait_for(lambda: read_decisions(run.path)[0], "a level is tried")
        (first, *_) = read_decisions(run.path)[0]
        run.wait_for(lambda: run.records()[-1].get("scheme", "").startswith(first.after), "it acts")
        run.stop()
    assert first.reason.startswith("int8: ")
    _read_run(run.path)
