#!/usr/bin/env python
"""Trains with a wrong correction, as an ablation. ``accel train`` has no such option.

    python scripts/ablation/correction.py VARIANT train --preset quickstart …      like ``accel train …``

importance-weights   with --corrector none: uncorrected n-step targets, the policy gradient weighted by min(1, π_θ/μ);
                     Espeholt et al. 2018's "1-step importance sampling", truncated
full-precision       with --corrector vtrace: behaviour log-probs are those of π_v, the uncompressed policy of the
                     version that acted, as if the actors had not been compressed; the recorded ones of μ are discarded
rejected             with --corrector vtrace: steps whose weight π_θ/μ is not within 1/2 to 2 leave the policy gradient,
                     and the others share their weight (masked importance sampling)
centred-last         advantages are centred after the importance weight is multiplied in, not before
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from torch import Tensor

    from accel.algorithms.corrections import Corrected

VARIANTS = ("importance-weights", "full-precision", "rejected", "centred-last")
RANK = "--rank"


def main() -> int:
    """Start the job with this script as its ranks, or run as one of them."""
    if sys.argv[1:2] == [RANK]:
        return rank(sys.argv[2], sys.argv[3])
    if len(sys.argv) < 3 or sys.argv[1] not in VARIANTS or sys.argv[2] != "train":
        print(f"{__doc__}\nVARIANT is one of {', '.join(VARIANTS)}", file=sys.stderr)
        return 2
    from accel.cli import main as accel_main
    from accel.launch import mpirun

    variant, started = sys.argv[1], mpirun.run

    def run(arguments: Sequence[str], **options: object) -> mpirun.Ended:
        *command, module, name, job = arguments
        if (module, name) != ("-m", "accel.launch.rank"):
            raise SystemExit(f"mpirun is not started as this script expects: {module} {name}")
        return started([*command, __file__, RANK, variant, job], **options)

    mpirun.run = run
    change(variant)
    return accel_main(sys.argv[2:])


def rank(variant: str, job: str) -> int:
    """One rank of the job; only the learner's is changed."""
    from accel.cli import rank as ranks
    from accel.transport.launcher import detect_launch, is_actor

    if not is_actor(detect_launch()):
        change(variant)
    sys.argv = ["accel.launch.rank", job]
    return ranks.main()


def change(variant: str) -> None:
    """Replace parts of the learner by the ablated ones."""
    from accel.algorithms import actor_critic
    from accel.algorithms.corrections import CORRECTIONS
    from accel.learning import session

    if variant == "importance-weights":
        CORRECTIONS["none"] = weighted(CORRECTIONS["none"])
    elif variant == "rejected":
        CORRECTIONS["vtrace"] = rejecting(CORRECTIONS["vtrace"])
    elif variant == "centred-last":
        actor_critic.centre_and_weight = centred_last
    else:
        session.Loop = full_precision(session.Loop)


def weighted(correction: type) -> type:
    """A correction whose policy-gradient advantages carry the importance weight, clipped at 1."""

    class Weighted(correction):  # type: ignore[misc]
        def __call__(self, experience):  # type: ignore[no-untyped-def]
            return dataclasses.replace(super().__call__(experience), weights=experience.log_rhos.clamp(max=0.0).exp())

    return Weighted


def rejecting(correction: type) -> type:
    """A correction whose policy gradient leaves out steps that the two policies give very different probabilities."""

    class Rejecting(correction):  # type: ignore[misc]
        def __call__(self, experience):  # type: ignore[no-untyped-def]
            corrected = super().__call__(experience)
            kept = (experience.log_rhos.abs() < math.log(2.0)) & experience.valid
            share = kept.sum() / experience.valid.sum().clamp_min(1)
            weights = corrected.weights * kept / share.clamp_min(1e-3)
            return dataclasses.replace(corrected, weights=weights)

    return Rejecting


def full_precision(loop: type) -> type:
    """A loop that replaces μ's log-probs by those of π_v, as if the actors had acted in full precision."""
    import torch

    from accel.tuning.mismatch_copies import PolicyCopies

    class WrongLoop(loop):  # type: ignore[misc]
        """Keeps each version's full-precision policy until its unrolls are no longer accepted."""

        def publish(self) -> None:
            if not hasattr(self, "copies"):
                self.copies = PolicyCopies(self.algorithm.network, self.config.schedule.max_policy_lag + 2)
            self.copies.keep(self.counters.updates)
            super().publish()

        def _learn(self, sample):  # type: ignore[no-untyped-def]
            batch, wrong = sample.batch, sample.batch.behaviour_log_prob.clone()
            stored = np.concatenate([experience.unroll["policy_version"] for experience in sample.key], axis=1)
            versions = torch.from_numpy(stored).to(wrong.device)
            for version in set(versions.unique().tolist()) & set(self.copies.versions):
                params = self.copies.act(version, batch.observations[:-1], batch.first[:-1], batch.states)
                log_prob = self.algorithm.distribution(params, None).log_prob(batch.actions)
                wrong = torch.where(versions == version, log_prob, wrong)
            corrected = dataclasses.replace(batch, behaviour_log_prob=wrong)
            return super()._learn(dataclasses.replace(sample, batch=corrected))

    return WrongLoop


def centred_last(corrected: Corrected, weights: Tensor, *, normalise: bool) -> Tensor:
    """Zero mean and unit deviation of ρ̂ A: rows of small weight are pushed away from their own advantage."""
    weighted = corrected.advantages * corrected.weights
    if not normalise:
        return weighted
    centred = weighted - (weights * weighted).sum() / weights.sum()
    return centred * ((weights * centred.square()).sum() / weights.sum() + 1e-8).rsqrt()


if __name__ == "__main__":
    sys.exit(main())
