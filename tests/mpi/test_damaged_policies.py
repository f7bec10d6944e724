"""An actor sent a policy it must not trust says so; with an older one it acts on, without it starts anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accel.compressors.artifact import FORMAT_VERSION
from tests.contracts.ranks import Job

OTHER_FORMAT = f"format version {FORMAT_VERSION + 1} is not {FORMAT_VERSION}"


def play(case: str) -> tuple[list[dict[str, Any]], int]:
    with Job(2, ["-m", "tests.mpi.damaged_policies", case]) as job:
        outcome = job.outcome()
    assert "Traceback" not in outcome.errors, outcome.errors
    return [json.loads(line) for line in outcome.output.splitlines() if line.startswith("{")], outcome.code


@pytest.mark.long
def test_an_actor_goes_on_with_the_policy_that_it_has() -> None:
    (flipped, foreign, acted, ending), code = play("later")
    assert "keeps policy 0: version 1 does not load" in flipped["warning"]
    assert "checksum" in flipped["warning"] or "damaged" in flipped["warning"]
    assert "version 2 does not load" in foreign["warning"] and OTHER_FORMAT in foreign["warning"]
    assert acted["versions"] == [0, 3], "an unfit policy acted"
    assert ending == {"deaf": [], "dead": []} and code == 0


def test_an_actor_without_a_policy_says_why_and_starts_anew() -> None:
    (told, ending), code = play("first")
    assert "ArtifactError" in told["down"] and OTHER_FORMAT in told["down"] and told["again_in_s"] > 0
    assert ending == {"deaf": [], "dead": []} and code == 0
