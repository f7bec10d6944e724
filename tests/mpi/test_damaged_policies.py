"""An actor whose first policy it must not trust says so, and starts anew."""

from __future__ import annotations

import json

import pytest

from accel.compressors.artifact import FORMAT_VERSION
from tests.contracts.ranks import Job

pytestmark = pytest.mark.mpi

OTHER_FORMAT = f"format version {FORMAT_VERSION + 1} is not {FORMAT_VERSION}"


def test_an_actor_without_a_policy_says_why_and_starts_anew() -> None:
    with Job(2, ["-m", "tests.mpi.damaged_policies"]) as job:
        outcome = job.outcome()
    assert "Traceback" not in outcome.errors, outcome.errors
    told, ending = (json.loads(line) for line in outcome.output.splitlines() if line.startswith("{"))
    assert "ArtifactError" in told["down"] and OTHER_FORMAT in told["down"] and told["again_in_s"] > 0
    assert ending == {"deaf": [], "dead": []} and outcome.code == 0
