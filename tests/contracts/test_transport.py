"""Every transport keeps the same promises: one suite of scenes, in processes of one machine and on real MPI ranks."""

from __future__ import annotations

import functools
import json

import pytest

from tests.contracts.ranks import TCP, Job
from tests.contracts.transport_scenarios import SCENES, play_processes

ACTORS = (1, 2, 3)


@functools.cache
def _played_by_ranks(actors: int, over_tcp: bool = False) -> tuple[dict[str, str | None], str]:
    """What went wrong in each scene, all of them played in one job; and how the job ended, unless in order."""
    program = ["-m", "tests.contracts.transport_scenarios", *SCENES]
    with Job(actors + 1, program, environment=TCP if over_tcp else None) as job:
        try:
            outcome = job.outcome()
        except pytest.fail.Exception as hung:  # Kept like any other result: one wait for a hang is enough.
            return {}, str(hung)
    lines = [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")]
    return {line["scene"]: line["failure"] for line in lines}, "" if outcome.code == 0 else str(outcome)


@pytest.mark.few(16)
@pytest.mark.parametrize("actors", ACTORS)
@pytest.mark.parametrize("scene", [name for name, scene in SCENES.items() if not scene.of_ranks])
def test_processes_of_this_machine(scene: str, actors: int) -> None:
    failure = play_processes(scene, actors)
    assert failure is None, failure


@pytest.mark.mpi
@pytest.mark.parametrize("actors", ACTORS)
@pytest.mark.parametrize("scene", SCENES)
def test_mpi_transport(scene: str, actors: int) -> None:
    _assert_played(scene, *_played_by_ranks(actors))


@pytest.mark.mpi
@pytest.mark.parametrize("scene", SCENES)
def test_mpi_transport_over_a_network(scene: str) -> None:
    _assert_played(scene, *_played_by_ranks(2, over_tcp=True))


def _assert_played(scene: str, failures: dict[str, str | None], trouble: str) -> None:
    assert scene in failures, f"the job ended before this scene:\n{trouble}"
    assert failures[scene] is None, failures[scene]
    assert not trouble, trouble
