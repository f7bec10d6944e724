"""Every transport keeps the same promises: one suite of scenes, in processes of one machine and on real MPI ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.contracts.ranks import TCP, Job
from tests.contracts.transport_scenarios import SCENES, play_processes


@pytest.mark.few(16)
@pytest.mark.parametrize("actors", [1, 2, 3])
@pytest.mark.parametrize("scene", [name for name, scene in SCENES.items() if not scene.of_ranks])
def test_processes_of_this_machine(scene: str, actors: int) -> None:
    failure = play_processes(scene, actors)
    assert failure is None, failure


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("actors", "network"),
    [pytest.param(1, {}, marks=pytest.mark.long), (3, {}), (2, TCP)],
    ids=["1 actor", "3 actors", "2 actors over a network"],
)
def test_ranks(actors: int, network: Mapping[str, str]) -> None:
    """All scenes, one after another in one job."""
    with Job(actors + 1, ["-m", "tests.contracts.transport_scenarios", *SCENES], environment=network) as job:
        outcome = job.outcome()
    lines = [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")]
    failures = {line["scene"]: line["failure"] for line in lines}
    assert not any(failures.values()), "\n".join(f"{scene}: {text}" for scene, text in failures.items() if text)
    assert failures.keys() == SCENES.keys() and outcome.code == 0, outcome
