"""``accel sweep`` that pauses where a test wants it: ``python -m tests.accel.sweep.sweep_worker MANNER OPTIONS``.

``meeting``: its first trial waits until another worker is at one too, so that both take part however slow the start of
the other is. ``halting``: a candidate after the first is being played for ever, so that there is always one to lose.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

from optuna.trial import Trial

from accel.cli import main
from accel.compressors.artifact import CompressedPolicy
from accel.runs.playing import Episodes
from accel.sweep.after_training import AfterTraining
from accel.sweep.experiment import Measurement
from accel.sweep.in_training import InTraining
from accel.sweep.recovery import WORKER

Experiment = type[AfterTraining] | type[InTraining]


def workers(trial: Trial) -> int:
    """How many processes have signed trials of a study."""
    signed = [
        other.user_attrs[WORKER] for other in trial.study.get_trials(deepcopy=False) if WORKER in other.user_attrs
    ]
    return len({worker["pid"] for worker in signed})


def meet(experiment: Experiment) -> None:
    """Trials of this process begin once two workers have signed one each."""
    evaluate: Callable[..., Measurement] = experiment.evaluate

    def together(self: object, trial: Trial) -> Measurement:
        while workers(trial) < 2:
            time.sleep(0.05)
        return evaluate(self, trial)

    experiment.evaluate = together  # type: ignore[method-assign]


def halt() -> None:
    """The third policy that is played, after fp32's and the first candidate's, is never played to its end."""
    play, played = AfterTraining.play, itertools.count(1)

    def halting(self: AfterTraining, artifact: CompressedPolicy) -> Episodes:
        while next(played) > 2:
            time.sleep(0.05)
        return play(self, artifact)

    AfterTraining.play = halting  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[1] == "halting":
        halt()
    else:
        meet(AfterTraining)
        meet(InTraining)
    sys.exit(main(["sweep", *sys.argv[2:]]))
