"""What a sweep searches: the parameters of its trials, how one is measured, and what becomes of the best."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from accel.config import TrainConfig
from accel.json_object import Json
from accel.sweep.objectives import Metric, Values
from accel.sweep.pareto import Candidate


@dataclass(frozen=True)
class Measurement:
    """The measurements of one trial.

    Attributes:
        measured: by metric, and further values.
        violations: of the sweep's own bounds, above 0 where they are not met.
        skipped: why the trial ended before all objectives were measured, one of ``study.SKIPS`` and the figures behind
            it; None for a complete one.
    """

    measured: Values
    violations: Values = field(default_factory=dict)
    skipped: str | None = None


class Experiment(ABC):
    """The kind of trials that a sweep runs.

    Attributes:
        kind: ``after training`` or ``in training``.
        metrics: those that trials measure, by name.
        title: the subject in a few words.
        space: the parameters of a trial.
        references: the metrics of fp32, as far as they are measured.
    """

    kind: str
    metrics: Mapping[str, Metric]
    title: str
    space: Mapping[str, BaseDistribution]
    references: Values

    @abstractmethod
    def subject(self) -> Json:
        """Plain JSON that identifies what is swept; a study has one subject."""

    @abstractmethod
    def prepare(self, study: Study) -> None:
        """Measure the references and queue the first trials; called by every worker, one at a time."""

    @abstractmethod
    def evaluate(self, trial: Trial) -> Measurement:
        """Measure one trial. Raises AccelError for one that fails."""

    @abstractmethod
    def label(self, trial: FrozenTrial) -> str:
        """The trial's candidate in a line; trials of equal labels are one candidate."""

    @abstractmethod
    def how_measured(self) -> str:
        """How the metrics were measured, in a few sentences, for the table."""

    def configuration(self, trial: FrozenTrial) -> TrainConfig | None:
        """With which ``accel train`` trains the candidate; None where something else trained it."""
        return None

    def export_command(self, label: str, directory: Path) -> str | None:
        """The command that exports a candidate into a directory; None if it must be trained first, or has no file."""
        return None

    def measure_again(self, rows: Sequence[Candidate]) -> list[Candidate]:
        """Candidates measured again under equal conditions, where that is more precise."""
        return list(rows)
