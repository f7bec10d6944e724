"""Sweeps in training: each trial is a whole training run."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from accel.config import TrainConfig
from accel.errors import AccelError, ConfigError
from accel.json_object import Json
from accel.sweep.experiment import Experiment, Measurement
from accel.sweep.objectives import IN_TRAINING, Values
from accel.sweep.search import StudyPlan
from accel.sweep.sweep_file import SweepFile, parameters_text
from accel.sweep.training_run import TrainingRun, measured_values

_RUN = "run"

logger = logging.getLogger("accel")


class InTraining(Experiment):
    """Training runs under search."""

    metrics = IN_TRAINING
    kind = "in training"

    def __init__(self, file: SweepFile, plan: StudyPlan, directory: Path) -> None:
        """Raises ConfigError: a bound relative to fp32, a time without a threshold, bytes without ONNX."""
        wanted = plan.metrics
        if relative := [constraint.text for constraint in plan.constraints if constraint.relative]:
            raise ConfigError(f"constraint {relative[0]!r}: training runs are not compared with fp32: give a number")
        if "training_s" in wanted and file.base.run.stop_at_return is None:
            raise ConfigError("training_s is the time until stop_at_return: set stop_at_return in [train]")
        if "bytes" in wanted and file.base.acting.actor_runtime == "torch" and "actor_runtime" not in file.space:
            raise ConfigError("[train] has actor_runtime = 'torch', which publishes no ONNX policy: leave bytes out")
        self._wanted, self._file, self._plan, self._directory = wanted, file, plan, directory / "runs"
        self.title = f"{file.base.environment.env}, {file.base.policy.network}"
        self.space = file.space
        self.references: Values = {}

    def subject(self) -> Json:
        """See ``Experiment.subject``."""
        return {"kind": self.kind, **self._file.subject()}

    def prepare(self, study: Study) -> None:
        """See ``Experiment.prepare``: the base configuration first."""
        own = self._file.own_parameters()
        if own and not study.get_trials(deepcopy=False):
            study.enqueue_trial(own, skip_if_exists=True)

    def evaluate(self, trial: Trial) -> Measurement:
        """See ``Experiment.evaluate``; a run that a killed worker began is resumed."""
        config = self._file.configure(trial.params)
        name = str(trial.user_attrs.get(_RUN, f"trial-{trial.number:04d}"))
        trial.set_user_attr(_RUN, name)
        run = TrainingRun(config, self._directory, name)
        text, path = parameters_text(trial.params), shlex.quote(str(run.path))
        logger.info("trial %d starts: %s; follow it with accel watch %s", trial.number, text, path)
        run.train()
        measured = measured_values(run.path)
        if missing := self._wanted - measured.keys():
            raise AccelError(
                f"run {run.path.name} has no {', '.join(sorted(missing))}, as its actors ran torch: leave torch out of "
                "the space, or bytes out of objectives and constraints"
            )
        return Measurement(measured, self._unreached(config.run.stop_at_return, measured))

    def label(self, trial: FrozenTrial) -> str:
        """See ``Experiment.label``."""
        return parameters_text(trial.params)

    def configuration(self, trial: FrozenTrial) -> TrainConfig:
        """See ``Experiment.configuration``."""
        return self._file.configure(trial.params)

    def how_measured(self) -> str:
        """See ``Experiment.how_measured``."""
        base, space = self._file.base, self._file.space
        ends = [] if base.run.stop_at_return is None else [f"a return of {base.run.stop_at_return:g}"]
        ends.append(f"{base.run.total_env_steps:,} environment steps")
        ends += [] if base.run.max_seconds is None else [f"{base.run.max_seconds:g} s"]
        seed = "the seed is searched" if "seed" in space else f"one seed ({base.run.seed})"
        text = (
            f"One run per trial, {seed}; return: mean of the last {base.run.stop_window} training episodes; "
            f"runs stop at {' or '.join(ends)}, whichever comes first. Base configuration: algorithm "
            f"{base.algorithm.algorithm}, compressor {base.compression.compressor}; searched: {', '.join(space)}."
        )
        if base.run.stop_at_return is not None and any(q.name == "return" for q in self._plan.objectives):
            text += " Runs stop at a given return, so returns beyond it are not comparable: compare times."
        return text

    def _unreached(self, threshold: float | None, measured: Values) -> dict[str, float]:
        """The violation of a run that did not reach the threshold, and thus has no time to it."""
        if threshold is None or "training_s" not in self._wanted:
            return {}
        return {"stop_at_return": (threshold - measured["return"]) / max(abs(threshold), 1e-12)}
