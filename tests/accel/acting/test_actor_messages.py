"""What learner and actors say to each other before training survives the way, or is refused in one line."""

from __future__ import annotations

import json

import pytest

from accel.config.actor import ActorAgreement, PriorityOptions
from accel.errors import TransportError

AGREEMENT = ActorAgreement(
    ((4,),), 2, True, "epsilon-greedy", "d", {"duelling": True}, PriorityOptions(3, 0.9, True, normalise_rewards=True)
)


@pytest.mark.parametrize("agreement", [AGREEMENT, ActorAgreement((), 2, False, "stochastic", "d")])
def test_an_agreement_comes_back_equal(agreement: ActorAgreement) -> None:
    assert ActorAgreement.from_json(json.loads(json.dumps(agreement.to_json()))) == agreement


def test_priorities_of_another_version_are_refused() -> None:
    priorities = {**PriorityOptions(3, 0.9, True).to_json(), "more": 1}
    with pytest.raises(TransportError, match=r"PriorityOptions has other fields than this actor's \(more\)"):
        ActorAgreement.from_json(AGREEMENT.to_json() | {"priorities": priorities})
