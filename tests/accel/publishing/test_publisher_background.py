"""Background work: publications go on, results come whole, errors come out, runs end."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from accel.compressors.distill import Student
from accel.compressors.plan import PlanUpdate
from accel.compressors.prune.structured import PrunedModule
from accel.networks import PolicyNetwork
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from tests.accel.publishing.live_policies import make_batch, observe, payload_of, published, publisher_of, scale

STUDENT, PRUNED, RANKED = "distill(16x2)", "prune(0.5)", "lowrank(0.25)+int8"
NEVER = 100_000
RARE = Intervals(NEVER, NEVER, NEVER, NEVER, NEVER)
LIMIT_S = 500.0  # far beyond what anything takes: only a hang gets there


class Gate:
    """Holds up every call of a method until it is opened; counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        self.open, self.reached = threading.Event(), threading.Event()
        method = getattr(owner, name)

        def held(*arguments: object, **options: object) -> object:
            self.calls += 1
            self.reached.set()
            assert self.open.wait(LIMIT_S), "the test never opened the gate"
            return method(*arguments, **options)

        patch.setattr(owner, name, held)

    def close(self) -> None:
        self.open.clear()
        self.reached.clear()


@contextmanager
def _publisher(
    level: str, network: str = "mlp:32x2", actors: int = 1, max_publish_kl: float | None = None, **intervals: int
) -> Iterator[tuple[Publisher, PolicyNetwork]]:
    """One with a worker; its level is the configured one."""
    often = replace(RARE, **intervals)
    publisher, net = publisher_of(network, level, often, actors=actors, max_publish_kl=max_publish_kl)
    try:
        yield publisher, net
    finally:
        publisher.close()


def _update(publisher: Publisher, net: PolicyNetwork, updates: int = 1) -> None:
    """All but the last wait for background work, so that what falls due at the last is begun at once."""
    for seed in range(updates):
        if seed:
            _finish_work(publisher)
        observe(publisher, net, make_batch(net, seed=seed))


def _finish_work(publisher: Publisher) -> None:
    """Until nothing is in progress; the result is not adopted yet."""
    deadline = time.monotonic() + LIMIT_S
    while publisher.busy:
        assert time.monotonic() < deadline, "the worker does not finish"
        time.sleep(0.001)


def _make_ready(publisher: Publisher, net: PolicyNetwork, level: str) -> None:
    _update(publisher, net, 2)
    _finish_work(publisher)
    assert published(publisher) == level


def test_fp32_is_published_until_a_student_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, Student, "distill_step")
    with _publisher(STUDENT) as (publisher, net):
        _update(publisher, net, 2)
        assert gate.reached.wait(LIMIT_S)
        for _ in range(5):
            _update(publisher, net)
            assert published(publisher) == "fp32"
        assert not publisher.offers(STUDENT) and gate.calls == 1
        gate.open.set()
        _finish_work(publisher)
        assert published(publisher) == STUDENT and publisher.offers(STUDENT)
        assert publisher.metrics()[f"distill_steps/{STUDENT}"] == gate.calls == 100


def test_the_last_finished_student_is_published_while_it_learns_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, Student, "distill_step")
    gate.open.set()
    with _publisher(STUDENT, distill=1) as (publisher, net):
        _update(publisher, net, 2)
        _finish_work(publisher)
        before = payload_of(publisher)
        gate.close()
        taught = gate.calls
        _update(publisher, net)
        assert gate.reached.wait(LIMIT_S)
        for _ in range(6):
            _update(publisher, net)
            assert payload_of(publisher) == before
        assert gate.calls == taught + 1, "one training step at a time"
        gate.open.set()
        _finish_work(publisher)
        assert payload_of(publisher) != before
        _update(publisher, net)
        _finish_work(publisher)
        assert gate.calls == taught + 2, "steps missed meanwhile are not made up for"


