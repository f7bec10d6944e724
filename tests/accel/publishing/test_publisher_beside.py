"""Publications that are prepared beside the learner: the same bytes, of one moment, the newest, in whole runs too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accel.compressors.artifact import CompressedPolicy
from accel.config import TrainConfig
from accel.networks import PolicyNetwork
from accel.publishing.background import Snapshot
from accel.publishing.level import Intervals
from accel.publishing.publisher import Publisher
from accel.runs.directory import RunDirectory
from tests.accel.learning.test_resume import open_session
from tests.accel.publishing.live_policies import config_for, make_batch, make_network, observe, payload_of, scale
from tests.accel.publishing.test_publisher_background import Gate

NEVER = 100_000
RARE = Intervals(calibration=NEVER, drift=NEVER, reselect=NEVER, distill=NEVER)
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
)
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


def _made(level: str, device: str, *, beside: bool, network: str = "mlp:32x2") -> tuple[Publisher, PolicyNetwork]:
    config = config_for(network, level, actors=1, max_publish_kl=None)
    net = make_network(config).to(device)
    return Publisher(config, net, beside=beside, intervals=RARE), net


def _published(publisher: Publisher, net: PolicyNetwork) -> list[tuple[int, bytes | None] | None]:
    """Six publications, each of other weights."""
    found = []
    for version in range(6):
        assert publisher.begin(version)
        found.append(publisher.prepared(wait=True))
        observe(publisher, net, make_batch(net, seed=version))
        scale(net, 0.9)
    publisher.close()
    return found


@pytest.mark.few(6)
@DEVICES
@pytest.mark.parametrize("network", ["mlp:32x2", "mlp:16x1+lstm:8"])
@pytest.mark.parametrize("level", ["fp32", "int8", "fp16"])
def test_the_bytes_are_those_of_a_publication_made_at_once(level: str, network: str, device: str) -> None:
    at_once, beside = (_published(*_made(level, device, beside=beside, network=network)) for beside in (False, True))
    assert at_once == beside
    assert [version for version, _ in filter(None, beside)] == list(range(6))
    assert len({payload for _, payload in filter(None, beside)}) == 6


@DEVICES
def test_a_publication_is_of_one_moment_and_the_next_of_the_newest_policy(device: str) -> None:
    publisher, net = _made("fp32", device, beside=True)
    expected = payload_of(publisher)
    assert publisher.begin(1)
    scale(net, -0.5)
    publisher.after_update()
    assert not publisher.begin(2), "one is under way"
    scale(net, 3.0)
    publisher.after_update()
    assert publisher.prepared(wait=True) == (1, expected)
    assert publisher.prepared() is None, "each is taken once"
    assert publisher.begin(3)
    found = publisher.prepared(wait=True)
    assert found == (3, payload_of(publisher)) != (3, expected)
    publisher.close()


def test_updates_while_one_is_prepared_are_counted_when_it_is_there() -> None:
    counted = []
    for beside in (False, True):
        publisher, net = _made("int8", "cpu", beside=beside)
        for version in range(3):
            publisher.begin(version)
            publisher.prepared(wait=True)
            observe(publisher, net, make_batch(net, seed=version))
        publisher.begin(4)
        for _ in range(5):
            publisher.after_update()
        publisher.prepared(wait=True)
        publisher.after_update()
        counted.append(publisher.metrics()["publish_kl_age_updates/int8"])
        publisher.close()
    assert counted[0] == counted[1]


def test_a_publication_that_takes_longer_than_an_update_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is begun at once; int8 is calibrated all the same."""
    gate = Gate(monkeypatch, Snapshot, "reading")
    publisher, net = _made("int8", "cpu", beside=True)
    for version in range(4):
        gate.close()
        assert publisher.begin(version)
        observe(publisher, net, make_batch(net, seed=version))
        assert publisher.preparing
        gate.open.set()
        found = publisher.prepared(wait=True)
    assert found is not None and found[1] is not None and publisher.offers("int8")
    assert CompressedPolicy.from_bytes(found[1]).scheme == "int8"
    publisher.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA device")
def test_the_learner_waits_for_nothing_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, _ = _made("int8", "cuda", beside=True)
    payload_of(publisher)
    gate = Gate(monkeypatch, Snapshot, "reading")  # The preparing thread may wait for the device.
    busy = torch.randn(4096, 4096, device="cuda")
    for version in range(3):
        for _ in range(20):
            busy = (busy @ busy).clamp(-1.0, 1.0)
        gate.close()
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert publisher.begin(version)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            gate.open.set()
        assert publisher.prepared(wait=True) is not None
    publisher.close()


@pytest.mark.parametrize("algorithm", ["impala", "dppo"])
def test_a_run_publishes_beside_its_updates(algorithm: str, tmp_path: Path) -> None:
    """With actors that wait for the policy of a round, and with some that do not."""
    config = TrainConfig.create(
        env="CartPole-v1", algorithm=algorithm, network="mlp:16x1", learner_threads=1, actors=0, envs_per_actor=8,
        unroll_length=16, compressor="int8", calibration_size=256, total_env_steps=4000, results_dir=tmp_path,
        evaluate_every=None, **({"passes": 2, "minibatches": 2} if algorithm == "dppo" else {}),
    )  # fmt: skip
    with RunDirectory.create(tmp_path, "run") as run:
        session = open_session(config, run)
        beside = Publisher(config, session.learner.algorithm.network, levels=["int8"], beside=True)
        session.publisher = session.loop.publisher = beside
        summary = session.train()
    assert summary.env_steps >= 4000 and summary.updates >= 20
    assert beside.offers("int8") and beside.scheme == "int8"
    assert summary.lag["lag_max"] < (1 if algorithm == "dppo" else summary.updates)  # how soon depends on the machine
