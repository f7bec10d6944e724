"""What AcceRL, ActorQ and QuaRL publish, with citations, as ranges that a figure can be placed beside."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A published range, of what, and by whom."""

    system: str
    what: str
    low: float
    high: float

    def placed(self, value: float) -> str:
        """Where a value lies."""
        if math.isnan(value):
            return "–"
        return "below" if value < self.low else "above" if value > self.high else "within"


ACTOR = Claim("AcceRL", "actor time divided by", 2.0, 4.13)
TRAINING = Claim("AcceRL", "whole training time saved", 0.298, 0.403)
END_TO_END = Claim("ActorQ", "end to end, times as fast", 1.5, 2.5)
STEP_AND_PULL = Claim("ActorQ", "step and pull, times as fast", 1.6, 2.0)
SMALLER = Claim("QuaRL", "times smaller", 4.0, 4.0)
PAPERS = (
    (
        "AcceRL",
        "Zhang et al., AcceRL: Policy Acceleration Framework for Deep Reinforcement Learning, 2022, arXiv:2211.15023",
        "actor time divided by 2.0 to 4.13; whole training time −29.8 % to −40.3 % at the same policy quality, on gym",
    ),
    (
        "ActorQ",
        "Lam et al., ActorQ: Quantization for Actor-Learner Distributed Reinforcement Learning, ICLR workshop on "
        "Hardware Aware Efficient Training, 2021; part of arXiv:1910.01055",
        "1.5 to 2.5× end to end at the same convergence, policies of 2048×3, D4PG and DQN; step and pull of int8 1.6× "
        "as fast with a pull every 30 steps, 2.0× with one every 300",
    ),
    (
        "QuaRL",
        "Krishnan et al., QuaRL: Quantization for Fast and Environmentally Sustainable Reinforcement Learning, TMLR, "
        "2022, arXiv:1910.01055",
        "1.5 to 5.41× end to end, carbon emissions 1.9 to 3.76 times lower; large policies deployed on a Raspberry Pi "
        "4× smaller and 14 to 18× as fast in int8, success 11 to 15 points lower",
    ),
)
CAVEAT = (
    "The published figures are of other machines, frameworks, environments and algorithms than ours, each against its "
    "own baseline; ours are against torch eager actors. What onnxruntime (ORT) gains without compression stands under "
    "fp32. Below, within and above say where a figure of ours lies beside a published range, not which system is "
    "better."
)