def _reverse_units(net: PolicyNetwork) -> None:
    """The same policy with the first layer's units in reverse order: others are kept."""
    first, second = net.torso.layers
    with torch.no_grad():
        first.weight.copy_(first.weight.flip(0))
        first.bias.copy_(first.bias.flip(0))
        second.weight.copy_(second.weight.flip(1))


def _train_on(net: PolicyNetwork) -> None:
    scale(net, -0.5)
    with torch.no_grad():
        net.torso.layers[0].weight.copy_(net.torso.layers[0].weight.roll(5, 0))


def test_channels_are_selected_for_the_policy_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the learner's own thread selects at once, though here the learner changes its policy meanwhile."""
    with _publisher(PRUNED, reselect=8, actors=0) as (publisher, net):
        _update(publisher, net, 2)
        _reverse_units(net)
        _update(publisher, net, 8)
        _train_on(net)
        expected = payload_of(publisher)
    gate = Gate(monkeypatch, PrunedModule, "observe")
    gate.open.set()
    with _publisher(PRUNED, reselect=8) as (publisher, net):
        _make_ready(publisher, net, PRUNED)
        _reverse_units(net)
        gate.close()
        _update(publisher, net, 8)
        assert gate.reached.wait(LIMIT_S)
        _train_on(net)
        assert payload_of(publisher) != expected, "other channels were kept before"
        gate.open.set()
        _finish_work(publisher)
        name = f"reselections/{PRUNED}"
        assert name not in publisher.metrics(), "nothing changes but at a publication or an update"
        assert payload_of(publisher) == expected and publisher.metrics()[name] == 1


def test_a_level_that_comes_back_waits_for_a_new_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    with _publisher(RANKED, drift=2) as (publisher, net):
        _make_ready(publisher, net, RANKED)
        publisher.use("fp32")
        _update(publisher, net, 3)
        gate = Gate(monkeypatch, PlanUpdate, "calibrate")  # which selects on the way
        publisher.use(RANKED)
        assert gate.reached.wait(LIMIT_S)
        assert published(publisher) == "fp32" and publisher.offers(RANKED), "late, but not unfit"
        gate.open.set()
        _finish_work(publisher)
        assert published(publisher) == RANKED


