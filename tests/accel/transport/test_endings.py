"""Ranks that die or fail, for real: the others learn of it, and nobody hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.ranks import TCP, Job, Outcome

pytestmark = pytest.mark.mpi

PROGRAM = str(Path(__file__).with_name("rank_endings.py"))


def run(case: str, ranks: int, **environment: str) -> tuple[list[dict[str, Any]], Outcome]:
    """What the ranks said, and how the job ended."""
    with Job(ranks, [PROGRAM, case], environment=environment) as job:
        outcome = job.outcome()
    lines = [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")]
    if {"fault_tolerant": False} in lines and "killed" in case:
        pytest.skip("needs an MPI that survives dead ranks (Open MPI 5 with ULFM)")
    return lines, outcome


def the(lines: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """The one line that has ``key``."""
    found = [line for line in lines if key in line]
    assert len(found) == 1, lines
    return found[0]


@pytest.mark.parametrize(
    ("actors", "victim", "network"),
    [(3, 0, {}), (3, 2, {}), (3, 1, TCP), (1, 0, {})],
    ids=["first", "last", "over tcp", "only"],
)
def test_killed_actor_disturbs_nobody(actors: int, victim: int, network: dict[str, str]) -> None:
    lines, outcome = run("killed_actor", actors + 1, VICTIM=str(victim), **network)
    told = the(lines, "after")
    others = sorted(set(range(actors)) - {victim})
    assert told["dead"] == [victim]
    assert told["alive"] == others
    assert told["before"][victim] > 0
    assert told["after"][victim] == 0
    assert all(told["after"][actor] > 0 for actor in others)
    assert told["unfinished"] == []
    assert sorted(line["actor"] for line in lines if line.get("ended") == "stopped") == others
    assert len([line for line in lines if "returned" in line]) == actors, outcome


def test_killed_before_a_word() -> None:
    lines, _ = run("killed_before_hello", 3)
    told = the(lines, "counts")
    assert told["dead"] == [0] and told["unfinished"] == []
    assert told["counts"][0] == 0 and told["counts"][1] > 0


ENDINGS: dict[str, tuple[str, int, dict[str, str], dict[str, object]]] = {
    "an actor dies while it is stopped": ("killed_while_stopping", 3, {}, {"unfinished": [], "dead": [0]}),
    # nobody waits for what it has under way
    "a silent actor": ("silent_actor", 3, TCP, {"unfinished": [], "waited": False}),
    "an actor starts anew while no unrolls are taken": ("late_unrolls", 2, {}, {"late": False, "unfinished": []}),
    # actors cannot leave MPI in order without a dead one: their end must not make mpirun end the learner too
    "a learner stays longer than its actors": ("learner_that_stays", 3, {}, {"stayed": True}),
}


@pytest.mark.parametrize(("case", "ranks", "network", "told"), ENDINGS.values(), ids=ENDINGS)
def test_the_learner_ends_in_order(case: str, ranks: int, network: dict[str, str], told: dict[str, object]) -> None:
    lines, outcome = run(case, ranks, **network)
    assert the(lines, next(iter(told))) == told, outcome


def test_a_relay_killed_in_the_middle_of_a_policy_is_replaced_and_nobody_waits_for_it() -> None:
    lines, outcome = run("killed_relay", 4)
    assert the(lines, "dead") == {"dead": [0], "unfinished": []}, outcome
    assert sorted(line["actor"] for line in lines if line.get("ended") == "stopped") == [1, 2]


@pytest.mark.parametrize("network", [{}, TCP], ids=["shared memory", "over tcp"])
def test_a_relay_that_is_stopped_is_done_without_and_takes_part_again(network: dict[str, str]) -> None:
    lines, outcome = run("stopped_relay", 4, **network)
    assert the(lines, "dead") == {"dead": [], "unfinished": []}, outcome
    assert sorted(line["actor"] for line in lines if line.get("ended") == "stopped") == [0, 1, 2]