def test_a_level_that_comes_back_at_once_keeps_its_selection_and_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was timed beside another and is then taken: to renew it may hold the learner up for long."""
    with _publisher(RANKED, drift=2) as (publisher, net):
        _make_ready(publisher, net, RANKED)
        gate = Gate(monkeypatch, PlanUpdate, "calibrate")
        for _ in range(2):
            publisher.use("fp32")
            publisher.use(RANKED)
            assert published(publisher) == RANKED and not publisher.busy
        assert gate.calls == 0


def test_levels_take_turns() -> None:
    levels, often = (STUDENT, PRUNED, RANKED), Intervals(reselect=1, distill=1)
    publisher, net = publisher_of("mlp:32x2", STUDENT, often, levels, actors=1, max_publish_kl=None)
    publisher.use(STUDENT, prepare=[PRUNED, RANKED])
    for update in range(6):
        observe(publisher, net, make_batch(net, seed=update))
        _finish_work(publisher)
    assert published(publisher) == STUDENT and publisher.offers(PRUNED) and publisher.offers(RANKED)
    assert publisher.metrics()[f"distill_steps/{STUDENT}"] > 100, "the level in use always has work"
    publisher.close()


@pytest.mark.parametrize("prepare", [True, False])
def test_a_level_out_of_use_is_prepared_where_asked_for(prepare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, Student, "distill_step")
    levels = (STUDENT, PRUNED)
    publisher, net = publisher_of("mlp:32x2", STUDENT, levels=levels, actors=1, max_publish_kl=None)
    publisher.use(STUDENT, prepare=[PRUNED])
    for update in range(3):
        observe(publisher, net, make_batch(net, seed=update))
    assert gate.reached.wait(LIMIT_S), "the student is trained first, and the selection of channels has to wait"
    publisher.use("fp32", prepare=[STUDENT, PRUNED] if prepare else [])
    gate.open.set()
    for update in range(4):
        _finish_work(publisher)
        observe(publisher, net, make_batch(net, seed=update))
        assert published(publisher) == "fp32"
    assert publisher.offers(STUDENT) and publisher.offers(PRUNED) is prepare
    publisher.close()


def test_ranges_alone_are_measured_at_once() -> None:
    with _publisher("int8") as (publisher, net):
        _update(publisher, net, 2)
        assert published(publisher) == "int8"


@pytest.mark.parametrize("actors", [0, 1])
@pytest.mark.parametrize("what", ["reselect", "calibration"])
def test_a_new_selection_and_new_ranges_get_a_full_check(what: str, actors: int) -> None:
    level = "prune(0.9)+int8"
    with _publisher(level, "mlp:64x2", actors, 0.5, **{what: 4}) as (publisher, net):
        scale(net.policy_head.mean.weight, 1e-3)
        _make_ready(publisher, net, level)
        first_kl = publisher.metrics()[f"publish_kl/{level}"]
        scale(net.policy_head.mean.weight, 2.0)
        assert published(publisher) == level
        assert publisher.metrics()[f"publish_kl/{level}"] == first_kl, "in between a quick check does"
        _update(publisher, net, 5)
        _finish_work(publisher)
        assert published(publisher) == level and publisher.metrics()[f"publish_kl/{level}"] > 2.0 * first_kl


def test_ranges_that_cannot_be_measured_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with _publisher(RANKED, calibration=2) as (publisher, net):
        _make_ready(publisher, net, RANKED)
        before = payload_of(publisher)
        for update in range(12):
            observe(publisher, net, make_batch(net, seed=update, scale=float("nan")))
            _finish_work(publisher)
        warnings = [record.message for record in caplog.records if "keeps its ranges" in record.message]
        assert len(warnings) == 1 and "not finite" in warnings[0]
        assert payload_of(publisher) == before


def test_an_unexpected_error_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with _publisher(RANKED, reselect=2) as (publisher, net):
        _make_ready(publisher, net, RANKED)

        def fail(*arguments: object, **options: object) -> None:
            raise MemoryError("no room for a basis")

        monkeypatch.setattr(PlanUpdate, "calibrate", fail)
        with pytest.raises(MemoryError, match="no room for a basis"):  # whoever finds the job done first
            _update(publisher, net, 2)
            _finish_work(publisher)
            payload_of(publisher)


def test_an_error_as_the_run_ends_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(student: Student, *arguments: object) -> None:
        raise MemoryError("no room for a student")

    monkeypatch.setattr(Student, "distill_step", fail)
    gate = Gate(monkeypatch, Student, "distill_step")
    with _publisher(STUDENT) as (publisher, net):
        _update(publisher, net, 2)
        gate.open.set()  # nobody looks at the result from here to the end
        _finish_work(publisher)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert STUDENT in record.message and record.exc_info is not None and "no room" in str(record.exc_info[1])


def test_the_end_of_a_run_does_not_wait_for_background_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(monkeypatch, Student, "distill_step")
    with _publisher(STUDENT) as (publisher, net):
        _update(publisher, net, 2)
        assert gate.reached.wait(LIMIT_S)
        publisher.close()
        assert publisher.busy, "it came back while a training step was in progress"
        assert published(publisher) == "fp32" and publisher.artifact(3) is not None
        gate.open.set()
        _finish_work(publisher)
    assert gate.calls == 1, "the other steps are not taken"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_process_ends_well_with_a_worker_in_the_middle_of_a_decomposition() -> None:
    code = """
import torch
from accel.publishing.background import BackgroundWorker
worker, started = BackgroundWorker(), __import__("threading").Event()
def job():
    matrix = torch.eye(900, dtype=torch.float64)
    started.set()
    torch.linalg.eigh(matrix + torch.randn_like(matrix))
worker.submit(job)
started.wait()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
